"""A comparison in the words of what was recorded: a step of inference is an iteration, a request or a token."""

from __future__ import annotations

from dataclasses import replace

from gpuprof.diagnosis.comparison.comparison import Comparison
from gpuprof.timeline.unit_words import in_unit


def reworded(comparison: Comparison) -> Comparison:
    """The same with its sentences in the words of its workload."""
    unit = comparison.unit
    if unit == "step":
        return comparison
    return replace(
        comparison,
        summary=in_unit(comparison.summary, unit),
        mechanisms=tuple(
            replace(one, title=in_unit(one.title, unit), text=in_unit(one.text, unit)) for one in comparison.mechanisms
        ),
        notes=tuple(replace(one, message=in_unit(one.message, unit)) for one in comparison.notes),
    )

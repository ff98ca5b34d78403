"""A diagnosis in the words of what was recorded: a step of inference is an iteration, a request or a token."""

from __future__ import annotations

from dataclasses import replace

from gpuprof.diagnosis.diagnosis import Considered, Diagnosis, Finding
from gpuprof.timeline.unit_words import in_unit
from gpuprof.timeline.workload import Unit


def reworded(diagnosis: Diagnosis) -> Diagnosis:
    """The same with its sentences in the words of its workload; what to write into a program stays."""
    unit = diagnosis.unit
    if unit == "step":
        return diagnosis
    quality, verdict, combined = diagnosis.quality, diagnosis.verdict, diagnosis.combined
    issues = tuple(replace(one, message=in_unit(one.message, unit)) for one in quality.issues)
    return replace(
        diagnosis,
        quality=replace(quality, issues=issues),
        verdict=replace(
            verdict,
            summary=in_unit(verdict.summary, unit),
            doubts=tuple(in_unit(text, unit) for text in verdict.doubts),
        ),
        replay=replace(diagnosis.replay, reason=in_unit(diagnosis.replay.reason, unit)),
        findings=tuple(_finding(one, unit) for one in diagnosis.findings),
        combined=combined and replace(combined, titles=tuple(in_unit(title, unit) for title in combined.titles)),
        considered=tuple(_considered(one, unit) for one in diagnosis.considered),
        worth_trying=tuple(_finding(one, unit) for one in diagnosis.worth_trying),
    )


def _finding(one: Finding, unit: Unit) -> Finding:
    evidence = tuple(replace(found, text=in_unit(found.text, unit)) for found in one.evidence)
    changes = one.changes and in_unit(one.changes, unit)
    needs = one.needs and in_unit(one.needs, unit)
    return replace(one, title=in_unit(one.title, unit), evidence=evidence, changes=changes, needs=needs)


def _considered(one: Considered, unit: Unit) -> Considered:
    return replace(one, title=in_unit(one.title, unit), reason=in_unit(one.reason, unit))

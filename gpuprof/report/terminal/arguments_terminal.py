"""The iteration with other values of the trainer's arguments, as a screen of text."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gpuprof.diagnosis.iterations.with_arguments import PhaseChange, WithArguments
from gpuprof.report.names import escape
from gpuprof.report.numbers import duration, duration_range
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.report.words.fixes import times_range
from gpuprof.units import Cells, Convention
from gpuprof.value_range import Range

LABEL_WIDTH: Convention[Cells] = 20


def render(found: WithArguments) -> Group:
    """The iteration with other arguments, for a terminal."""
    asked = ", ".join(f"{name}={value}" for name, value in found.arguments.items())
    lines: list[Text | Padding] = [Text.assemble("with ", (escape(asked), "bold")), Text()]
    lines.append(_line("iteration", found.was_ns, found.iteration_ns, "bold"))
    if found.completions != 1.0:
        gain = times_range(found.speedup)
        lines.append(Text(f"{'':{LABEL_WIDTH}}{found.completions:g}× the completions; {gain} per completion"))
    lines += [_line(one.phase, one.ns, one.then) for one in found.phases if _is_seen(one, found.was_ns)]
    lines.append(Text())
    lines += [Padding(Text(escape(text)), (0, 0, 0, 2)) for text in found.basis]
    return Group(*lines)


def _is_seen(one: PhaseChange, whole_ns: int) -> bool:
    """Whether a phase may change by more than the least share that has an entry in a legend."""
    return max(abs(one.then.low - one.ns), abs(one.then.high - one.ns)) >= LEAST_LISTED * whole_ns


def _line(name: str, was_ns: int, then: Range, style: str = "") -> Text:
    text = f"{name:{LABEL_WIDTH}}{duration(was_ns)} → {duration(then.expected)}   {duration_range(then.low, then.high)}"
    return Text(text, style)

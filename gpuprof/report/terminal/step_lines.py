"""The step as bars in the terminal, with their legends."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.report import labels, stepbar
from gpuprof.report.lines import flow
from gpuprof.report.numbers import share
from gpuprof.report.words.brevity import Brevity
from gpuprof.units import Convention, Rows

MOST_DEVICES: Convention[Rows] = 8
SEEN = Brevity().least_part
"""Share below which a line that names several things leaves one out."""


def bar_title(diagnosis: Diagnosis) -> str:
    """Title of the bar of the GPU's time: that of an iteration's phases is called iteration."""
    return "GPU" if diagnosis.iteration is not None and diagnosis.iteration.steps == 1 else diagnosis.unit


def step_lines(diagnosis: Diagnosis, width: int, least_part: float = SEEN) -> list[Text]:
    """A bar for each device, and the meaning of its fills."""
    bars = step_parts.bars(diagnosis)
    if not bars:
        return []
    several = len(bars) > 1
    lines = []
    for bar in bars[:MOST_DEVICES]:
        name = f"GPU {bar.device}  " if several else ""
        lines.append(Text(f"{name:<7}" if several else "").append_text(_bar(bar, width - 7 * several)))
        lines += legend(bar, width, least_part)
    if len(bars) > MOST_DEVICES:
        lines.append(Text(f"and {len(bars) - MOST_DEVICES} more devices", "dim"))
    if not step_parts.estimated(diagnosis) and differs_from_recording(diagnosis):
        lines.append(Text("as recorded, under the profiler", "dim"))
    return lines


def differs_from_recording(diagnosis: Diagnosis) -> bool:
    """Whether the headline's step time differs from that of the recording."""
    steps = diagnosis.steps
    return steps is not None and (steps.unprofiled_ns is not None or steps.estimated_ns is not None)


def _bar(bar: Bar, width: int) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for part, n in zip(bar.parts, stepbar.cells(bar, width), strict=True):
        look = stepbar.paint(part)
        line.append(look.fill * n, look.terminal)
    return line


def legend(bar: Bar, width: int, least_part: float) -> list[Text]:
    """`█ compute 9 %  idle 90 %: ░ launch 72 %  ╱∙ other 3 %`, waiting on its own line where space is short.

    Each symbol of the bar is in it; small parts share an entry.
    """
    working, waiting = ([part for part in bar.parts if getattr(part, kind)] for kind in ("works", "idle"))
    neither = [part for part in bar.parts if not (part.works or part.idle)]
    work, rest, causes = (
        _entries(_drawn(parts, bar) or least, bar, least_part)
        for parts, least in ((working, working[:1]), (neither, []), (waiting, waiting[:1]))
    )
    if len(waiting) == 1 and waiting[0].key == step_parts.IDLE:
        return flow([*work, *causes, *rest], width)
    if causes:
        causes[0] = Text.assemble("idle ", (share(bar.idle_ns(), bar.total_ns), "bold"), ": ", causes[0])
    together = flow([*work, *rest, *causes], width)
    return together if len(together) == 1 else flow([*work, *rest], width) + flow(causes, width)


def _drawn(parts: Sequence[BarPart], bar: Bar) -> list[BarPart]:
    return [part for part in parts if part.ns >= stepbar.LEAST_LISTED * bar.total_ns]


def _entries(parts: Sequence[BarPart], bar: Bar, least_part: float) -> list[Text]:
    """An entry for each part, and one for all parts below a share of the step, if there are several."""
    small = [part for part in parts if part.ns < least_part * bar.total_ns]
    named = [part for part in parts if part not in small] if 1 < len(small) < len(parts) else list(parts)
    found = [_entry(part, bar) for part in named]
    if len(named) < len(parts):
        symbols = [(look.fill, look.terminal) for look in map(stepbar.paint, small)]
        ns = sum(part.ns for part in small)
        found.append(Text.assemble(*symbols, " other ", (share(ns, bar.total_ns), "bold")))
    return found


def _entry(part: BarPart, bar: Bar) -> Text:
    look = stepbar.paint(part)
    return Text.assemble((look.fill, look.terminal), f" {labels.part(part)} ", (share(part.ns, bar.total_ns), "bold"))

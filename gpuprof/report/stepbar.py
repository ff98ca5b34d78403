"""How the parts of a step look as a stacked bar, the same on a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.units import Convention, Share


@dataclass(frozen=True, slots=True)
class PartPaint:
    """How a part looks: its colour on a terminal and on a page, and a fill that is recognisable without colour."""

    terminal: str
    page: str
    fill: str


LEAST_LISTED: Convention[Share] = 0.005
"""Share of a bar below which a part is neither drawn nor in its legend."""

# Pages: around the palette of Okabe and Ito, distinguished under the common kinds of colour blindness; no other thing
# on a page has one of these colours (gpuprof.report.palette). Terminals: names
# of colours, so that the reader's theme decides; none that a light theme swallows. Work is filled, waiting is
# hatched.
PAINTS = {
    "compute": PartPaint("green", "#1c7f60", "█"),
    "communication": PartPaint("magenta", "#cc79a7", "▓"),
    "copy": PartPaint("blue", "#2b478f", "▒"),
    "launch": PartPaint("yellow", "#e69f00", "░"),
    "cpu_compute": PartPaint("bright_yellow", "#65734b", "▬"),
    "slow_call": PartPaint("magenta", "#9820e8", "◧"),
    "python": PartPaint("bright_blue", "#dccc60", "∙"),
    "sync": PartPaint("red", "#d55e00", "╱"),
    "input": PartPaint("cyan", "#56b4e9", "╲"),
    "transfer": PartPaint("blue", "#2b478f", "▚"),
    "allocator": PartPaint("bright_magenta", "#a5669c", "╳"),
    "profiler": PartPaint("bright_black", "#808891", "─"),
    "device": PartPaint("green", "#c9ae8a", "┄"),
    "unknown": PartPaint("bright_black", "#56595e", "?"),
    "worker_starts": PartPaint("bright_cyan", "#19224d", "◫"),
    "save": PartPaint("bright_red", "#b8502a", "▤"),
    "evaluation": PartPaint("bright_green", "#589c97", "▥"),
    "logging": PartPaint("bright_yellow", "#b8a13e", "▧"),
    "garbage_collection": PartPaint("white", "#6e2f10", "▨"),
    "periodic": PartPaint("bright_red", "#ff7f6b", "▩"),
    "new_shapes": PartPaint("magenta", "#c9417d", "▣"),
    "compile": PartPaint("bright_blue", "#4338ca", "▦"),
    "pauses": PartPaint("white", "#1b1825", "▪"),
    "variation": PartPaint("bright_black", "#c6ccd3", "≈"),
    "idle": PartPaint("bright_black", "#adb1b6", "░"),
}
WAITING_FOR_A_PEER = PartPaint("bright_magenta", "#e9bfd8", "∿")


def paint(part: BarPart) -> PartPaint:
    """The paint of a part; waiting for communication looks different from communication itself."""
    if part.idle and part.key == "communication":
        return WAITING_FOR_A_PEER
    return PAINTS.get(part.key, PAINTS["unknown"])


def cells(bar: Bar, width: int) -> list[int]:
    """Whole cells for each part, `width` in all, by largest remainder; listed parts get at least one cell, others
    none."""
    total = sum(part.ns for part in bar.parts)
    if not total:
        return [0] * len(bar.parts)
    listed = [i for i, part in enumerate(bar.parts) if part.ns >= LEAST_LISTED * total]
    whole = sum(bar.parts[i].ns for i in listed)
    given = [bar.parts[i].ns * width // whole if i in listed else 0 for i in range(len(bar.parts))]
    left = sorted(listed, key=lambda i: (-(bar.parts[i].ns * width % whole), i))
    for i in left[: width - sum(given)]:
        given[i] += 1
    for i in listed:
        most = max(range(len(given)), key=lambda j: given[j])
        if not given[i] and given[most] > 1:
            given[i], given[most] = 1, given[most] - 1
    return given

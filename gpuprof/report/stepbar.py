"""The step as a stacked bar: its parts, their order and colours, the same on a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.diagnosis import Device, DeviceEstimate, Diagnosis

IDLE = "idle"
LEAST_EXCESS = 0.005
"""Share of the mean step from which on a cause of excess is drawn."""


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of the bar: `key` names its colour, `idle` tells the causes of waiting from work."""

    key: str
    ns: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """How one device spends a step; the parts sum to `total_ns`."""

    device: int
    total_ns: int
    parts: tuple[Part, ...]

    def idle_ns(self) -> int:
        return sum(part.ns for part in self.parts if part.idle)


@dataclass(frozen=True, slots=True)
class Paint:
    """How a part looks: the colour on a terminal, the one on a page, and a fill that needs no colour."""

    terminal: str
    page: str
    fill: str


# Pages: around the palette of Okabe and Ito, distinguished under the common kinds of colour blindness; no other thing
# on a page has one of these colours (gpuprof.report.palette). Terminals: names
# of colours, so that the reader's theme decides; none that a light theme swallows. Work is filled, waiting is
# hatched.
PAINTS = {
    "compute": Paint("green", "#1c7f60", "█"),
    "communication": Paint("magenta", "#cc79a7", "▓"),
    "copy": Paint("blue", "#2b478f", "▒"),
    "launch": Paint("yellow", "#e69f00", "░"),
    "python": Paint("bright_blue", "#dccc60", "∙"),
    "sync": Paint("red", "#d55e00", "╱"),
    "input": Paint("cyan", "#56b4e9", "╲"),
    "transfer": Paint("blue", "#2b478f", "▚"),
    "allocator": Paint("bright_magenta", "#a5669c", "╳"),
    "profiler": Paint("bright_black", "#808891", "─"),
    "device": Paint("green", "#c9ae8a", "┄"),
    "unknown": Paint("bright_black", "#56595e", "?"),
    "save": Paint("bright_red", "#b8502a", "▤"),
    "evaluation": Paint("bright_green", "#589c97", "▥"),
    "logging": Paint("bright_yellow", "#b8a13e", "▧"),
    "garbage_collection": Paint("white", "#6e2f10", "▨"),
    "periodic": Paint("bright_red", "#ff7f6b", "▩"),
    "new_shapes": Paint("magenta", "#c9417d", "▣"),
    "compile": Paint("bright_blue", "#4338ca", "▦"),
    "idle": Paint("bright_black", "#adb1b6", "░"),
}
_WAITING_FOR_A_PEER = Paint("bright_magenta", "#e9bfd8", "∿")


def paint(part: Part) -> Paint:
    """Waiting for communication is not the communication itself, so it looks different."""
    if part.idle and part.key == "communication":
        return _WAITING_FOR_A_PEER
    return PAINTS.get(part.key, PAINTS["unknown"])


def estimated(diagnosis: Diagnosis) -> bool:
    """Whether the bars show the step without the profiler rather than as recorded."""
    return bool(diagnosis.devices_estimated)


def bars(diagnosis: Diagnosis) -> tuple[Bar, ...]:
    """One bar per device, of one step; idle is split by cause where the causes are known."""
    if diagnosis.devices_estimated:
        return tuple(_with_excess(_bar(d, d.step_ns), diagnosis.budget) for d in diagnosis.devices_estimated)
    steps = diagnosis.steps.count if diagnosis.steps else 1
    return tuple(_per_step(_bar(d, d.window_ns), steps) for d in diagnosis.devices)


def _per_step(bar: Bar, steps: int) -> Bar:
    """The mean of the steps that a bar is of. Rounding the running sum keeps the sum."""
    until = [0, *accumulate(part.ns for part in bar.parts)]
    at = [round(ns / steps) for ns in until]
    parts = (replace(part, ns=at[i + 1] - at[i]) for i, part in enumerate(bar.parts))
    return Bar(bar.device, round(bar.total_ns / steps), tuple(parts))


def _bar(device: Device | DeviceEstimate, total_ns: int) -> Bar:
    work = [
        Part("compute", device.compute_ns, False),
        Part("communication", device.communication_ns, False),
        Part("copy", device.copy_ns, False),
    ]
    waiting = [Part(c.cause, c.ns, True) for c in sorted(device.idle_by_cause, key=lambda c: -c.ns)]
    if sum(part.ns for part in waiting) != device.idle_ns:
        waiting = [Part(IDLE, device.idle_ns, True)]
    return Bar(device.device, total_ns, tuple(part for part in work + waiting if part.ns))


def _with_excess(bar: Bar, budget: Budget | None) -> Bar:
    """The mean step: the usual one, and what the causes add to it."""
    if budget is None or budget.source != "free":
        return bar
    least = LEAST_EXCESS * budget.mean_ns
    added = [Part(one.cause, one.mean_ns, True) for one in budget.excess if one.mean_ns and one.mean_ns >= least]
    if not added:
        return bar
    same = {part.key for part in added if part.key == "input"}
    waited = sum(part.ns for part in bar.parts if part.idle and part.key in same)
    parts = [part for part in bar.parts if not (part.idle and part.key in same)]
    more = [Part(part.key, part.ns + (waited if part.key == "input" else 0), True) for part in added]
    return Bar(bar.device, bar.total_ns + sum(part.ns for part in added), (*parts, *more))


def cells(bar: Bar, width: int) -> list[int]:
    """Whole cells for each part, `width` in all, by largest remainder."""
    total = sum(part.ns for part in bar.parts)
    if not total:
        return [0] * len(bar.parts)
    given = [part.ns * width // total for part in bar.parts]
    left = sorted(range(len(given)), key=lambda i: (-(bar.parts[i].ns * width % total), i))
    for i in left[: width - sum(given)]:
        given[i] += 1
    return given

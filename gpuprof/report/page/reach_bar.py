"""One bar of the step's reach and of what lies above it, by kind."""

from __future__ import annotations

from gpuprof.diagnosis.result.above_reach import AboveReach
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sentences import capital
from gpuprof.report import labels
from gpuprof.report.numbers import duration, share
from gpuprof.report.page.step_bars import DrawnBarPart, StepBar, stepbar_of
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.report.words import above_words

_KINDS = {
    "gpu": ("cause-device", "slow GPU work"),
    "host": ("cause-launch", labels.RESOURCES["host"]),
    "input": ("cause-input", labels.PARTS["input"]),
    "transfer": ("cause-transfer", labels.PARTS["transfer"]),
    "communication": ("cause-communication", labels.cause("communication")),
    "memory": ("cause-allocator", "to save memory"),
}
"""Kind of item → its colour, which is that of similar parts in the step's bar, and its label."""


def reach_bars(diagnosis: Diagnosis) -> list[StepBar]:
    """The bar, where something visible lies above the reach."""
    found = diagnosis.above_reach
    if found is None or not any(part[2] for part in _parts(found)[1:]):
        return []
    parts = _parts(found)
    total = max(sum(ns for _, _, ns in parts), 1)
    drawn = tuple(
        DrawnBarPart(
            key, label, 100 * ns / total, f"{duration(ns)}, {share(ns, total)}", False, ns >= LEAST_LISTED * total
        )
        for key, label, ns in parts
        if ns
    )
    lines = tuple(map(above_words.line, above_words.costs(diagnosis)))
    return [stepbar_of(capital(above_words.title(diagnosis)), drawn, _note(found), lines)]


def _parts(found: AboveReach) -> list[tuple[str, str, int]]:
    """(colour, label, ns) of the reach, of the kinds of items, largest first, and of what is not explained."""
    sums = dict.fromkeys(_KINDS, 0)
    unknown = 0
    for item in found.items:
        if item.reach_ns is None:
            unknown += max(item.ns, 0)
        else:
            sums[item.kind] += max(item.ns, 0)
    kinds = sorted(((*_KINDS[kind], ns) for kind, ns in sums.items()), key=lambda one: -one[2])
    rest = [
        ("cause-unknown", "reach not known", unknown),
        ("cause-variation", "not explained", max(found.residual_ns, 0)),
    ]
    return [("work-compute", "reach", found.reach_ns), *kinds, *rest]


def _note(found: AboveReach) -> str:
    if found.residual_ns < -LEAST_LISTED * found.usual_ns:
        return f"The replayed step is {duration(-found.residual_ns)} longer than the measured one."
    return ""

"""Gradients that are added to those that an optimizer has used already, and are cleared after that: nothing uses them.

A discriminator's gradients are so in the generator's pass, and the generator's in the discriminator's pass, where each
clears its own before its loss.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import nested_shapes
from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

UNMATCHED_SHAPES_SHARE: Assumed[Share] = 0.5
"""Smallest share of the discarded gradients with shapes that no optimizer updates; the others share their shape with
gradients that are used."""
Updates = list[tuple[int, Counter[Shape]]]
"""(start, shapes that it updates) of each optimizer's step."""
Flags = list[bool]
"""Per gradient of a pass."""


def stale_gradients(case: Analysis) -> list[Flags | None]:
    """Per backward pass of the window which of its gradients are so; None where none is, or where that is not
    certain. Computed once per case."""
    if "stale_gradients" not in case.memo:
        passes = backward_passes(case)
        updates = optimizer_updates(case)
        found = [_by_order(case, passes, at, updates) for at in range(len(passes))]
        case.memo["stale_gradients"] = _as_in_other_steps(case, passes, found)
    return case.memo["stale_gradients"]


def _as_in_other_steps(case: Analysis, passes: list[BackwardPass], found: list[Flags | None]) -> list[Flags | None]:
    """What comes before the first pass of the window, and after the last one, is not recorded: those are as the pass at
    the same place in another step. The last one also where something was found, as nothing confirms it."""
    count = len(passes) // case.steps
    if not count or len(passes) % case.steps:
        return [None] * len(passes)
    sure = {(at % count, *passes[at].shapes): flags for at, flags in enumerate(found[:-1]) if flags}
    known = [sure.get((at % count, *one.shapes)) for at, one in enumerate(passes)]
    ends = {at for at, one in enumerate(passes) if not at or _following(passes, at, set(one.shapes)) is None}
    return [known[at] if at in ends else flags for at, flags in enumerate(found)]


def optimizer_updates(case: Analysis) -> list[tuple[int, Counter[Shape]]]:
    """(start, shapes that it updates) of each optimizer's step, in order of time: tensors of a shape that ops of one
    name take in one place, in lists or one by one. Computed once per case."""
    if "optimizer_updates" not in case.memo:
        case.memo["optimizer_updates"] = _updates(case)
    return case.memo["optimizer_updates"]


def _updates(case: Analysis) -> list[tuple[int, Counter[Shape]]]:
    ops, (low, high) = case.trace.ops, case.timeline.window
    found = []
    named = case.ops_named(lambda name: name.startswith("aten::"))
    shapes_in_text = cache(lambda text: [Counter(shapes) for shapes in nested_shapes(case.trace.text(text))])
    ranges = case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP))
    for row in np.flatnonzero(ranges & (ops.start_ns >= low) & (ops.start_ns < high)).tolist():
        inside = named & (ops.thread == ops.thread[row])
        inside &= (ops.start_ns >= ops.start_ns[row]) & (ops.end_ns <= ops.end_ns[row])
        by_place: dict[tuple[int, int], Counter[Shape]] = {}
        calls = Counter(zip(ops.name[inside].tolist(), ops.dims[inside].tolist(), strict=True))
        for (name, dims), times in calls.items():
            for place, shapes_of in enumerate(shapes_in_text(dims)):
                updated = by_place.setdefault((name, place), Counter())
                for shape, count in shapes_of.items():
                    updated[shape] += count * times
        shapes: Counter[Shape] = Counter()
        for one in by_place.values():
            shapes |= one
        found.append((int(ops.start_ns[row]), shapes))
    return sorted(found, key=lambda one: one[0])


def _by_order(case: Analysis, passes: list[BackwardPass], at: int, updates: Updates) -> list[bool] | None:
    """Per gradient of a pass, whether it is stale; None if none is, or if that is not certain. A pass adds to just
    those gradients that the pass before has made, although an optimizer has used them since, and makes new ones for
    another optimizer's step; then all that it added to are made again. Not where that step shows that it updates
    tensors of most of these shapes."""
    following = _following(passes, at, set(passes[at].shapes))
    if not at or following is None:
        return None
    one, before = passes[at], passes[at - 1]
    added = Counter(shape for shape, fresh in zip(one.shapes, one.fresh, strict=True) if not fresh)
    if (
        not any(one.fresh)
        or added != (_made(before) or Counter(before.shapes))
        or not added <= _made(passes[following])
    ):
        return None
    times = [int(case.trace.ops.start_ns[passes[k].rows[0]]) for k in (at - 1, at, following)]
    if not (np.diff(np.searchsorted([start for start, _ in updates], times)) > 0).all():
        return None
    between = [shapes for start, shapes in updates if times[1] <= start < times[2]]
    clear = sum(number for shape, number in added.items() if not any(shape in shapes for shapes in between))
    if clear < UNMATCHED_SHAPES_SHARE * added.total():
        return None
    return [not fresh for fresh in one.fresh]


def _made(one: BackwardPass) -> Counter[Shape | None]:
    """Shapes of the gradients that a pass makes, and does not add to earlier ones."""
    return Counter(shape for shape, fresh in zip(one.shapes, one.fresh, strict=True) if fresh)


def _following(passes: list[BackwardPass], at: int, shapes: set[Shape | None]) -> int | None:
    """The next pass that makes gradients of one of these shapes."""
    return next((k for k in range(at + 1, len(passes)) if shapes & set(passes[k].shapes)), None)

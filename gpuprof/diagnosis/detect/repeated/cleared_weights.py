"""Gradients of weights that are cleared before an optimizer uses them, made on the way to gradients that are used.

A generator's loss goes through the discriminator to the generator. Autograd computes the gradients of both, the
generator's optimizer uses its own, and the others are cleared before the discriminator's next pass.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.small_op_loops import OPTIMIZER_STEP
from gpuprof.diagnosis.detect.repeated.discarded_gradients import (
    UNMATCHED_SHAPES_SHARE,
    Updates,
    count_updated,
    embedded,
    updates_of,
)
from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.diagnosis.detect.repeated.idle_weights import IdleWeights, work_for
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Entries

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_CLEARED: Assumed[Entries] = 4
"""Fewest such gradients of a pass: a network has more, a scale or a temperature that a loss learns fewer."""


def cleared_weights(case: Analysis) -> IdleWeights | None:
    """The work for these gradients; None if there are none. Computed once per case."""
    if "cleared_weights" not in case.memo:
        case.memo["cleared_weights"] = _find(case)
    return case.memo["cleared_weights"]


def _find(case: Analysis) -> IdleWeights | None:
    passes = backward_passes(case)
    if len(passes) <= case.steps or any(None in one.shapes for one in passes):
        return None
    updates, inputs = updates_of(case), embedded(case)
    begins = _optimizer_steps(case)
    flagged = [
        _by_order(case, passes, at, updates, begins) or _by_shapes(case, passes, at, updates, inputs)
        for at in range(len(passes))
    ]
    sure = {tuple(one.shapes): flags for one, flags in zip(passes, flagged, strict=True) if flags}
    pairs = []
    for at, one in enumerate(passes):
        # What follows the last pass of the window is not recorded: it is as after the same pass of an earlier step.
        flags = flagged[at] if _following(passes, at, set(one.shapes)) is not None else sure.get(tuple(one.shapes))
        if flags:
            pairs.append((one, flags))
    if not pairs:
        return None
    weights = Counter[Shape]()
    for one, flags in pairs:
        weights |= Counter(shape for shape, gone in zip(one.shapes, flags, strict=True) if gone and shape is not None)
    elements = sum(math.prod(shape) * count for shape, count in weights.items())
    return work_for(case, pairs, weights.total(), elements)


def _optimizer_steps(case: Analysis) -> I64:
    """When the window's optimizer steps begin, in order."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    ranges = case.ops_named(lambda name: name.startswith(OPTIMIZER_STEP))
    return np.sort(ops.start_ns[ranges & (ops.start_ns >= low) & (ops.start_ns < high)])


def _by_shapes(
    case: Analysis, passes: list[BackwardPass], at: int, updates: Updates, inputs: frozenset[Shape]
) -> list[bool] | None:
    """Per gradient of a pass, whether no optimizer updates a tensor of its shape before all of them are cleared; None
    if there are too few, or if the tensors of the optimizers are not known."""
    if not updates:
        return None
    one = passes[at]
    begun = int(case.trace.ops.start_ns[one.rows[0]])
    count = Counter(shape for shape in one.shapes if shape is not None)
    gone = {
        shape
        for shape, number in count.items()
        if shape not in inputs and not count_updated(case, passes, at, shape, number, updates, begun)
    }
    return _flags(one, [shape in gone for shape in one.shapes])


def _by_order(
    case: Analysis, passes: list[BackwardPass], at: int, updates: Updates, begins: I64
) -> list[bool] | None:
    """The same where a pass adds to just those gradients that the pass before has made, although an optimizer has used
    them since, and makes new ones for another optimizer's step; then all that it added to are made again. Not where
    that step shows that it updates tensors of most of these shapes."""
    following = _following(passes, at, set(passes[at].shapes))
    if not at or following is None:
        return None
    one, before = passes[at], passes[at - 1]
    added = Counter(shape for shape, fresh in zip(one.shapes, one.fresh, strict=True) if not fresh)
    if not any(one.fresh) or added != (_made(before) or Counter(before.shapes)) or not added <= _made(passes[following]):
        return None
    times = [int(case.trace.ops.start_ns[passes[k].rows[0]]) for k in (at - 1, at, following)]
    if not (np.diff(np.searchsorted(begins, times)) > 0).all():
        return None
    between = [shapes for start, shapes in updates if times[1] <= start < times[2]]
    clear = sum(number for shape, number in added.items() if not any(shape in shapes for shapes in between))
    if clear < UNMATCHED_SHAPES_SHARE * added.total():
        return None
    return _flags(one, [not fresh for fresh in one.fresh])


def _made(one: BackwardPass) -> Counter[Shape | None]:
    """Shapes of the gradients that a pass makes, and does not add to earlier ones."""
    return Counter(shape for shape, fresh in zip(one.shapes, one.fresh, strict=True) if fresh)


def _following(passes: list[BackwardPass], at: int, shapes: set[Shape | None]) -> int | None:
    """The next pass that makes gradients of one of these shapes."""
    return next((k for k in range(at + 1, len(passes)) if shapes & set(passes[k].shapes)), None)


def _flags(one: BackwardPass, gone: list[bool]) -> list[bool] | None:
    """The same without the end of the pass, which is not on the way to anything (`discarded_gradients`); None if too
    few are left."""
    last = max((place for place, is_gone in enumerate(gone) if not is_gone), default=-1)
    gone = [is_gone and place < last for place, is_gone in enumerate(gone)]
    return gone if sum(gone) >= FEWEST_CLEARED else None

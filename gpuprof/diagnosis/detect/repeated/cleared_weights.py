"""Gradients of weights that are cleared before an optimizer uses them, made on the way to gradients that are used.

A generator's loss goes through the discriminator to the generator. Autograd computes the gradients of both, the
generator's optimizer uses its own, and the others are cleared before the discriminator's next pass.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.repeated.discarded_gradients import count_updated, embedded
from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.diagnosis.detect.repeated.idle_weights import IdleWeights, work_for
from gpuprof.diagnosis.detect.repeated.stale_gradients import (
    Updates,
    as_in_other_steps,
    stale_gradients,
    updates_of,
)
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
    by_shapes = [_by_shapes(case, passes, at, updates, inputs) for at in range(len(passes))]
    shapes = as_in_other_steps(case, passes, by_shapes)
    pairs = []
    for one, *flags in zip(passes, stale_gradients(case), shapes, strict=True):
        gone = next((on_the_way for each in flags if each and (on_the_way := _on_the_way(each))), None)
        if gone:
            pairs.append((one, gone))
    if not pairs:
        return None
    weights = Counter[Shape]()
    for one, flags in pairs:
        weights |= Counter(shape for shape, gone in zip(one.shapes, flags, strict=True) if gone and shape is not None)
    elements = sum(math.prod(shape) * count for shape, count in weights.items())
    return work_for(case, pairs, weights.total(), elements)


def _by_shapes(
    case: Analysis, passes: list[BackwardPass], at: int, updates: Updates, inputs: frozenset[Shape]
) -> list[bool] | None:
    """Per gradient of a pass, whether no optimizer updates a tensor of its shape before all of them are cleared; None
    if there are none, or if the tensors of the optimizers are not known."""
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
    return [shape in gone for shape in one.shapes] if gone else None


def _on_the_way(gone: list[bool]) -> list[bool] | None:
    """The same without the end of the pass, which is not on the way to anything (`discarded_gradients`); None if too
    few are left."""
    last = max((place for place, is_gone in enumerate(gone) if not is_gone), default=-1)
    gone = [is_gone and place < last for place, is_gone in enumerate(gone)]
    return gone if sum(gone) >= FEWEST_CLEARED else None

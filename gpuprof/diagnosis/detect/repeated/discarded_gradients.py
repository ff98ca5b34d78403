"""The end of a backward pass that only computes gradients which are cleared before an optimizer uses them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.diagnosis.detect.repeated.stale_gradients import (
    UNMATCHED_SHAPES_SHARE,
    optimizer_updates,
    stale_gradients,
)
from gpuprof.replay.stretches import Stretches
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_NODES: Assumed[Ops] = 10
"""Fewest autograd nodes after the last gradient that is used: a part of a model has more, a layer's cast and lookup
fewer."""
IDLE = "idle_"
"""Beginning of the names of a run's facts about the weights whose gradients no optimizer uses."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Ends of backward passes whose gradients are not used."""

    stretches: Stretches
    gradients: float
    """Number of gradients that they make, per step."""
    weights: bool
    """Whether they are made more than once in a step, and so belong to weights; otherwise they belong to inputs, or to
    weights in no optimizer."""


def find_discarded(case: Analysis) -> Discarded | None:
    """What a backward pass computes after the last gradient that an optimizer uses, where the gradients made there are
    cleared before the next step of an optimizer that updates weights of their shapes. None where there is nothing."""
    passes = backward_passes(case)
    updates = optimizer_updates(case) if passes else []
    if not updates:
        return None
    inputs, trained = _embedded(case), _trained(case, len(updates))
    known = all(None not in one.shapes for one in passes)
    starts, ends, threads, count = [], [], [], 0
    ops, stale = case.trace.ops, stale_gradients(case)
    for at, one in enumerate(passes):
        cut = _end_of_use(case, passes, at, updates, inputs) if known else None
        if cut is None:
            cut = _end_of_fresh(one, stale[at])
        if cut is None and trained is not None:
            cut = _end_of_trained(one, trained)
        if cut is None:
            continue
        rest = one.rows[cut + 1 :]
        threads.append(int(ops.thread[rest[0]]))
        starts.append(int(ops.start_ns[rest[0]]))
        ends.append(int(ops.end_ns[rest].max()))
        count += int((one.sums > cut).sum())
    if not threads:
        return None
    stretches = Stretches(np.array(threads, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))
    return Discarded(stretches, count / case.steps, len(passes) > case.steps)


def _end_of_use(
    case: Analysis, passes: list[BackwardPass], at: int, updates: list[tuple[int, Counter[Shape]]],
    inputs: frozenset[Shape],
) -> int | None:  # fmt: skip
    """Position in a pass of the last sum into a gradient that may be used; None if what follows is too little to
    matter."""
    ops, one = case.trace.ops, passes[at]
    begun = int(ops.start_ns[one.rows[0]])
    made = [shape for shape in one.shapes if shape is not None]
    count = Counter(made)
    updated = {
        shape: 0 if shape in inputs else _updated(case, passes, at, shape, count[shape], updates, begun)
        for shape in count
    }
    used = [place for place, shape in zip(one.sums.tolist(), made, strict=True) if updated[shape] >= count[shape]]
    if not used:
        return None
    cut = max(used)
    gone = Counter(shape for place, shape in zip(one.sums.tolist(), made, strict=True) if place > cut)
    if not gone or len(one.rows) - cut - 1 < FEWEST_NODES:
        return None
    clear = sum(number for shape, number in gone.items() if not updated[shape])
    if clear < UNMATCHED_SHAPES_SHARE * gone.total() or any(gone[s] > count[s] - updated[s] for s in gone):
        return None
    return cut


def _end_of_fresh(one: BackwardPass, stale: list[bool] | None) -> int | None:
    """The same where all that follows is added to gradients that an optimizer has used already."""
    used = [place for place, gone in zip(one.sums.tolist(), stale or (), strict=False) if not gone]
    if not used or used[-1] == one.sums[-1] or len(one.rows) - used[-1] - 1 < FEWEST_NODES:
        return None
    return used[-1]


def _trained(case: Analysis, updates: int) -> int | None:
    """Number of tensors that a step's only optimizer updates, where these are all weights that get gradients; None if
    that is not known."""
    optimizer = (case.run.optimizer or {}) if case.run else {}
    tensors = int(optimizer.get("tensors") or 0)
    idle = [count for name, count in optimizer.items() if name.startswith(IDLE)]
    every = bool(idle) and not any(idle) and updates == case.steps
    return tensors if tensors and every else None


def _end_of_trained(one: BackwardPass, trained: int) -> int | None:
    """Position in a pass of the sum into the gradient of the last of `trained` weights, where more gradients follow: as
    no other weight gets one, they are of inputs, which come before all weights. None where the pass does not end in a
    longer way to them than there is between any two weights."""
    more = len(one.sums) - trained
    if more < 1 or trained < 2:
        return None
    steps = np.diff(one.sums)
    way = int(steps[trained - 1])
    return int(one.sums[trained - 1]) if way >= FEWEST_NODES and way > steps[: trained - 1].max() else None


def _updated(
    case: Analysis, passes: list[BackwardPass], at: int, shape: Shape, count: int,
    updates: list[tuple[int, Counter[Shape]]], begun: int,
) -> int:  # fmt: skip
    """Most gradients of a shape that one optimizer updates before all of them are cleared, from a pass on.

    `count` where gradients of a later pass are added to them, or where an optimizer's tensors are not known: torch
    records no lists of more than 30.
    """
    until = case.timeline.window[1]
    for later in passes[at + 1 :]:
        same = [fresh for one, fresh in zip(later.shapes, later.fresh, strict=True) if one == shape]
        if not same:
            continue
        if not all(same):
            return count
        until = int(case.trace.ops.start_ns[later.rows[0]])
        break
    between = [shapes for start, shapes in updates if begun <= start < until]
    every = {shape for shape in passes[at].shapes if shape is not None}
    if any(not every & set(shapes) for shapes in between):
        return count  # an optimizer whose tensors do not show
    return max((shapes[shape] for shapes in between), default=count)


def _embedded(case: Analysis) -> frozenset[Shape]:
    """Shapes of looked up rows: a gradient of such a shape is of an input, and not of a weight."""
    found = set()
    for dims in np.unique(case.trace.ops.dims[case.ops_named(lambda name: name == "aten::embedding")]):
        table, indices, *_ = [*shapes_in(case, int(dims)), None, None]
        if table and indices and len(table) == 2 and len(indices) >= 2:
            found.add((*indices, table[1]))
    return frozenset(found)

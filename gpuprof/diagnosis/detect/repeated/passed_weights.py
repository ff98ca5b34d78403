"""Gradients of weights through which a backward pass only passes: its loss trains others, and what it computes for
these is cleared before their own optimizer's step. A generator's loss goes back through the discriminator, an actor's
through its critics."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.repeated.gradient_sums import BackwardPass, Shape, backward_passes
from gpuprof.diagnosis.detect.repeated.idle_weights import GradientWork, work_for
from gpuprof.diagnosis.detect.repeated.stale_gradients import optimizer_updates, stale_gradients

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

_Signature = tuple[int, tuple[Shape | None, ...], tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class PassedWeights(GradientWork):
    """Work for gradients that another pass's optimizer clears unused."""

    tensors: int
    """Number of these weights in a pass."""
    elements: int
    """Number of single numbers in them."""


@dataclass(frozen=True, slots=True)
class _Moments:
    """A recording's backward passes and optimizers' steps."""

    begun: list[int]
    """When each pass begins, ns."""
    passes: list[BackwardPass]
    updates: list[tuple[int, Counter[Shape]]]
    """(start, shapes that it updates) of each optimizer's step; no shapes where they were not recorded."""

    def updates_between(self, start: int, end: int) -> list[Counter[Shape]]:
        return [shapes for moment, shapes in self.updates if start <= moment < end]

    def next_clearing(self, at: int, shapes: Counter[Shape]) -> int | None:
        """Start of the next pass with gradients of these shapes, if all of them are new there."""
        for start, later in zip(self.begun[at + 1 :], self.passes[at + 1 :], strict=True):
            if shapes <= _count(later, fresh=None):
                return start if shapes <= _count(later, fresh=True) else None
        return None


def passed_weights(case: Analysis) -> PassedWeights | None:
    """The work for gradients that are cleared before the optimizer of their weights steps, in passes after which
    another optimizer does. None if there are none, or if shapes do not decide. Computed once per case."""
    if "passed_weights" not in case.memo:
        case.memo["passed_weights"] = _find(case)
    return case.memo["passed_weights"]


def _find(case: Analysis) -> PassedWeights | None:
    passes, updates = backward_passes(case), optimizer_updates(case)
    if len(updates) < 2 or any(None in one.shapes for one in passes):
        return None
    moments = _Moments([int(case.trace.ops.start_ns[one.rows[0]]) for one in passes], passes, updates)
    # The last pass of a kind is followed by none that clears its gradients: those before it decide.
    found: dict[_Signature, list[bool]] = {}
    count = len(passes) // case.steps if len(passes) % case.steps == 0 else len(passes)
    for at, (one, stale) in enumerate(zip(passes, stale_gradients(case), strict=True)):
        mine = _added_to_used(moments, at) or _cleared(moments, at) or (_ahead(stale) if stale else None)
        if mine is not None:
            found[_signature(at % count, one)] = mine
    signed = [(one, _signature(at % count, one)) for at, one in enumerate(passes)]
    chosen = [(one, found[signature]) for one, signature in signed if signature in found]
    if not chosen:
        return None
    one, mine = chosen[-1]
    shapes = [shape for shape, gone in zip(one.shapes, mine, strict=True) if gone and shape is not None]
    return PassedWeights(*work_for(case, chosen), len(shapes), sum(map(math.prod, shapes)))


def _signature(place: int, one: BackwardPass) -> _Signature:
    """What a pass has in common with that at the same place of another step."""
    return place, tuple(one.shapes), tuple(one.fresh)


def _count(one: BackwardPass, fresh: bool | None) -> Counter[Shape]:
    """Shapes of the gradients of a pass: of the new ones, of those that are added to others, or (None) of all."""
    pairs = zip(one.shapes, one.fresh, strict=True)
    return Counter(shape for shape, new in pairs if shape is not None and fresh in (None, new))


def _added_to_used(moments: _Moments, at: int) -> list[bool] | None:
    """Gradients that are added to some of an earlier pass, of which an optimizer has made a step since; None if there
    are none that are cleared before it makes the next one."""
    one = moments.passes[at]
    mixed, new = _count(one, fresh=False), _count(one, fresh=True)
    if not mixed or not new:
        return None
    before = next((q for q in reversed(range(at)) if mixed <= _count(moments.passes[q], fresh=None)), None)
    cleared = moments.next_clearing(at, mixed)
    if before is None or cleared is None:
        return None
    used = moments.updates_between(moments.begun[before], moments.begun[at])
    if not any(mixed <= shapes for shapes in used):
        return None
    since = moments.updates_between(moments.begun[at], cleared)
    if not since or any((shapes - new) & mixed for shapes in since):
        return None
    return _ahead([not fresh for fresh in one.fresh])


def _cleared(moments: _Moments, at: int) -> list[bool] | None:
    """New gradients at the beginning of a pass that the following optimizers do not have; None if there are none, or
    if no other optimizer has them."""
    one = moments.passes[at]
    made = _count(one, fresh=True)
    start = moments.begun[at]
    following = moments.updates_between(start, (moments.begun[at + 1 :] or [start])[0])
    if not following or any(not shapes or not shapes <= made for shapes in following):
        return None
    updated: Counter[Shape] = Counter()
    for shapes in following:  # each optimizer has weights of its own
        updated += shapes
    idle = made - updated
    cleared = moments.next_clearing(at, idle) if idle else None
    if cleared is None or len(moments.updates_between(start, cleared)) != len(following):
        return None
    if not any(idle <= shapes for _, shapes in moments.updates):
        return None
    mine, left = [], Counter(idle)
    for shape in one.shapes:
        mine.append(shape is not None and left[shape] > 0)
        if shape is not None:
            left[shape] -= 1
    # Which of two weights of one shape is meant shows only where all of them come before the others.
    return mine if mine == sorted(mine, reverse=True) and all(one.fresh) else None


def _ahead(mine: list[bool]) -> list[bool] | None:
    """Those before the last gradient of another kind: what follows it is the end of the pass."""
    last = max(place for place, gone in enumerate(mine) if not gone)
    ahead = [gone and place < last for place, gone in enumerate(mine)]
    return ahead if any(ahead) else None

"""Penalties on a network's gradient by its pictures, in each step: a pass of autograd whose result is differentiated
again, as where a discriminator is kept smooth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.detect.repeated.repeated_backward import runs_of
from gpuprof.diagnosis.detect.repeated.repeated_derivatives import GraphPass, engine_nodes, made_by, passes_of_steps
from gpuprof.replay.stretches import Stretches
from gpuprof.timeline.phases import FORWARD
from gpuprof.units import Assumed, Elements, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_CHANNELS: Assumed[Elements] = 4
"""Most channels of a picture."""
SMALLEST_SIDE: Assumed[Elements] = 8
"""Shortest side of a picture; forces and derivatives of an equation are by a few coordinates."""
FEWEST_CALLS: Assumed[Ops] = 2
"""Fewest calls per step of a network whose gradient is only penalised: of real and of generated pictures. A network
that learns its gradient alone is called once."""
_CONVOLUTION, _BACKWARD = "aten::convolution", "aten::convolution_backward"


@dataclass(frozen=True, slots=True)
class GradientPenalties:
    """The work of penalties, without the network's forward pass."""

    work: Stretches
    """Passes for the gradient, and the derivatives of what they compute."""
    times: float
    """Number of such passes per step."""
    shape: tuple[int, ...]
    """Shape of the pictures by which the network is differentiated."""


def find_penalties(case: Analysis) -> GradientPenalties | None:
    """The penalties of a training; None where there are none, or where the network may learn its gradient."""
    if not len(case.timeline.host.differentiable):
        return None
    gone, times, shape = set[int](), 0, tuple[int, ...]()
    for passes in passes_of_steps(case):
        for at, one in enumerate(passes):
            found = _pictures(case, one) if any(one.made) and one.is_along_ones else None
            if found is None:
                continue
            times, shape = times + 1, found
            gone |= set(one.rows) | made_by(passes[at + 1 :], one)
    if not times:
        return None
    ops = case.trace.ops
    rows = np.flatnonzero(engine_nodes(case))
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    return GradientPenalties(runs_of(case, rows, np.isin(rows, list(gone))), times / case.steps, shape)


def _pictures(case: Analysis, one: GraphPass) -> tuple[int, ...] | None:
    """Shape of the pictures at which a pass ends, if the network's first layer is a convolution that is called for
    others, too."""
    ops = case.trace.ops
    start, end = int(ops.start_ns[one.rows[0]]), int(ops.end_ns[one.rows[-1]])
    inside = (ops.thread == ops.thread[one.rows[0]]) & (ops.start_ns >= start) & (ops.end_ns <= end)
    rows = np.flatnonzero(inside & case.ops_named(_BACKWARD.__eq__))
    if not len(rows):
        return None
    last = int(rows[np.argmax(ops.start_ns[rows])])
    _, pictures, weight, *_ = [*shapes_in(case, int(ops.dims[last])), None, None, None]
    if not pictures or not weight or len(pictures) < 4:
        return None
    if pictures[1] > MOST_CHANNELS or min(pictures[2:]) < SMALLEST_SIDE:
        return None
    ahead = np.flatnonzero(case.ops_named(_CONVOLUTION.__eq__) & (case.timeline.host.op == FORWARD))
    calls = sum(shapes_in(case, int(text))[1:2] == [weight] for text in ops.dims[ahead].tolist())
    return pictures if calls >= FEWEST_CALLS * case.steps else None

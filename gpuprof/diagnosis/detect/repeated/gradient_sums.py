"""The gradients that backward passes make, and whether each is added to one that exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, NO_TEXT

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
_SUM = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """A backward pass: rows of autograd's nodes in order of time, and what it adds to."""

    rows: I64
    sums: I64
    """Positions in `rows` of sums into gradients."""
    shapes: list[Shape | None]
    """Shapes of these gradients; None where they were not recorded."""
    fresh: list[bool]
    """Whether there was no gradient yet."""


def backward_passes(case: Analysis) -> list[BackwardPass]:
    """Backward passes of the window, in order of time; those whose gradients are differentiated again are left out.
    Computed once per case."""
    if "backward_passes" not in case.memo:
        case.memo["backward_passes"] = list(_passes(case))
    return case.memo["backward_passes"]


def _passes(case: Analysis) -> Iterator[BackwardPass]:
    ops, backward = case.trace.ops, case.timeline.host.backward
    low, high = case.timeline.window
    engine = np.flatnonzero(case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE)))
    engine = engine[np.argsort(ops.start_ns[engine], kind="stable")]
    sums = case.ops_named(lambda name: name == ACCUMULATE)
    inner = set(case.timeline.host.differentiable.start.tolist())
    calls = np.flatnonzero(case.ops_named(lambda name: name == _SUM))
    calls = calls[np.argsort(ops.start_ns[calls], kind="stable")]
    called, ran = ops.start_ns[calls], ops.start_ns[engine]
    adds = case.ops_within(case.ops_named(lambda name: name == _SUM)) & case.ops_named(
        lambda name: name in ("aten::add_", "aten::add")
    )
    added = np.sort(ops.start_ns[adds])
    for start, end in zip(backward.start.tolist(), backward.end.tolist(), strict=True):
        if start < low or end > high or start in inner:
            continue
        rows = engine[np.searchsorted(ran, start) : np.searchsorted(ran, end)]
        rows = rows[ops.end_ns[rows] <= end]
        if not len(rows) or len(np.unique(ops.thread[rows])) > 1:
            continue
        places = np.flatnonzero(sums[rows])
        first, last = ops.start_ns[rows[places]], ops.end_ns[rows[places]]
        call = np.append(calls, -1)[np.searchsorted(called, first)]
        texts = np.where((call >= 0) & (ops.end_ns[call] <= last), ops.dims[call], NO_TEXT).tolist()
        shapes = [one[0] if (one := shapes_in(case, text)) else None for text in texts]
        fresh = np.searchsorted(added, first) == np.searchsorted(added, last)
        yield BackwardPass(rows, places, shapes, fresh.tolist())

"""A loss that encodes its batch in parts: forward passes without gradients, and in the backward pass of the loss each
again with gradients, followed by a backward pass of its own (GradCache, and the cached losses of
sentence-transformers)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import launcher_of
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import ANNOTATION, AUTOGRAD_ENGINE, I64, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class InnerPasses:
    """Passes of each step, in two rounds: the first without gradients, the second inside the backward pass."""

    count: int
    """In each round of a step."""
    number: I64
    """Per node of the graph: its pass within its round, 0 to count − 1; -1 outside of both."""


@dataclass(frozen=True, slots=True)
class _StepPasses:
    """Beginnings of the passes of one step, ns, and where its rounds end."""

    first: I64
    second: I64
    thread: int
    """Of the second round."""
    begin_ns: int
    """Of the backward pass around the second round."""
    end_ns: int


def inner_passes(case: Analysis) -> InnerPasses | None:
    """The passes of a loss that encodes its batch in parts; None if there are none. The first module that is called
    shows them: it is called equally often in the forward pass and within one backward pass, and there autograd runs
    between its calls. Computed once per case."""
    if "inner_passes" not in case.memo:
        case.memo["inner_passes"] = _find(case)
    return case.memo["inner_passes"]


def _find(case: Analysis) -> InnerPasses | None:
    steps = [_of_step(case, *ends) for ends in zip(*(c.tolist() for c in _ends(case)), strict=True)]
    known = [one for one in steps if one is not None]
    counts = {len(one.first) for one in known}
    if not known or len(known) < len(steps) or len(counts) != 1:
        return None
    graph, low, main = case.graph, case.timeline.window[0], case.timeline.main_thread
    source = launcher_of(graph)
    node = np.where(source >= 0, source, np.arange(len(graph)))
    moment, lane = graph.recorded_start_ns[node] + low, graph.lane[node]
    number = np.full(len(graph), -1)
    for one in known:
        ahead = (lane == main) & (moment >= one.first[0]) & (moment < one.begin_ns)
        again = (lane == one.thread) & (moment >= one.second[0]) & (moment < one.end_ns)
        for mask, begins in ((ahead, one.first), (again, one.second)):
            number[mask] = np.searchsorted(begins, moment[mask], side="right") - 1
    return InnerPasses(counts.pop(), number)


def _ends(case: Analysis) -> tuple[I64, I64]:
    return case.timeline.steps.start_ns, case.timeline.steps.end_ns


def _of_step(case: Analysis, start: int, end: int) -> _StepPasses | None:
    ops, backward, main = case.trace.ops, case.timeline.host.backward, case.timeline.main_thread
    outer = _outermost(case) & (ops.start_ns >= start) & (ops.start_ns < end)
    rows = np.flatnonzero(outer)
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    ahead = rows[ops.thread[rows] == main]
    if not len(ahead):
        return None
    name = int(ops.name[ahead[0]])
    first = ops.start_ns[ahead[ops.name[ahead] == name]]
    for begin, over in zip(backward.start.tolist(), backward.end.tolist(), strict=True):
        inside = rows[(ops.start_ns[rows] >= begin) & (ops.end_ns[rows] <= over) & (ops.name[rows] == name)]
        threads = Counter(ops.thread[inside].tolist())
        if len(inside) != len(first) or len(inside) < 2 or len(threads) > 1 or begin < first[-1]:
            continue
        second, thread = ops.start_ns[inside], next(iter(threads))
        engine = ops.start_ns[case.ops_named(lambda text: text.startswith(AUTOGRAD_ENGINE)) & (ops.thread == thread)]
        engine = np.sort(engine)
        if (np.diff(np.searchsorted(engine, second)) > 0).all():
            return _StepPasses(first, second, thread, begin, over)
    return None


def _outermost(case: Analysis) -> Mask:
    """Ranges of modules that lie in no other."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    module = case.ops_named(lambda name: name.startswith(MODULE)) & (ops.kind == ANNOTATION)
    rows = np.flatnonzero(module)
    outer = np.zeros(len(ops), bool)
    outer[rows[climb(parent[rows], parent, module) < 0]] = True
    return outer

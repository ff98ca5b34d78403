"""Copies of the model on several GPUs of one process, made again in each step: torch.nn.DataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.timeline.gpu.gpu_concurrency import BUSY_SHARE
from gpuprof.timeline.intervals import join
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

_COPIES, _JOINS = "Broadcast", "Gather"
_OWN = frozenset((_COPIES, _JOINS, "Scatter", "ReduceAddCoalesced"))
"""Autograd functions of torch.nn.parallel, by their names in a recording."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """A model that is copied to the GPUs of one process; masks are over the graph's nodes."""

    gpus: int
    others: Mask
    """Work of all GPUs but the first, and CPU work of the threads that launch it."""
    exchange: Mask
    """Copies of weights to the other GPUs, of results and gradients back, and the CPU work for them."""
    blocked: Mask
    """Time of the main thread in which the threads of all replicas run, one after the other."""
    between: Mask
    """Time of the first GPU's thread from one step's passes to the next one's: it waits for work."""

    def changes(self) -> tuple[Change, Change, Change]:
        """A process with the work of the first GPU alone, at best, as expected and at worst."""
        gone = self.others | self.exchange

        def change(left: float) -> Change:
            def changed(graph: Graph) -> Graph:
                one = removed(without_waits(graph, gone & graph.waits), gone & ~graph.waits)
                return removed(scaled(one, self.blocked & ~gone, left), self.between & ~gone)

            return changed

        return change(1 / self.gpus), change(1 / self.gpus), change(1.0)


def find_replicas(case: Analysis) -> Replicas | None:
    """The replicas of a training; None where a model is not copied, or no other GPU works."""
    trace, graph, ops = case.trace, case.graph, case.trace.ops
    busy = [device.busy for device in case.timeline.devices]
    gpus = sum(one.total >= BUSY_SHARE * join(*busy).total for one in busy) if len(busy) > 1 else 0
    named = {name: case.ops_named(name.__eq__) & (ops.kind == OP) for name in (_COPIES, _JOINS)}
    if gpus < 2 or min(mask.sum() for mask in named.values()) < case.steps:
        return None
    device = np.append(trace.gpu.device, -1)[graph.gpu_row]
    launches = trace.calls.thread[graph.call] == case.timeline.main_thread
    mine = device[graph.on_gpu & (graph.call >= 0) & launches]
    if not len(mine):
        return None
    first = int(np.bincount(mine[mine >= 0]).argmax())
    other = graph.on_gpu & (device != first)
    for thread in np.unique(graph.lane[graph.lane >= 0]).tolist():
        launched = device[graph.on_gpu & (graph.call >= 0) & (trace.calls.thread[graph.call] == thread)]
        if thread != case.timeline.main_thread and len(launched) and 2 * (launched != first).sum() > len(launched):
            other |= graph.lane == thread
    backward = {f"{AUTOGRAD_ENGINE}{name}Backward" for name in _OWN}
    exchange = case.nodes_within(case.ops_named(lambda name: name in _OWN or name in backward)) & ~other
    joins = np.sort(ops.start_ns[named[_JOINS]])
    return Replicas(gpus, other, exchange, _blocked(case), _between(case, joins))


def _between(case: Analysis, joins: I64) -> Mask:
    """Nodes of other threads than the main one, outside of ops, in which results are joined. joins: when."""
    graph, ops, low = case.graph, case.trace.ops, case.timeline.window[0]
    outside = climb(graph.scope, case.timeline.nesting.parent, ops.kind == OP) < 0
    found = (graph.lane >= 0) & (graph.lane != case.timeline.main_thread) & outside & ~graph.waits
    begun, until = (np.searchsorted(joins - low, moment) for moment in
                    (graph.recorded_start_ns, graph.recorded_start_ns + graph.duration_ns))  # fmt: skip
    return found & (until > begun)


def _blocked(case: Analysis) -> Mask:
    """Nodes of the main thread outside of ops while other threads run the forward passes of replicas."""
    graph, ops, low = case.graph, case.trace.ops, case.timeline.window[0]
    main = case.timeline.main_thread
    rows = np.flatnonzero((ops.kind == OP) & (case.timeline.host.op == FORWARD) & (ops.thread != main))
    outside = climb(graph.scope, case.timeline.nesting.parent, ops.kind == OP) < 0
    found = (graph.lane == main) & outside & ~graph.waits
    if not len(rows):
        return found & False
    order = np.argsort(ops.start_ns[rows], kind="stable")
    starts, ends = ops.start_ns[rows[order]] - low, np.maximum.accumulate(ops.end_ns[rows[order]]) - low
    begun = graph.recorded_start_ns
    until = begun + graph.duration_ns
    after = np.searchsorted(starts, until, side="left") - 1
    return found & (after >= 0) & (ends[np.maximum(after, 0)] > begun)

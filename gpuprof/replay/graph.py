"""The graph of the recorded steps: host segments, waits, kernels and copies, and what each may not start before.

A node starts when all its edges allow, and lasts for its duration. **A wait is never work**: a node that waits has no
duration, its time follows from its edges; so every edge stays, whether it bound the recorded start or not: the one
that did not binds once something else gets faster.

Nodes are in an order in which every edge comes from an earlier node. An edge from a later node (or from the node
itself) means that node's previous round: the window is replayed as a loop, and what one round leaves running is what
the next one finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, I32, I64, U8, Mask
from gpuprof.units import Convention, Ns

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

RESOURCES = ("host", "input", "transfer", "communication", "device", "nothing")
"""What has to be faster for a node to be shorter; `nothing`: no resource of this machine (a wait, a pause)."""
HOST, INPUT, TRANSFER, COMMUNICATION, DEVICE, NOTHING = range(len(RESOURCES))

EDGES = ("lane", "handover", "launch", "stream", "event", "sync", "copy", "queue", "graph", "peer", "anchor")
"""Why a node may not start before another: host order in a thread, one thread waiting for another, a launch, order on a
stream, a stream waiting for an event, a synchronising call, a copy that blocks its caller, a full launch queue, order
within a CUDA graph, another rank, a recorded moment of work whose launch was not recorded."""
LANE, HANDOVER, LAUNCH, STREAM, EVENT, SYNC, COPY, QUEUE, GRAPH, PEER, ANCHOR = range(len(EDGES))

NEVER: Convention[Ns] = -1e18
"""A time before all others, ns."""
UNBOUND = -np.inf
"""Lag of an edge that no longer holds anything up."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Compressed rows: the edges into node n are `first[n]:first[n+1]`. A node starts at or after each edge's
    `end of source + lag` (or `start of source + lag` where `from_start`).

    Changes to a graph alter lags only: an edge that is taken away has the lag UNBOUND, so that all changed graphs share
    the other columns."""

    first: I64
    target: I64
    source: I64
    lag_ns: F64
    from_start: Mask
    kind: U8
    plain: Mask
    """Nodes that follow the node before them on their lane at once, and wait for nothing else: most of the host's.
    No change touches their edges."""

    def with_lags(self, lag_ns: F64) -> Edges:
        return replace(self, lag_ns=lag_ns)


def edges_of(nodes: int, target: I64, source: I64, lag_ns: F64, from_start: Mask, kind: U8) -> Edges:
    """Edges in any order, as compressed rows."""
    order = np.argsort(target, kind="stable")
    first = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=nodes), out=first[1:])
    target, source, kind = target[order], source[order], kind[order]
    lag_ns, from_start = lag_ns[order], from_start[order]
    alone = np.diff(first)[target] == 1
    plain = np.zeros(nodes, bool)
    plain[target[alone & (kind == LANE) & (source == target - 1) & (lag_ns == 0) & ~from_start]] = True
    return Edges(first, target, source, lag_ns, from_start, kind, plain)


@dataclass(frozen=True, slots=True)
class Graph:
    """One window as nodes (columns of one length, in an order that edges follow) and edges. Times are ns from the
    window's start; durations are float, because what-ifs divide them."""

    timeline: Timeline
    duration_ns: F64
    resource: U8
    edges: Edges
    before_ns: F64
    """When the node's previous round ended, for the round that was recorded; NEVER where there is none."""
    recorded_start_ns: F64
    recorded_end_ns: F64
    lane: I32
    """Host thread of a host node; -1 on GPU nodes."""
    scope: I64
    """Row of the innermost op or annotation that a host node is in, or that a GPU node was launched from; -1: none."""
    call: I64
    """Row of the call that a host node is in; -1: none, and on GPU nodes that of their launch."""
    gpu_row: I64
    """Row of the GPU event; -1 on host nodes."""
    waits: Mask
    """Host nodes that stand for the waiting part of a call, or of a thread that has handed over."""
    phase: U8
    """Index into PHASES: of the work itself."""
    step: I64
    """Which step (counted from 0) a node belongs to: the one whose host span it is in or was launched in."""
    step_end: I64
    """Per step the node whose end is the end of the step on the host."""
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Facts that depend on the nodes alone: the same for all graphs that differ only in durations and edges."""
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Facts that depend on the whole graph, each computed once."""

    def __len__(self) -> int:
        return len(self.duration_ns)

    @property
    def on_gpu(self) -> Mask:
        if "on_gpu" not in self.shared:
            self.shared["on_gpu"] = on_gpu = self.gpu_row >= 0
            on_gpu.flags.writeable = False
        return self.shared["on_gpu"]

    @property
    def steps(self) -> int:
        return len(self.step_end)

    def with_durations(self, duration_ns: F64) -> Graph:
        return replace(self, duration_ns=duration_ns)

    def with_edges(self, edges: Edges) -> Graph:
        return replace(self, edges=edges)


def gpu_nodes(graph: Graph) -> tuple[I64, I64]:
    """The GPU nodes, and the step of each."""
    if "gpu_nodes" not in graph.shared:
        nodes = np.flatnonzero(graph.on_gpu)
        graph.shared["gpu_nodes"] = nodes, graph.step[nodes]
    return graph.shared["gpu_nodes"]


@remembered
def launcher_of(graph: Graph) -> I64:
    """Per GPU node the host node that launches it; -1 where not recorded, and on host nodes."""
    source = np.full(len(graph), -1, np.int64)
    launches = graph.edges.kind == LAUNCH
    source[graph.edges.target[launches]] = graph.edges.source[launches]
    return source

"""CPU time above its reach: single slow calls, waiting for the GPU, copies that block, allocating, long Python."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.ledger_part import Cost, LedgerPart, Sampled
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.iterations.budget import iteration_budget
from gpuprof.diagnosis.reach.named_groups import by_name, largest_first, of_one_cause
from gpuprof.diagnosis.reach.sampled import sampled_in
from gpuprof.diagnosis.sampled.sampled_places import placed
from gpuprof.diagnosis.sentences import listed
from gpuprof.diagnosis.sentences import share as share_of
from gpuprof.diagnosis.verdict.estimate import host_causes
from gpuprof.record.phases.phase_names import PART_RANGE, RANGE, UNRECORDED_RANGE
from gpuprof.replay.graph import COPY, HOST, SYNC, Graph
from gpuprof.replay.transform import scaled, without_edges
from gpuprof.timeline.cpu.cpu_compute import FEWEST_ELEMENTS, launching
from gpuprof.timeline.cpu.runtime_calls import ALLOCATOR_CALL
from gpuprof.timeline.cpu.slow_calls import (
    ALLOCATES,
    COMPILES,
    KINDS,
    LOADS,
    LOCKS,
    PLANNING,
    UNKNOWN,
    slow_calls,
    within_slow,
)
from gpuprof.tracefile.trace import I64, Mask

COMPUTES = len(KINDS)
"""Kind of slow ops whose tensors are in host memory."""
_WHAT = {
    PLANNING: "planning in {}", LOADS: "loading code in {}", COMPILES: "compiling code",
    ALLOCATES: "allocating in {}", LOCKS: "waiting for a lock in {}", UNKNOWN: "{} takes the CPU unusually long",
}  # fmt: skip
_WHY = {
    PLANNING: "a library plans for shapes that are new to its thread",
    LOADS: "calls inside load code or ask for a kernel the first time",
    COMPILES: "it is generated for new shapes",
    ALLOCATES: "calls inside allocate or free memory",
    LOCKS: "another thread of the process runs ops at the same time",
}
_COSTS: dict[int, Cost] = {
    PLANNING: "planning", LOADS: "loading_code", COMPILES: "compiling", ALLOCATES: "allocating",
}  # fmt: skip


def slow_ops(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Ops whose CPU time is far above that of similar ops, by kind, and by name where the kind is not known."""
    found, trace, graph = slow_calls(case.timeline), case.trace, case.graph
    if not len(found):
        return
    kinds = np.where(_computing(case), COMPUTES, found.kind)
    host = (graph.lane >= 0) & ~graph.waits
    inside = np.append(within_slow(case.timeline), False)[graph.scope] & host
    left = np.ones(len(trace.ops) + 1)
    left[found.op] = np.minimum(found.usual_ns / np.maximum(found.own_ns, 1), 1.0)
    kind_of = np.full(len(trace.ops) + 1, UNKNOWN, np.int64)
    kind_of[found.op] = kinds
    for kind, rows in _kinds(kinds):
        if kind == COMPUTES:  # see `computing`
            continue
        if kind == COMPILES:
            covered = np.append(case.ops_within(_mask(len(trace.ops), found.op[rows])), False)[graph.scope] & host
            groups = [("generated code", covered)]
        else:
            nodes = (
                inside
                & (kind_of == kind)[graph.scope]
                & np.append(_mask(len(trace.ops), found.op[rows]), False)[graph.scope]
            )
            groups = by_name(case, nodes)
            groups = groups if kind == UNKNOWN else list(of_one_cause(case, groups))
        for name, nodes in groups:
            share = np.where(nodes, left[graph.scope], 1.0) if kind != COMPILES else np.where(nodes, 0.0, 1.0)
            own = float(graph.duration_ns[nodes].sum())
            yield LedgerPart(
                kind="host",
                what=_WHAT[kind].format(name),
                nodes=nodes,
                change=lambda graph, nodes=nodes, share=share: scaled(graph, nodes, share),
                reach=float((graph.duration_ns * share)[nodes].sum()) / own if own else 0.0,
                why=_WHY.get(kind),
                cost=_COSTS.get(kind),
            )


def computing(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Computing by the CPU on tensors in host memory: on the GPU, or in a worker, it would cost little."""
    graph, slow = case.graph, _mask(len(case.trace.ops), slow_calls(case.timeline).op[_computing(case)])
    in_slow = np.append(within_slow(case.timeline), False) & np.append(slow, False)
    nodes = (host_causes(graph) == CAUSES.index("cpu_compute")) | in_slow[graph.scope]
    nodes &= (graph.resource == HOST) & (graph.lane >= 0) & ~graph.waits
    if not nodes.any():
        return
    left = calibrated.MOVED_LEFT.value
    yield LedgerPart(
        kind="host",
        what="computing on the CPU, on tensors in host memory",
        nodes=nodes,
        change=lambda graph: scaled(graph, nodes, left),
        reach=left,
        why="these ops launch nothing; the GPU, or workers ahead of the step, could do them",
        cost="computing_on_cpu",
    )


def _computing(case: Analysis) -> Mask:
    """Mask of the slow calls that compute on tensors in host memory."""
    found = slow_calls(case.timeline)
    return (found.kind == UNKNOWN) & _on_host_tensors(case, found.op)


def _on_host_tensors(case: Analysis, rows: I64) -> Mask:
    """Mask of torch ops in which nothing launches although they have large tensors, which must be in host memory."""
    ops, strings = case.trace.ops, case.trace.strings
    large = [
        strings[int(ops.name[row])].startswith("aten::")
        and any(math.prod(shape) >= FEWEST_ELEMENTS for shape in shapes_in(case, int(ops.dims[row])) if shape)
        for row in rows.tolist()
    ]
    return ~launching(case.timeline)[rows] & np.array(large, bool)


def _kinds(kinds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for kind in np.unique(kinds).tolist():
        yield kind, np.flatnonzero(kinds == kind)


def _mask(size: int, rows: np.ndarray) -> Mask:
    mask = np.zeros(size, bool)
    mask[rows] = True
    return mask


def waits(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Synchronising calls: the CPU waits for the GPU, and the GPU then for the CPU."""
    graph = case.graph
    target = np.zeros(len(graph), bool)
    target[graph.edges.target[graph.edges.kind == SYNC]] = True
    allocating = case.nodes_in_calls(case.trace.rows_named(case.trace.calls.name, ALLOCATOR_CALL.search))
    nodes = target & graph.waits & ~allocating
    for name, mine in of_one_cause(case, by_name(case, nodes), waiting=True):
        yield LedgerPart(
            kind="host",
            what=f"waiting for the GPU in {name}",
            nodes=mine,
            change=lambda graph, mine=mine: _without(graph, mine, SYNC),
            why="the CPU reads a value or synchronises, and launches nothing meanwhile",
            cost="waiting_for_gpu",
        )


def blocking_copies(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Copies from or to pageable memory, which block the CPU until they are done."""
    graph = case.graph
    nodes = np.zeros(len(graph), bool)
    nodes[graph.edges.target[graph.edges.kind == COPY]] = True
    for name, mine in of_one_cause(case, by_name(case, nodes & graph.waits), waiting=True):
        yield LedgerPart(
            kind="transfer",
            what=f"copies that block the CPU in {name}",
            nodes=mine,
            change=lambda graph, mine=mine: _without(graph, mine, COPY),
            why="the memory is pageable, so the copy blocks the CPU",
            cost="blocking_copies",
        )


def _without(graph: Graph, nodes: Mask, kind: int) -> Graph:
    """The graph without waits of some nodes over edges of one kind."""
    return without_edges(graph, nodes[graph.edges.target] & (graph.edges.kind == kind))


def allocations(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Calls that allocate or free GPU memory in a steady step."""
    graph = case.graph
    nodes = case.nodes_in_calls(case.trace.rows_named(case.trace.calls.name, ALLOCATOR_CALL.search))
    if not nodes.any():
        return

    def change(graph: Graph) -> Graph:
        free = without_edges(graph, nodes[graph.edges.target] & (graph.edges.kind == SYNC))
        return scaled(free, nodes & ~graph.waits, 0.0)

    yield LedgerPart(
        kind="memory",
        what="allocating and freeing GPU memory",
        nodes=nodes & (graph.lane >= 0),
        change=change,
        why="it is fragmented, nearly full, or released in each step",
        cost="allocating",
    )


def python_stretches(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Long stretches of Python code outside ops and calls; their reach is the usual time between two ops."""
    graph = case.graph
    python = (host_causes(graph) == CAUSES.index("python")) & (graph.resource == HOST) & ~graph.waits
    pieces = graph.duration_ns[python]
    if not len(pieces):
        return
    nodes = python & (graph.duration_ns >= calibrated.STRETCH_NS.value)
    if not nodes.any():
        return
    usual, waiting = float(np.median(pieces)), _waiting_rewards(case)
    unsampled = "its functions were not sampled" if placed(case) is None else "no function has half of its samples"
    for name, mine in largest_first(case, by_name(case, nodes, "Python code between ops")):
        if name.startswith(UNRECORDED_RANGE):  # decode steps: their share of Python is unknown
            continue
        share = np.where(mine, usual / np.maximum(graph.duration_ns, usual), 1.0)
        sampled, on_cpu = sampled_in(case, mine), waiting.get(name)
        why = unsampled if sampled is None else _in_function(sampled)
        if on_cpu is not None:
            why = f"its thread uses the CPU for {share_of(on_cpu, 1)} of the time, so it waits for something else"
        yield LedgerPart(
            kind="host",
            what=_stretches(name) if on_cpu is None else f"the reward function {name.removeprefix(PART_RANGE)}",
            nodes=mine,
            change=lambda graph, mine=mine, share=share: scaled(graph, mine, share),
            reach=float((graph.duration_ns * share)[mine].sum() / max(float(graph.duration_ns[mine].sum()), 1.0)),
            why=why,
            cost="long_python" if on_cpu is None else None,
            sampled=sampled,
        )


def _waiting_rewards(case: Analysis) -> dict[str, float]:
    """Range of each reward function that mostly waits → share of its time for which its thread uses the CPU."""
    found = None if case.folder is None else iteration_budget(case.folder)
    rewards = () if found is None else found.rewards
    return {PART_RANGE + one.name: (one.cpu_ns or 0) / one.ns for one in rewards if one.waits}


def _stretches(name: str) -> str:
    """What stretches within a range are called; those in none are just Python code."""
    if name == "Python code between ops":
        return "long stretches of Python"
    return f"long stretches of Python in {name.removeprefix(PART_RANGE).replace(RANGE, 'the phase ')}"


def _in_function(sampled: Sampled) -> str:
    """`82 % of the samples there are in this function: 45 % in walk, 31 % in count and 5 % in sort`."""
    whole = f"{100 * sampled.share:.0f} % of the samples there are in this function"
    parts = [f"{100 * share:.0f} % in {name}" for name, share in sampled.parts]
    return f"{whole}: {listed(parts)}" if parts else whole

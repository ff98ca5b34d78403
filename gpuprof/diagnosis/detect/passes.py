"""Maps stretches of forward work to their backward work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency as calibrated
from gpuprof.costs.arguments import argument_shapes, parse
from gpuprof.replay.graph import COMMUNICATION
from gpuprof.replay.stretches import Stretches, place
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import ANNOTATION, AUTOGRAD_ENGINE, F64, I64, OP, Mask
from gpuprof.units import Assumed, Launches

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


FEWEST_LAUNCHES: Assumed[Launches] = 20
"""Fewest launches for an estimate of the usual one."""


def shapes_in(case: Analysis, text: int) -> list[tuple[int, ...] | None]:
    """Shapes of an op's arguments by position, from the id of the recorded text (see `argument_shapes`)."""
    known: dict[int, list[tuple[int, ...] | None]] = case.memo.setdefault("shapes_in", {})
    if text not in known:
        known[text] = argument_shapes(case.trace.text(text))
    return known[text][:]


def types_in(case: Analysis, row: int) -> tuple[str, ...]:
    """Types of an op's arguments by position, as the profiler names them; empty where they were not recorded."""
    known: dict[int, tuple[str, ...]] = case.memo.setdefault("types_in", {})
    text = int(case.trace.ops.types[row])
    if text not in known:
        known[text] = parse("", None, case.trace.text(text), None, None).types
    return known[text]


def like_before(case: Analysis, row: int, start_ns: int) -> int | None:
    """The op of a row's thread that ends before `start_ns` and begins last, if its first argument has the row's
    shape: a cast before a copy or a sort, for example."""
    ops = case.trace.ops
    rows, starts = _ops_in_order(case, int(ops.thread[row]))
    at = int(np.searchsorted(starts, start_ns, side="right")) - 1
    while at >= 0 and ops.end_ns[rows[at]] > start_ns:  # those around it
        at -= 1
    if at < 0:
        return None
    together = rows[np.searchsorted(starts, starts[at]) : at + 1]
    last = int(together[ops.end_ns[together] <= start_ns][0])
    first, own = (shapes_in(case, int(ops.dims[one]))[:1] for one in (last, row))
    return last if first == own else None


def _ops_in_order(case: Analysis, thread: int) -> tuple[I64, I64]:
    """(rows of a thread's ops in order of time, when each starts); found once for a case."""
    known: dict[int, tuple[I64, I64]] = case.memo.setdefault("ops_in_order", {})
    if thread not in known:
        ops = case.trace.ops
        rows = np.flatnonzero((ops.kind == OP) & (ops.thread == thread))
        rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
        known[thread] = rows, ops.start_ns[rows]
    return known[thread]


def differentiates_gradients(case: Analysis) -> bool:
    """Whether the program differentiates gradients (forces of a potential, a gradient penalty, derivatives of an
    equation): compiled code and fused kernels have no second derivatives."""
    return len(case.timeline.host.differentiable) > 0


def siblings(case: Analysis) -> tuple[I64, I64]:
    """(rows of the window's forward and recomputed ops, family of each): ops of one thread with the same parent op
    share a family and are in order of time; annotations do not count as parents. Found once for a case."""
    if "siblings" not in case.memo:
        case.memo["siblings"] = _siblings(case)
    return case.memo["siblings"]


def _siblings(case: Analysis) -> tuple[I64, I64]:
    ops, (low, high) = case.trace.ops, case.timeline.window
    nesting = case.timeline.nesting.parent
    ahead = np.isin(case.timeline.host.op, (FORWARD, RECOMPUTE)) & (ops.kind == OP)
    rows = np.flatnonzero(ahead & (ops.start_ns >= low) & (ops.start_ns < high))
    parent = climb(nesting, nesting, ops.kind != ANNOTATION)[rows]
    order = np.lexsort((ops.start_ns[rows], parent, ops.thread[rows]))
    rows, parent = rows[order], parent[order]
    changes = (np.diff(ops.thread[rows], prepend=-1) != 0) | (np.diff(parent, prepend=-2) != 0)
    family = np.cumsum(changes)
    rows.flags.writeable = family.flags.writeable = False
    return rows, family


def backward_of(case: Analysis, stretches: Stretches) -> Stretches:
    """Per stretch of forward work the stretch in which autograd's engine runs the backward of its ops; empty if none
    was recorded.

    Forward ops and the backward ops that they cause share a sequence number, counted per thread.
    """
    ops, (_, high) = case.trace.ops, case.timeline.window
    forward = np.flatnonzero((ops.kind == OP) & (ops.sequence >= 0) & (ops.forward_thread <= 0))
    where = place(stretches, ops.thread[forward].astype(np.int64), ops.start_ns[forward])
    forward, where = forward[where >= 0], where[where >= 0]
    least, most = np.full(len(stretches), np.iinfo(np.int64).max), np.full(len(stretches), -1)
    np.minimum.at(least, where, ops.sequence[forward])
    np.maximum.at(most, where, ops.sequence[forward])
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    rows = np.flatnonzero(engine & (ops.forward_thread > 0) & (ops.sequence >= 0) & (ops.start_ns < high))
    start, end = np.zeros(len(stretches), np.int64), np.zeros(len(stretches), np.int64)
    thread = np.full(len(stretches), -1, np.int64)
    for threads in _by_thread(case, stretches, rows):
        of, mine = threads
        known = np.flatnonzero((stretches.thread == of) & (most >= 0))
        if not len(known) or not len(mine):
            continue
        order = known[np.argsort(least[known])]
        at = np.searchsorted(least[order], ops.sequence[mine], side="right") - 1
        found = order[np.maximum(at, 0)]
        good = (at >= 0) & (ops.sequence[mine] <= most[found]) & (ops.start_ns[mine] > stretches.start_ns[found])
        own, found = mine[good], found[good]
        order = np.argsort(found, kind="stable")
        own, found = own[order], found[order]
        first = np.flatnonzero(np.diff(found, prepend=-1))
        if len(first):
            which = found[first]
            thread[which] = ops.thread[own[first]]
            start[which] = np.minimum.reduceat(ops.start_ns[own], first)
            end[which] = np.maximum.reduceat(ops.end_ns[own], first)
    return Stretches(thread, start, end)


def _by_thread(case: Analysis, stretches: Stretches, rows: I64) -> list[tuple[int, I64]]:
    """(CPU thread of a forward pass, its backward ops): the profiler's thread numbers are matched to threads by the
    sequence numbers that both have in common."""
    ops = case.trace.ops
    numbers = np.unique(ops.forward_thread[rows]).tolist()
    threads = np.unique(stretches.thread).tolist()
    if len(numbers) == 1 and len(threads) == 1:
        return [(threads[0], rows)]
    ahead = (ops.kind == OP) & (ops.sequence >= 0) & (ops.forward_thread <= 0)
    pairs = []
    for number in numbers:
        mine = rows[ops.forward_thread[rows] == number]
        shares = [np.isin(ops.sequence[mine], ops.sequence[ahead & (ops.thread == t)]).mean() for t in threads]
        if shares:
            pairs.append((threads[int(np.argmax(shares))], mine))
    return pairs


def shorter_walk(case: Analysis, backward: Stretches, left: F64) -> F64:
    """Factor per node of the graph, 1 for most, if of some stretches of backward work only these shares are left.

    Before autograd runs the first node of a backward pass it goes through the whole graph, on the thread that calls
    `backward`, and afterwards frees it: time that scales with the number of nodes.
    """
    ops, (low, high), graph = case.trace.ops, case.timeline.window, case.graph
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    rows = np.flatnonzero(engine & (ops.start_ns >= low) & (ops.start_ns < high))
    factor = np.ones(len(graph))
    if not len(rows):
        return factor
    where = place(backward, ops.thread[rows].astype(np.int64), ops.start_ns[rows])
    share = float(np.where(where >= 0, left[where], 1.0).mean())
    outside = climb(graph.scope, case.timeline.nesting.parent, ops.kind == OP) < 0
    callers = (graph.lane >= 0) & ~np.isin(graph.lane, np.unique(ops.thread[rows]))
    factor[outside & callers & ~graph.waits & (graph.phase == BACKWARD)] = share
    return factor


def without_recompute(case: Analysis, found: I64) -> I64:
    """The same without unrelated work in between: forward passes that checkpointing repeats, and collectives that
    exchange gradients during the backward pass."""
    other = (case.graph.phase == RECOMPUTE) | (case.graph.resource == COMMUNICATION)
    return np.where(other, -1, found)


def host_ns_per_launch(case: Analysis, excluded: Mask, like: Mask) -> float:
    """Median CPU time from one launch to the next, ns, on the thread with most of the nodes in `like`.

    excluded: nodes whose launches do not count. The median is used because the mean is dominated by a few long
    stretches without a launch (data, logging, first use)."""
    graph, calls = case.graph, case.trace.calls
    lanes = graph.lane[like & (graph.lane >= 0)]
    if not len(lanes):
        return calibrated.HOST_LAUNCH_NS.value
    lane = int(np.bincount(lanes).argmax())
    own = np.flatnonzero((graph.lane == lane) & ~graph.waits)
    work = np.flatnonzero(graph.on_gpu & (graph.call >= 0))
    work = work[calls.thread[graph.call[work]] == lane]
    total = np.append(0.0, np.cumsum(graph.duration_ns[own]))
    done = total[np.searchsorted(own, work)]
    each = np.diff(done)[~excluded[work[1:]]]
    each = each[each > 0]
    return float(np.median(each)) if len(each) >= FEWEST_LAUNCHES else calibrated.HOST_LAUNCH_NS.value

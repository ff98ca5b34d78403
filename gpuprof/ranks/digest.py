"""Makes the digest of one rank's timeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuprof.ranks.contraction import Contracted, contract
from gpuprof.ranks.digest_data import (
    BACKWARD,
    FORWARD,
    LOCAL,
    NO_ROW,
    OPTIMIZER,
    OTHER,
    Digest,
    Doing,
    Ints,
    Labels,
    Own,
    Ways,
)
from gpuprof.ranks.digest_data import Rows as DigestRows
from gpuprof.ranks.joint import replay_rows
from gpuprof.replay.graph import COMMUNICATION, Graph
from gpuprof.replay.simulate import simulate
from gpuprof.replay.split_collectives import estimate_transfers
from gpuprof.replay.unprofiled.host_pace import host_pace
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, without
from gpuprof.timeline.collectives.collectives import Collectives, find_collectives
from gpuprof.timeline.phases import PHASES
from gpuprof.tracefile.trace import GpuEvents

_WORK_OF_PHASE = np.full(len(PHASES), OTHER, np.uint8)
_WORK_OF_PHASE[[PHASES.index(name) for name in ("forward", "backward", "recompute", "optimizer")]] = (
    FORWARD, BACKWARD, BACKWARD, OPTIMIZER,
)  # fmt: skip


def digest_of(
    graph: Graph, source: str, rank: int | None, own: Own, doings: tuple[Doing, ...],
    notes: tuple[tuple[str, str], ...] = (),
) -> Digest:  # fmt: skip
    """The digest of a rank whose recording was built into `graph`. Only work queued before the recording has been
    carried over; waits for peers are still part of its collectives."""
    timeline = graph.timeline
    meta, low = timeline.trace.meta, timeline.window[0]
    found = find_collectives(timeline)
    points, marks, of_event = _points(graph, found)
    work = _WORK_OF_PHASE[graph.phase]
    recorded = contract(graph, points, marks, work)
    pace = host_pace(timeline)
    reduced = without(graph, recorded_events(graph).cost_ns(pace))
    unprofiled = contract(reduced, points, marks, work, graph.duration_ns)
    outside = np.setdiff1d(np.arange(len(found)), of_event[of_event >= 0])
    groups, dtypes = _named(found, found.columns.group), _named(found, found.columns.dtype)
    rows = _rows(graph, found, groups.of_row, dtypes.of_row, points, of_event, outside, recorded)
    return Digest(
        source=source,
        rank=meta.rank if meta.rank is not None else rank,
        world_size=meta.world_size,
        host=None,
        gpus=len(meta.gpus),
        gpu=meta.gpus[0].name if meta.gpus else None,
        clock_ns=meta.base_time_ns or 0,
        begin_ns=low,
        step_begin_ns=(timeline.steps.start_ns - low).astype(np.float64),
        looped=True,
        groups=groups.texts,
        dtypes=dtypes.texts,
        rows=rows,
        recorded=_ways(_padded(recorded.labels, len(outside))),
        unprofiled=_padded(unprofiled.labels, len(outside)),
        removed_ns=_more(unprofiled.other_ns - unprofiled.labels.lag_ns, len(outside), 0),
        host_pace=pace,
        fit=_fit(graph, points, recorded),
        own=own,
        doings=doings,
        notes=notes,
    )


def _points(graph: Graph, found: Collectives) -> tuple[Ints, Ints, Ints]:
    """(synchronisation points in order, which of them are marks, the collective of each or -1).
    Marks are the end of each step on the CPU and the last work of each stream in it: every path through a round of the
    window passes one.
    """
    gpu = graph.timeline.trace.gpu
    of_row = np.full(len(gpu) + 1, -1, np.int64)
    of_row[found.columns.row] = np.arange(len(found))
    # Work queued before the recording has no duration and no launch in the graph.
    launched = graph.on_gpu & (graph.resource == COMMUNICATION) & ((graph.call >= 0) | (graph.duration_ns > 0))
    collective = np.where(launched, of_row[graph.gpu_row], -1)
    nodes = np.flatnonzero(graph.on_gpu)
    stream = _stream_ids(gpu, graph.gpu_row[nodes])
    order = np.lexsort((nodes, graph.step[nodes], stream))
    last = np.ones(len(nodes), bool)
    if len(nodes):
        s, k = stream[order], graph.step[nodes][order]
        last[:-1] = (s[1:] != s[:-1]) | (k[1:] != k[:-1])
    ends = np.union1d(nodes[order][last], graph.step_end)
    points = np.union1d(np.flatnonzero(collective >= 0), ends)
    of_event = collective[points]
    return points, np.flatnonzero(of_event < 0), of_event


class _Names(NamedTuple):
    of_row: Ints
    texts: tuple[str, ...]


def _named(found: Collectives, column: Ints) -> _Names:
    """A column of texts, with the texts that it uses."""
    used, index = np.unique(column, return_inverse=True)
    return _Names(index.reshape(-1), tuple(found.texts[one] for one in used.tolist()))


def _rows(
    graph: Graph,
    found: Collectives,
    group: Ints,
    dtype: Ints,
    points: Ints,
    of_event: Ints,
    outside: Ints,
    contracted: Contracted,
) -> DigestRows:
    timeline, c = graph.timeline, found.columns
    low = timeline.window[0]
    at = np.concatenate([of_event, outside])
    shared = at >= 0
    inside = len(points)
    end = np.round(graph.recorded_end_ns[points]).astype(np.int64) + low
    start = np.round(graph.recorded_start_ns[points]).astype(np.int64) + low
    expected = np.append(estimate_transfers(timeline)[c.row], np.nan)

    def column(values: np.ndarray, mark: int) -> np.ndarray:
        return np.where(shared, np.append(values, 0)[at], mark)

    step = np.append(graph.step[points], np.full(len(outside), -1))
    return DigestRows(
        group=column(group, LOCAL).astype(np.int32),
        kind=np.where(shared, np.append(c.kind, 0)[at], np.append(_mark_kinds(graph, points), outside)).astype(
            np.int32
        ),
        dtype=column(dtype, 0).astype(np.int32),
        bytes=column(c.bytes, 0),
        size=column(c.group_size, 1),
        number=column(c.recorded_sequence, 0),
        step=step.astype(np.int32),
        start_ns=np.where(shared, np.append(c.start_ns, 0)[at], np.append(start, np.zeros(len(outside), np.int64))),
        end_ns=np.where(shared, np.append(c.end_ns, 0)[at], np.append(end, np.zeros(len(outside), np.int64))),
        expected_ns=expected[at].astype(np.float32),
        anchor_ns=np.append(contracted.anchor_ns, np.full(len(at) - inside, -np.inf)),
    )


def _mark_kinds(graph: Graph, points: Ints) -> Ints:
    """-1 for the end of a step on the CPU, -2 - k for the last work of the k-th stream in order of use."""
    gpu = graph.timeline.trace.gpu
    rows = graph.gpu_row[points]
    kinds = np.full(len(points), -1, np.int64)
    on_gpu = np.flatnonzero(rows >= 0)
    nodes = np.flatnonzero(graph.on_gpu)
    used = _stream_ids(gpu, graph.gpu_row[nodes])
    names, first = np.unique(used, return_index=True)
    place = np.empty(len(names), np.int64)
    place[np.argsort(first)] = np.arange(len(names))
    kinds[on_gpu] = -2 - place[np.searchsorted(names, _stream_ids(gpu, rows[on_gpu]))]
    return kinds


def _stream_ids(gpu: GpuEvents, rows: Ints) -> Ints:
    return gpu.device[rows].astype(np.int64) << 40 | (gpu.stream[rows] & (2**40 - 1))


def _ways(labels: Labels) -> Ways:
    return Ways(labels.pred, labels.lag_ns, labels.own_ns)


def _padded(labels: Labels, more: int) -> Labels:
    """Adds rows that are used only for matching: they depend on nothing."""
    return Labels(
        pred=_more(labels.pred, more, NO_ROW),
        lag_ns=_more(labels.lag_ns, more, 0),
        own_ns=_more(labels.own_ns, more, 0),
        shares=_more(labels.shares, more, 0),
        own_work=_more(labels.own_work, more, OTHER),
    )


def _more(values: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return np.concatenate([values, np.full((rows, *values.shape[1:]), fill, values.dtype)])


def _fit(graph: Graph, points: Ints, contracted: Contracted) -> float:
    """How far the digest's points end from those of the whole graph, replayed alone as recorded."""
    if not len(points):
        return 0.0
    labels = contracted.labels
    took = np.where(labels.own_ns > 0, 0.0, graph.duration_ns[points])
    _, end = replay_rows(labels, contracted.anchor_ns, took, graph.step[points], graph.steps)
    whole = simulate(graph).end_ns[points]
    low, high = graph.timeline.window
    return float(np.abs(end - whole).max() / max(high - low, 1))

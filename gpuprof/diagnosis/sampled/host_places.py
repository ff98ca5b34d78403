"""Maps samples of unprofiled steps to their places in the replayed steps.

Both go through the same parts: a batch is fetched, the model is called, a backward pass runs, the optimizer steps. The
recording has ranges around these, and the sampled steps have marks at the same moments. Between two marks, times are
mapped linearly. The share of samples around a moment with a function in their stack is that function's share of the CPU
time there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.replay.graph import Graph
from gpuprof.timeline.intervals import complement, union
from gpuprof.tracefile.run_folder.samples import HostSamples
from gpuprof.tracefile.trace import ANNOTATION, F64, I64, Mask
from gpuprof.units import Assumed, Entries, Ratio, Samples

SAMPLES_IN_BIN: Assumed[Samples] = 15
"""Samples per bin, at least on average."""
MOST_BINS: Assumed[Entries] = 400
ODD_STEP: Assumed[Ratio] = 2.0
"""A sampled step this many times as long as the usual step and as every replayed step contains other work."""
_STARTS = {"data": ("data", "data_end"), "backward": ("backward", "backward_end"), "forward": ("forward",),
           "optimizer": ("optimizer",)}  # fmt: skip
_DROPPED = ((), ("forward",), ("forward", "optimizer"), ("forward", "optimizer", "data", "data_end"))
"""Sets of marks to leave out, tried in order until both sides have the same marks."""


@dataclass(frozen=True, slots=True)
class Places:
    """Bins of the sampled step, and where each lies in the replayed ones."""

    bin_of: I64
    """Bin of each sample; -1: in a step that is unlike the recorded ones."""
    count: I64
    """Samples per bin."""
    part: tuple[str, ...]
    """Per bin the mark at the beginning of its part of the step: step, data, data_end, forward, …"""
    edges: F64
    """Ascending moments of the replayed round, ns: bins of the first step, of the second, …"""
    bin_at: I64
    """Per interval between two of `edges` its bin."""

    def shares(self, samples: I64) -> F64:
        """Per bin the share of these samples in it."""
        bins = self.bin_of[samples]
        found = np.bincount(bins[bins >= 0], minlength=len(self.count))
        return found / np.maximum(self.count, 1)

    def until(self, shares: F64, moments: F64) -> F64:
        """The integral of a share per bin over the replayed round, up to each moment, ns."""
        width = np.diff(self.edges)
        total = np.concatenate([[0.0], np.cumsum(width * shares[self.bin_at])])
        return np.interp(moments, self.edges, total)


@dataclass(frozen=True, slots=True)
class _Matched:
    """Sampled and recorded steps that go through the same parts."""

    names: tuple[str, ...]
    """The marks of a step, in order."""
    recorded: list[list[tuple[str, int]]]
    """Per recorded step its marks, ns from the window's start as recorded."""
    sampled: list[list[tuple[str, int]]]
    alike: set[int]
    """Sampled steps that have these marks."""


def _matched(case: Analysis, samples: HostSamples) -> _Matched | None:
    recorded, sampled = _recorded_marks(case), _sampled_marks(samples)
    for dropped in _DROPPED:
        ours = [[mark for mark in step if mark[0] not in dropped] for step in recorded]
        theirs = [[mark for mark in step if mark[0] not in dropped] for step in sampled]
        names = tuple(name for name, _ in ours[0])
        alike = {i for i, step in enumerate(theirs) if tuple(name for name, _ in step) == names}
        if all(tuple(name for name, _ in step) == names for step in ours) and len(alike) >= 0.5 * len(theirs):
            return _Matched(names, ours, theirs, alike)
    return None


def places(case: Analysis, samples: HostSamples) -> Places | None:
    """The samples' places; None if sampled and recorded steps have no parts in common, or without a main thread."""
    graph, schedule = case.graph, case.schedule
    main = np.flatnonzero(graph.lane == case.timeline.main_thread)
    found = _matched(case, samples) if len(main) and len(samples) else None
    if found is None:
        return None
    begun, ends = float(schedule.start_ns[main[0]]), schedule.step_end_ns
    bounds = np.concatenate([[begun], ends])
    began = graph.recorded_start_ns[main]
    rows = []
    for s, step in enumerate(found.recorded):
        k = np.searchsorted(began, [ns for _, ns in step], side="left").clip(0, len(main) - 1)
        moments = [float(bounds[s]), *schedule.start_ns[main[k]].tolist(), float(bounds[s + 1])]
        rows.append(np.maximum.accumulate(np.clip(moments, bounds[s], bounds[s + 1])))
    return _bins(samples, np.array(rows), found)


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """Samples by their place in the recorded steps."""

    _begins_ns: list[F64]
    """Per recorded step the beginnings of its parts, and its end, ns from the window's start."""
    _part: I64
    _way: F64

    def within(self, start_ns: int, end_ns: int) -> I64:
        """Indices of the samples at the place of an interval of the recording, ns from the window's start."""
        inside = np.zeros(len(self._part), bool)
        for begins in self._begins_ns:
            length = np.maximum(np.diff(begins), 1.0)
            low, high = ((ns - begins[:-1]) / length for ns in (start_ns, end_ns))
            for p in np.flatnonzero((high > 0) & (low < 1)).tolist():
                inside |= (self._part == p) & (self._way >= low[p]) & (self._way < high[p])
        return np.flatnonzero(inside)


def as_recorded(case: Analysis, samples: HostSamples) -> AsRecorded | None:
    """The samples placed in the recorded steps; None if sampled and recorded steps have no parts in common."""
    steps = case.timeline.steps
    found = _matched(case, samples) if len(samples) and len(steps.start_ns) else None
    if found is None:
        return None
    low = case.timeline.window[0]
    begins = [
        np.maximum.accumulate(np.array([start - low, *(ns for _, ns in marks), end - low], np.float64))
        for start, end, marks in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), found.recorded, strict=True)
    ]
    longest = float(max(each[-1] - each[0] for each in begins))
    return AsRecorded(begins, *_part_and_way(samples, found, longest))


def _part_and_way(samples: HostSamples, found: _Matched, longest_ns: float) -> tuple[I64, F64]:
    """(part of the step, position in that part from 0 to 1) per sample; part -1: in a step that is unlike the recorded
    ones. longest_ns: the longest recorded step."""
    lengths = np.diff(samples.steps_ns)
    odd = np.flatnonzero(lengths > ODD_STEP * max(float(np.median(lengths)), longest_ns)).tolist()
    step = (np.searchsorted(samples.steps_ns, samples.at_ns, side="right") - 1).clip(0, samples.steps - 1)
    part, way = np.full(len(samples), -1), np.zeros(len(samples))
    for i in found.alike - set(odd):
        mine = np.flatnonzero(step == i)
        at = np.array([samples.steps_ns[i], *(ns for _, ns in found.sampled[i]), samples.steps_ns[i + 1]], np.float64)
        p = (np.searchsorted(at, samples.at_ns[mine], side="right") - 1).clip(0, len(found.names))
        part[mine] = p
        way[mine] = (samples.at_ns[mine] - at[p]) / np.maximum(at[p + 1] - at[p], 1)
    return part, way


def _bins(samples: HostSamples, moments: F64, found: _Matched) -> Places:
    """The bins. moments: per replayed step the beginnings of its parts, and its end."""
    parts = ("step", *found.names)
    part, way = _part_and_way(samples, found, float((moments[:, -1] - moments[:, 0]).max()))
    in_part = np.bincount(part[part >= 0], minlength=len(parts))
    bins = (in_part // SAMPLES_IN_BIN).clip(1, MOST_BINS)
    first = np.concatenate([[0], np.cumsum(bins)])
    bin_of = np.where(part >= 0, first[part] + np.minimum((way * bins[part]).astype(np.int64), bins[part] - 1), -1)
    edges, bin_at = [float(moments[0, 0])], []
    for row in moments:
        for p in range(len(parts)):
            edges += np.linspace(row[p], row[p + 1], int(bins[p]) + 1)[1:].tolist()
            bin_at += range(int(first[p]), int(first[p + 1]))
    return Places(
        bin_of=bin_of,
        count=np.bincount(bin_of[bin_of >= 0], minlength=int(first[-1])),
        part=tuple(np.repeat(parts, bins).tolist()),
        edges=np.array(edges),
        bin_at=np.array(bin_at, np.int64),
    )


def _sampled_marks(samples: HostSamples) -> list[list[tuple[str, int]]]:
    found: list[list[tuple[str, int]]] = [[] for _ in range(samples.steps)]
    k = np.searchsorted(samples.steps_ns, [ns for _, ns in samples.marks], side="right") - 1
    for i, mark in zip(k.tolist(), samples.marks, strict=True):
        if 0 <= i < samples.steps:
            found[i].append(mark)
    return found


def _recorded_marks(case: Analysis) -> list[list[tuple[str, int]]]:
    """Per recorded step its ranges' begins and ends as marks, ns from the window's start as recorded."""
    trace, timeline = case.trace, case.timeline
    low, _ = timeline.window
    ops = trace.ops
    found: list[list[tuple[str, int]]] = [[] for _ in range(timeline.steps.end_ns.size)]
    for name, marks in _STARTS.items():
        rows = np.flatnonzero(
            trace.rows_named(ops.name, lambda text, wanted=name: text == wanted)
            & (ops.kind == ANNOTATION)
            & (ops.thread == timeline.main_thread)
        )
        for start, end in zip(ops.start_ns[rows].tolist(), ops.end_ns[rows].tolist(), strict=True):
            s = int(np.searchsorted(timeline.steps.end_ns, start, side="right"))
            if s < len(found) and start >= low:
                found[s] += zip(marks, (start - low, end - low))  # noqa: B905 - a mark may have a begin only
    return [sorted(step, key=lambda mark: mark[1]) for step in found]


def gpu_waits_until(graph: Graph, start_ns: F64, end_ns: F64, launched_by: I64, moments: F64) -> F64:
    """How long the GPU has waited for the CPU up to each moment of the replayed round, ns; of several devices, for the
    one that waits longest. launched_by: per node its launching node, -1 for none."""
    gpu = np.flatnonzero(graph.on_gpu)
    device = graph.timeline.trace.gpu.device[graph.gpu_row[gpu]]
    best = np.zeros(len(moments))
    for one in np.unique(device).tolist():
        nodes = gpu[device == one]
        mine = _until(nodes, start_ns, end_ns, launched_by, moments)
        best = mine if mine[-1] - mine[0] > best[-1] - best[0] else best
    return best


def _until(nodes: I64, start_ns: F64, end_ns: F64, launched_by: I64, moments: F64) -> F64:
    low, high = round(float(moments[0])), round(float(moments[-1]))
    start, end = np.round(start_ns[nodes]).astype(np.int64), np.round(end_ns[nodes]).astype(np.int64)
    turns = (-(high - low), 0, high - low)
    gaps = complement(
        union(np.concatenate([start + t for t in turns]), np.concatenate([end + t for t in turns])), low, high
    )
    order = np.argsort(start, kind="stable")
    k = np.searchsorted(start[order], gaps.end, side="left")
    known = k < len(order)
    launch = launched_by[nodes[order[np.minimum(k, len(order) - 1)]]]
    known &= launch >= 0
    until = np.where(known, end_ns[np.maximum(launch, 0)], gaps.end.astype(np.float64)).clip(gaps.start, gaps.end)
    times = np.stack([gaps.start.astype(np.float64), until], axis=1).ravel()
    waited = np.stack([np.zeros(len(until)), until - gaps.start], axis=1).ravel()
    return np.interp(moments, times, np.cumsum(waited)) if len(times) else np.zeros(len(moments))


def host_work(graph: Graph) -> Mask:
    """Nodes that are the CPU's own work."""
    return (graph.lane >= 0) & ~graph.waits & (graph.duration_ns > 0)

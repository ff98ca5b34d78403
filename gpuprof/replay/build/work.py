"""The window's GPU work in the order in which it was launched, with the piece of CPU time that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.replay.build.calls import ReplayCalls
from gpuprof.replay.build.cpu_lanes import Pieces
from gpuprof.replay.build.latencies import LATER_REASON_NS
from gpuprof.replay.graph import NEVER
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, I64, U8, Mask


@dataclass(frozen=True, slots=True)
class GpuWork:
    """GPU events as columns, in order of launch; times are ns from the window's start."""

    row: I64
    start_ns: F64
    end_ns: F64
    stream: I64
    """Index into `streams`."""
    streams: tuple[tuple[int, int], ...]
    """(device, stream) of each."""
    call: I64
    correlation: I64
    """The trace's number of the launch."""
    piece: I64
    """Piece at the end of the launching call; -1 if the launch was not recorded."""
    moment_ns: I64
    """Its moment in the order: the beginning of that piece; if the launch was not recorded, when the work began, as far
    as the launches before and after it on its stream allow."""
    kind: U8
    head: Mask
    """First work of its launch; the others are further nodes of a CUDA graph."""
    launcher: I64
    """The thread that launched it; -1 where that was not recorded."""
    launched_ns: F64
    """When the launch was done: the end of the call; NaN where not recorded."""
    previous: I64
    """The work before on the same stream, or -1."""
    carried_ns: F64
    """Per stream, when the work ends that was launched before the window; NEVER where there was none."""
    blocks: Mask
    """Copies that their caller waited for."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def free_ns(self) -> F64:
        """When the stream of each kernel or copy was free for it; NEVER if nothing came before."""
        return np.where(self.previous >= 0, self.end_ns[self.previous], self.carried_ns[self.stream])


def place_work(timeline: Timeline, pieces: Pieces, calls: ReplayCalls) -> GpuWork:
    """All work that belongs to the window."""
    trace, links, (low, _) = timeline.trace, timeline.links, timeline.window
    gpu = trace.gpu
    rows = timeline.members
    call = links.call[rows]
    piece = np.append(pieces.ending, -1)[call]  # without a call: the last
    begun = np.where(piece >= 0, pieces.start_ns[piece] if len(pieces) else 0, gpu.start_ns[rows] - low)
    queues = np.stack([gpu.device[rows], gpu.stream[rows]], axis=1)
    moment = _moments(begun, piece < 0, gpu.start_ns[rows] - low, queues)
    order = np.lexsort((gpu.start_ns[rows], moment))
    rows, call, piece, moment = rows[order], call[order], piece[order], moment[order]
    start = (gpu.start_ns[rows] - low).astype(np.float64)
    end = np.maximum((gpu.end_ns[rows] - low).astype(np.float64), start)
    pairs, stream = np.unique(np.stack([gpu.device[rows], gpu.stream[rows]], axis=1), axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    head = np.ones(len(rows), bool)
    _, first = np.unique(call[piece >= 0], return_index=True)
    head[piece >= 0] = False
    head[np.flatnonzero(piece >= 0)[first]] = True
    launched = np.where(piece >= 0, calls.end_ns[call] if len(calls) else np.nan, np.nan)
    blocks = (piece >= 0) & head
    if len(calls):
        # The call returns once the last piece is in the driver's own buffer: a little before the copy ends. A copy that
        # fits the buffer has then hardly begun, and blocks nothing.
        overlaps = launched - (gpu.start_ns[rows] - low) >= (gpu.end_ns[rows] - gpu.start_ns[rows]) / 2
        blocks &= calls.blocking_copy[call] & overlaps
    return GpuWork(
        row=rows, start_ns=start, end_ns=end, stream=stream, streams=tuple((int(d), int(s)) for d, s in pairs),
        call=call, correlation=gpu.correlation[rows], piece=piece, moment_ns=moment, kind=gpu.kind[rows], head=head,
        launched_ns=launched,
        launcher=np.where(piece >= 0, calls.thread[call] if len(calls) else -1, -1),
        previous=previous_of(stream), blocks=blocks,
        carried_ns=_carried(timeline, pairs, low, stream, start, launched),
    )  # fmt: skip


def _moments(begun: I64, lost: Mask, start: I64, stream: np.ndarray) -> I64:
    """The moments by which work is ordered; work whose launch was not recorded stays in the order of its stream."""
    moment = begun.copy()
    if not lost.any():
        return moment
    _, key = np.unique(stream, axis=0, return_inverse=True)
    key = key.reshape(-1)
    for one in np.unique(key[lost]).tolist():
        rows = np.flatnonzero(key == one)
        rows = rows[np.argsort(start[rows], kind="stable")]
        unknown = lost[rows]
        after = np.maximum.accumulate(np.where(unknown, np.iinfo(np.int64).min, begun[rows]))
        before = np.minimum.accumulate(np.where(unknown, np.iinfo(np.int64).max, begun[rows])[::-1])[::-1]
        # Work with equal moments is in the order in which it began.
        latest = np.where(before > after, before - 1, after)
        between = unknown & (after > np.iinfo(np.int64).min)
        moment[rows[between]] = np.clip(begun[rows], after, latest)[between]
        # Work that ran before any launch is what the previous round leaves running, see `carried_over`.
        queued = unknown & ~between & (before < np.iinfo(np.int64).max)
        moment[rows[queued]] = np.minimum(begun[rows], latest)[queued]
    return moment


def previous_of(key: I64) -> I64:
    """Index of the row before with the same key, or -1."""
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(np.diff(key[order]) == 0)
    previous = np.full(len(key), -1, np.int64)
    previous[order[same + 1]] = order[same]
    return previous


def _carried(timeline: Timeline, pairs: np.ndarray, low: int, stream: I64, start: F64, launched: F64) -> F64:
    """Per stream, when work from before the window ends. If none was recorded, but the device's first work in the
    window began long after its launch, there was some: recordings begin while a GPU works."""
    gpu, links = timeline.trace.gpu, timeline.links
    before = np.ones(len(gpu), bool)
    before[timeline.members] = False
    before &= np.minimum(gpu.start_ns, np.where(links.call >= 0, links.begun_ns, gpu.start_ns)) < low
    result = np.full(len(pairs), NEVER)
    devices = pairs[stream, 0] if len(stream) else stream
    earliest = {int(at[start[at].argmin()]) for d in np.unique(devices) for at in [np.flatnonzero(devices == d)]}
    for i, (device, number) in enumerate(pairs.tolist()):
        rows = before & (gpu.device == device) & (gpu.stream == number)
        first = np.flatnonzero(stream == i)[:1]
        if rows.any():
            result[i] = float(gpu.end_ns[rows].max() - low)
        elif len(first) and start[first[0]] - launched[first[0]] > LATER_REASON_NS and first[0] in earliest:
            result[i] = start[first[0]] - latency_calibrated.GAP_NS.value
    return result

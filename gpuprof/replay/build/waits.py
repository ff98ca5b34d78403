"""What waits for what: calls that synchronise, and streams that wait for events of other streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.replay.build.calls import ReplayCalls
from gpuprof.replay.build.cpu_lanes import Pieces
from gpuprof.replay.build.latencies import LATER_REASON_NS, usual
from gpuprof.replay.build.work import GpuWork
from gpuprof.tracefile.distinct import rows_by_value
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Code, Convention, Entries, WholeNs

SLACK_NS: Assumed[WholeNs] = 1_000
"""CPU and device clocks agree to about this, ns."""
LOOK_BACK: Assumed[Entries] = 16
"""Records of events that are tried, from the last backwards, to find the one that a stream waits for."""
_NO_STREAM: Convention[Code] = -2
"""Number of a stream on which nothing was launched."""


@dataclass(frozen=True, slots=True)
class SyncEdges:
    """Waits of CPU calls. Per edge: the piece that ends the call, the work waited for, and the lag of the return."""

    piece: I64
    source: I64
    """Index of the work; if it is not yet launched in this round, that of the previous round."""
    wrapped: np.ndarray
    lag_ns: F64
    own_of_piece: dict[int, float]
    """Own time of the call, ns, for pieces whose call waited."""


def sync_edges(pieces: Pieces, work: GpuWork, calls: ReplayCalls) -> SyncEdges:
    """The wait of each synchronising call for the last work launched before it on the device, stream or event that it
    waits for."""
    waits = calls.waits_device | calls.waits_stream | calls.waits_event
    # Without a piece of CPU time there is nothing that could wait.
    rows = np.flatnonzero(waits & calls.in_window & (pieces.ending >= 0))
    rows = rows[pieces.call[pieces.ending[rows]] == rows]
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    piece, begun, returned = pieces.ending[rows], calls.start_ns[rows], calls.end_ns[rows]
    stream, moment = _what_for(work, calls, rows)
    parts = []
    device = np.array([d for d, _ in work.streams] or [0])
    own_device = device[work.stream[_last_of_threads(work, calls.thread[rows], begun)]] if len(work) else None
    for s in range(len(work.streams)):
        mine = np.flatnonzero((stream == s) | ((stream == -1) & (own_device == device[s])))
        on_stream = work.stream == s
        target = _last_launched(work, on_stream, moment[mine])
        wrapped = target < 0
        last = np.flatnonzero(on_stream)[-1]
        ended = np.where(wrapped, work.carried_ns[s], work.end_ns[target])
        seen = ended <= returned[mine] + SLACK_NS  # else it was not what the call waited for
        parts.append((mine[seen], np.where(wrapped, last, target)[seen], wrapped[seen], ended[seen]))
    if not parts:
        none = np.empty(0, np.int64)
        return SyncEdges(none, none, none.astype(bool), none.astype(np.float64), {})
    at, source, wrapped, ended = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Of several streams the last to end is what the call waited for.
    latest = np.full(len(rows), -np.inf)
    np.maximum.at(latest, at, ended)
    waited = latest > begun
    clear = latest > begun + LATER_REASON_NS
    usual_return = usual(returned - latest, clear, latency_calibrated.RETURN_NS.value)
    own_ns = _own(calls.name[rows], returned - begun, waited)
    # Which of the two made the call as long as it was: its own work, or the wait.
    by_wait = np.isfinite(latest) & (returned - latest - usual_return <= returned - begun - own_ns)
    lag = np.where(by_wait, returned - latest, np.minimum(returned - latest, usual_return))
    lag = np.where(ended < latest[at], np.minimum(returned[at] - ended, usual_return), lag[at])
    own_ns = np.maximum(np.where(by_wait, np.minimum(own_ns, returned - begun), returned - begun), 0)
    return SyncEdges(
        piece[at], source, wrapped, np.maximum(lag, 0), dict(zip(piece.tolist(), own_ns.tolist(), strict=True))
    )


def _own(names: np.ndarray, took: F64, waited: np.ndarray) -> F64:
    """Usual time of each name's calls that find nothing to wait for, ns; without such calls that of the shortest."""
    own = np.empty(len(names))
    for name in np.unique(names).tolist():
        mine = names == name
        free = mine & ~waited
        own[mine] = np.median(took[free]) if free.any() else min(took[mine].min(), latency_calibrated.RETURN_NS.value)
    return own


def _what_for(work: GpuWork, calls: ReplayCalls, rows: I64) -> tuple[I64, F64]:
    """Per waiting call: the stream that it waits for (-1: all of the device), and the moment up to which work
    counts."""
    stream, moment = np.full(len(rows), -1, np.int64), calls.start_ns[rows]
    if not len(work):
        return stream, moment
    one = np.flatnonzero(~calls.waits_device[rows])
    current = _last_of_threads(work, calls.thread[rows[one]], moment[one])
    stream[one] = np.where(current >= 0, work.stream[current], -1)
    records = np.flatnonzero(calls.records)
    records = records[np.argsort(calls.start_ns[records], kind="stable")]
    for k in np.flatnonzero(calls.waits_event[rows]).tolist():
        same = records[calls.thread[records] == calls.thread[rows[k]]]
        before = np.searchsorted(calls.start_ns[same], calls.start_ns[rows[k]]) - 1
        if before >= 0:
            moment[k] = calls.start_ns[same[before]]
            stream[k] = work.stream[_last_of_threads(work, calls.thread[rows[k : k + 1]], moment[k : k + 1])[0]]
    known = calls.recorded
    if known:
        by_id = {pair: i for i, pair in enumerate(work.streams)}
        row_of = dict(zip(calls.correlation.tolist(), range(len(calls)), strict=True))
        device = {d for d, _ in work.streams}
        for k, correlation in enumerate(calls.correlation[rows].tolist()):
            if correlation not in known or calls.waits_device[rows[k]]:
                continue
            own, waited, record = known[correlation]
            waited = own if calls.waits_stream[rows[k]] else waited
            found = [by_id[d, waited] for d in device if (d, waited) in by_id]
            if waited >= 0:
                stream[k] = found[0] if len(found) == 1 else _NO_STREAM
            if calls.waits_event[rows[k]] and record in row_of:
                moment[k] = calls.start_ns[row_of[record]]
    return stream, moment


def event_edges(work: GpuWork, calls: ReplayCalls) -> tuple[I64, I64]:
    """(work that waits, work it waits for) of streams that wait for an event of another stream.

    Without CUPTI's records of it the waiting stream is that of the thread's next launch, and the event the last that
    was recorded where another stream had been launched on, and that the recording does not contradict; the latter also
    where CUPTI did not see the event being recorded, as between GPUs or by cudaEventRecordWithFlags.
    """
    waits = np.flatnonzero(calls.stream_waits & calls.in_window)
    if not len(waits) or len(work.streams) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    records = np.flatnonzero(calls.records & calls.in_window)
    records = records[np.argsort(calls.start_ns[records], kind="stable")]
    recorded = calls.start_ns[records]
    guess = _last_of_threads(work, calls.thread[records], recorded)
    known, row_of = calls.recorded, {}
    if known:
        row_of = dict(zip(calls.correlation.tolist(), range(len(calls)), strict=True))
    numbers = {s: i for i, (_, s) in enumerate(work.streams)}
    of_stream, of_launcher = rows_by_value(work.stream), rows_by_value(work.launcher)

    def launched_after(rows: I64 | None, t: float) -> int:
        """The first of some work that was launched after a time; -1: none."""
        later = np.empty(0, np.int64) if rows is None else rows[work.launched_ns[rows] > t]
        return int(later[0]) if len(later) else -1

    pairs = []
    for row in waits.tolist():
        t = float(calls.end_ns[row])
        own, other, record = known.get(int(calls.correlation[row]), (-1, -1, -1))
        source = -1
        if own >= 0:
            waiter = numbers.get(own, -1)
        else:
            following = launched_after(of_launcher.get(int(calls.thread[row])), t)
            waiter = int(work.stream[following]) if following >= 0 else -1
        target = launched_after(of_stream.get(waiter), t) if waiter >= 0 else -1
        if target < 0:
            continue
        begun = work.start_ns[target]
        if record in row_of and other in numbers:
            at = calls.start_ns[[row_of[record]]]
            source = int(_last_launched(work, work.stream == numbers[other], at)[0])
        elif other < 0:
            k = int(np.searchsorted(recorded, t)) - 1
            near = np.arange(max(k - LOOK_BACK, -1) + 1, k + 1)[::-1]
            others = calls.thread[records[near]] != calls.thread[row]  # a thread waits for its own events first
            for candidate in guess[near[np.argsort(others, kind="stable")]].tolist():
                # An event may have been recorded well before: a buffer's, when what read it last was launched.
                if candidate >= 0 and work.stream[candidate] != waiter and work.end_ns[candidate] <= begun:
                    source = candidate
                    break
        if 0 <= source < target and work.end_ns[source] <= begun:
            pairs.append((target, source))
    unique = sorted(set(pairs))
    return np.array([a for a, _ in unique], np.int64), np.array([b for _, b in unique], np.int64)


def _last_launched(work: GpuWork, where: Mask, t: F64) -> I64:
    """Of the work in the mask the last that was launched before each t, or -1."""
    rows = np.flatnonzero(where & (work.piece >= 0))
    k = np.searchsorted(work.launched_ns[rows], t, side="right") - 1
    found = np.full(len(t), -1, np.int64)
    found[k >= 0] = rows[k[k >= 0]]
    return found


def _last_of_threads(work: GpuWork, thread: np.ndarray, t: F64) -> I64:
    """The last work that each thread launched before t; where it launched none, the last of any thread."""
    found = _last_launched(work, np.ones(len(work), bool), t)
    for one in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == one)
        own = _last_launched(work, work.launcher == one, t[mine])
        found[mine[own >= 0]] = own[own >= 0]
    return found

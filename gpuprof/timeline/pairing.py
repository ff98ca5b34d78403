"""One program recorded twice: the times of Nsight Systems, which disturbs it less, with the ops of torch.profiler.

Both recorded the same kernels in the same order, so the n-th launch of a step in the one is the n-th in the other. The
calls that made those launches are the same moments of the program, and what lies between two of them is placed in
proportion. So every op of the trace finds its place in the export, whether it launches something or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, I64, KERNEL, NO_TEXT, OP, Ops, Trace
from gpuprof.units import Assumed, Share

LEAST_PAIRED: Assumed[Share] = 0.5
"""Smallest share of the export's launches that must be found in the other recording: with fewer it is of another
program."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """An export with the ops of another recording of the same program."""

    trace: Trace
    launches: int
    """Kernels and copies in the steps of the export."""
    in_order: int
    """Kernels of steps that both recorded alike, launch by launch."""
    by_name: int
    """Further kernels and copies matched as the n-th of their name in their step."""


def pair(timed: Timeline, named: Timeline) -> Pairing | None:
    """`timed`: of an export; `named`: of a trace of torch.profiler. None if they are not of one program."""
    numbers: dict[str, int] = {}
    own, others = (_sequences(timeline, numbers) for timeline in (timed, named))
    placed: list[_Placed] = []
    in_order = by_name = 0
    for step, mine in enumerate(own):
        if not others:
            break
        names = mine.names[mine.kernel]
        # The step of the same number first: two steps of one length may differ in what kernel names do not show.
        in_turn = [*others[step : step + 1], *others]
        alike = next((other for other in in_turn if np.array_equal(other.names[other.kernel], names)), None)
        other = alike or min(others, key=lambda other: abs(len(other.rows) - len(mine.rows)))
        at, to = _nth_of_name(mine.names, other.names)
        placed += _place(timed, named, (mine, step), other, mine.rows[at], other.rows[to])
        in_order += len(names) if alike else 0
        by_name += len(at) if alike is None else int((~mine.kernel[at]).sum())
    launches = sum(len(mine.rows) for mine in own)
    if not launches or in_order + by_name < LEAST_PAIRED * launches or not placed:
        return None
    trace = timed.trace
    strings, columns = _with_texts(trace, named.trace, placed)
    merged = {name: np.concatenate([getattr(trace.ops, name), column]) for name, column in columns.items()}
    found = replace(trace, strings=strings, ops=Ops(**merged), ops_from=named.trace.reading.path)
    return Pairing(found, launches, in_order, by_name)


@dataclass(frozen=True, slots=True)
class _StepWork:
    """The GPU work of a step in the order of its launches."""

    start_ns: int
    end_ns: int
    rows: I64
    names: I64
    """Kernel names as numbers common to both recordings."""
    kernel: np.ndarray
    """Mask of kernels, without copies and sets, of which a logging step has one more."""


def _sequences(timeline: Timeline, numbers: dict[str, int]) -> list[_StepWork]:
    trace, begun = timeline.trace, timeline.links.begun_ns
    name = np.array([numbers.setdefault(text, len(numbers)) for text in trace.strings], np.int64)
    rows = timeline.members[begun[timeline.members] != ABSENT]
    rows = rows[np.lexsort((trace.gpu.start_ns[rows], begun[rows]))]
    step = np.searchsorted(timeline.steps.end_ns, begun[rows], side="right")
    found = []
    for k in range(len(timeline.steps.end_ns)):
        mine = rows[step == k]
        start, end = int(timeline.steps.start_ns[k]), int(timeline.steps.end_ns[k])
        found.append(_StepWork(start, end, mine, name[trace.gpu.name[mine]], trace.gpu.kind[mine] == KERNEL))
    return found


def _nth_of_name(a: I64, b: I64) -> tuple[I64, I64]:
    """Indices into both of the n-th of each name that both have equally often: others cannot be distinguished."""
    counts = Counter(a.tolist())
    same = [name for name, n in Counter(b.tolist()).items() if counts[name] == n]
    order_a, order_b = (np.argsort(x, kind="stable") for x in (a, b))
    return order_a[np.isin(a[order_a], same)], order_b[np.isin(b[order_b], same)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Ops of the other recording on a thread of this one."""

    row: I64
    """Row of each op in the other recording; the times are on this recording's clock."""
    step: int
    """Step of this recording: a step of the other may serve several."""
    thread: int
    start_ns: I64
    end_ns: I64


def _place(
    timed: Timeline, named: Timeline, numbered: tuple[_StepWork, int], other: _StepWork, rows: I64, partners: I64
) -> list[_Placed]:
    """The ops of one step of the other recording, in one step of this one. `rows`, `partners`: GPU events of this and
    of the other that are the same."""
    found, (mine, step) = [], numbered
    ops = named.trace.ops
    both = (timed.links.call[rows] >= 0) & (named.links.call[partners] >= 0)
    here, there = timed.links.call[rows[both]], named.links.call[partners[both]]
    for thread in np.unique(named.trace.calls.thread[there]).tolist():
        on = named.trace.calls.thread[there] == thread
        track = int(np.bincount(timed.trace.calls.thread[here[on]]).argmax())
        on &= timed.trace.calls.thread[here] == track
        k = np.argsort(named.trace.calls.start_ns[there[on]], kind="stable")
        a, b = there[on][k], here[on][k]
        keep = _rising(timed.trace.calls.start_ns[b])
        a, b = a[keep], b[keep]
        theirs, ours = (
            np.stack([calls.start_ns[c], np.maximum(calls.end_ns[c], calls.start_ns[c])], axis=1).reshape(-1)
            for calls, c in ((named.trace.calls, a), (timed.trace.calls, b))
        )
        theirs = np.concatenate([[other.start_ns], theirs, [other.end_ns]])
        ours = np.concatenate([[mine.start_ns], ours, [mine.end_ns]])
        row = np.flatnonzero((ops.kind == OP) & (ops.thread == thread))
        row = row[(ops.start_ns[row] >= other.start_ns) & (ops.start_ns[row] < other.end_ns)]
        start, end = (_moved(times[row], theirs, ours) for times in (ops.start_ns, ops.end_ns))
        found.append(_Placed(row, step, track, start, np.maximum(end, start)))
    return found


def _moved(t: I64, there: I64, here: I64) -> I64:
    """Maps moments between marks in proportion; before the first and after the last mark at the overall pace."""
    there, here = np.maximum.accumulate(there), np.maximum.accumulate(here)
    origin_there, origin_here = int(there[0]), int(here[0])  # so that differences stay exact as floats
    x, y = (there - origin_there).astype(np.float64), (here - origin_here).astype(np.float64)
    wanted = (t - origin_there).astype(np.float64)
    pace = y[-1] / x[-1] if x[-1] > 0 else 1.0
    moved = np.interp(wanted, x, y)
    moved = np.where(wanted < 0, wanted * pace, np.where(wanted > x[-1], y[-1] + (wanted - x[-1]) * pace, moved))
    return np.round(moved).astype(np.int64) + origin_here


def _rising(values: I64) -> I64:
    """Indices of a longest increasing subsequence of the values: what both have in the same order."""
    if np.all(values[1:] > values[:-1]):
        return np.arange(len(values))
    tails: list[int] = []
    last: list[int] = []
    before = np.full(len(values), -1, np.int64)
    for i, value in enumerate(values.tolist()):
        k = bisect_left(tails, value)
        before[i] = last[k - 1] if k else -1
        tails[k : k + 1], last[k : k + 1] = [value], [i]
    found, i = [], last[-1] if last else -1
    while i >= 0:
        found.append(i)
        i = int(before[i])
    return np.array(found[::-1], np.int64)


_TEXTS = ("name", "dims", "types", "strides", "concrete", "stack", "extra")


def _apart(numbers: I64, step: I64) -> I64:
    """Numbers of ops that belong together, made distinct in every step; those below 0 mean unknown."""
    most = int(numbers.max(initial=0))
    return np.where(numbers >= 0, numbers + step * (most + 1), numbers)


def _with_texts(trace: Trace, other: Trace, placed: list[_Placed]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The strings of both, and the columns of the placed ops in them."""
    row = np.concatenate([one.row for one in placed])
    step = np.concatenate([np.full(len(one.row), one.step) for one in placed])
    columns: dict[str, np.ndarray] = {
        "kind": np.full(len(row), OP, np.uint8),
        "thread": np.concatenate([np.full(len(one.row), one.thread, np.int32) for one in placed]),
        "start_ns": np.concatenate([one.start_ns for one in placed]),
        "end_ns": np.concatenate([one.end_ns for one in placed]),
        "external": _apart(other.ops.external[row], step),
        "sequence": _apart(other.ops.sequence[row], step),
        "forward_thread": other.ops.forward_thread[row],
    }
    texts = {name: getattr(other.ops, name)[row] for name in _TEXTS}
    ids = np.full(len(other.strings) + 1, NO_TEXT, np.int32)
    strings, known = list(trace.strings), trace.string_ids
    for text_id in np.unique(np.concatenate(list(texts.values()))).tolist():
        if text_id != NO_TEXT:
            text = other.strings[text_id]
            ids[text_id] = known.get(text, len(strings))
            if ids[text_id] == len(strings):
                strings.append(text)
    return strings, columns | {name: ids[column] for name, column in texts.items()}

"""Ops whose own CPU time is far above that of similar ops: they plan, load code, compile, allocate or wait for a lock.

Launching takes microseconds. An op that takes milliseconds of CPU time does something else, and what it does is read
off what happens inside it, not off its name: calls that load code, calls that allocate, ops of another thread in the
same process meanwhile, or nothing at all in an op that launches GPU work, which is a library that plans. Waiting for
the GPU (a synchronisation, a copy that blocks, a full launch queue) is none of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.calibration import thresholds
from gpuprof.timeline.intervals import EMPTY, Intervals, clip, complement, join, union
from gpuprof.timeline.nesting import inside
from gpuprof.timeline.startup import COMPILING, LOADING
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, I64, OP, U8, Mask
from gpuprof.units import Assumed, Ops, Share, WholeNs

KINDS = ("planning", "loading", "compile", "allocator", "locking", "unknown")
"""What a slow op does: plans (silence in an op that launches work), loads code, compiles, allocates memory, waits while
another thread runs ops, or what is not known."""
PLANNING, LOADS, COMPILES, ALLOCATES, LOCKS, UNKNOWN = range(len(KINDS))

FEWEST_LIKE: Assumed[Ops] = 2
"""Fewest other ops of the same name whose median is the usual time; with fewer it is the calibrated time."""
SILENT_NS: Assumed[WholeNs] = calibrated.LEAST_NS.whole // 2
"""Shorter stretches, ns, are Python code between calls."""
NAMING_SHARE: Assumed[Share] = 0.5
"""Share of a slow op's own time that a kind of call must take to be what it does."""
OTHER_THREAD_SHARE: Assumed[Share] = 0.8
"""Share of it during which another thread must run ops, to be what it waits for."""

_SETS_UP = re.compile(r"^(cuda|hip|cu)(FuncGet|FuncSet|LibraryGet|ModuleGet|KernelGet|Occupancy|OccupancyMax)")
"""Calls that load a kernel's code when it is first requested."""
_ALLOCATES = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister|Mem(Alloc|Free|Create|Release|Map"
    r"|Unmap|SetAccess|AddressReserve|AddressFree))"
)
_WAITS = re.compile(
    r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)(Synchronize|WaitEvent)|^(cuda|hip|cu)(Ext|Module)*Launch"
    r"|^(cuda|hip|cu)(Memcpy|Memset|GraphLaunch)|^(nccl|rccl)"
)
"""Calls that may be long because they wait for the GPU, room in a queue, or another rank."""


@dataclass(frozen=True, slots=True)
class SlowCalls:
    """Slow ops (and ranges in which code is compiled), one row each."""

    op: I64
    """Row of the op."""
    own_ns: I64
    """CPU time in the op itself and in its calls that do not wait; ops inside it have their own."""
    usual_ns: F64
    """Usual time of a similar op, ns."""
    kind: U8
    """Index into KINDS."""
    whole: Mask
    """Whether all that lies in it belongs to it, as in a range in which code is compiled."""

    def __len__(self) -> int:
        return len(self.op)


@remembered
def slow_calls(timeline: Timeline) -> SlowCalls:
    """The slow ops of all threads in the analysed window, in order of their rows."""
    ops = timeline.trace.ops
    low, high = timeline.window
    inside_window = (ops.end_ns > low) & (ops.start_ns < high)
    compiling = timeline.trace.rows_named(ops.name, COMPILING.search) & inside_window
    outermost = np.flatnonzero(compiling & ~_has_ancestor(timeline, compiling))
    own, usual = _own_and_usual(timeline)
    slow = np.flatnonzero(
        inside_window
        & (ops.kind == OP)
        & (own >= calibrated.LEAST_NS.whole)
        & (own >= calibrated.TIMES_USUAL.value * usual)
    )
    if len(slow) and compiling.any():
        slow = slow[~inside(timeline.nesting, compiling)[slow]]
    found = [one for row in slow.tolist() if (one := _judged(timeline, row, float(usual[row]))) is not None]
    rows = [(row, int((ops.end_ns - ops.start_ns)[row]), 0.0, COMPILES, True) for row in outermost.tolist()]
    rows = sorted((*rows, *found))
    columns = list(zip(*rows, strict=True)) or [[] for _ in range(5)]
    types = (np.int64, np.int64, np.float64, np.uint8, bool)
    return SlowCalls(*(np.array(column, kind) for column, kind in zip(columns, types, strict=True)))


def _has_ancestor(timeline: Timeline, rows: Mask) -> Mask:
    """Ops that lie in one of the rows of a mask, other than themselves."""
    if not rows.any():
        return rows
    parent = timeline.nesting.parent
    within = np.append(inside(timeline.nesting, rows), False)
    return within[parent]


def _own_and_usual(timeline: Timeline) -> tuple[I64, F64]:
    """Per op its time without the ops inside it, and the usual time of such an op, ns: the median of the short ones of
    its name, else the calibrated time of an op that launches work."""
    ops, parent = timeline.trace.ops, timeline.nesting.parent
    whole = (ops.end_ns - ops.start_ns).clip(0)
    children = np.flatnonzero(parent >= 0)
    inner = np.bincount(parent[children], weights=whole[children], minlength=len(ops)).astype(np.int64)
    own = (whole - inner).clip(0)
    usual = np.full(len(ops), calibrated.USUAL_NS.value)
    launches = np.zeros(len(ops), bool)
    rows = timeline.links.op
    launches[rows[rows >= 0]] = True
    long = (own >= calibrated.LEAST_NS.whole) & (ops.kind == OP)
    for name in np.unique(ops.name[long]).tolist():
        mine = ops.name == name
        like = own[mine & ~long]
        if len(like) >= FEWEST_LIKE:
            usual[mine] = float(np.median(like))
        else:
            # Only library ops that launch work are known to take microseconds: others compute on the CPU, or run Python
            # code.
            library = "::" in timeline.trace.strings[name]
            usual[mine & ~launches | (mine if not library else False)] = np.inf
    return own, usual


def _judged(timeline: Timeline, row: int, usual_ns: float) -> tuple[int, int, float, int, bool] | None:
    """A slow op as a row of SlowCalls; None where it only waited."""
    trace = timeline.trace
    ops, calls = trace.ops, trace.calls
    thread, start, end = int(ops.thread[row]), int(ops.start_ns[row]), int(ops.end_ns[row])
    own = _outside(timeline, row)
    mine = np.flatnonzero((calls.thread == thread) & (calls.start_ns >= start) & (calls.end_ns <= end))
    names = [trace.strings[i] for i in calls.name[mine].tolist()]

    def spans(pattern: re.Pattern[str]) -> Intervals:
        rows = mine[[bool(pattern.search(name)) for name in names]] if len(mine) else mine
        return _common(own, union(calls.start_ns[rows], calls.end_ns[rows]))

    waits = spans(_WAITS).total
    own_ns = own.total - waits
    if own_ns < max(calibrated.LEAST_NS.whole, calibrated.TIMES_USUAL.value * usual_ns):
        return None
    silence = _less(own, union(calls.start_ns[mine], calls.end_ns[mine]))
    stretches = silence.end - silence.start
    silent = int(stretches[stretches >= SILENT_NS].sum())
    loads = join(spans(LOADING), spans(_SETS_UP)).total
    if loads >= NAMING_SHARE * own_ns:
        kind = LOADS
    elif spans(_ALLOCATES).total >= NAMING_SHARE * own_ns:
        kind = ALLOCATES
    elif silent < NAMING_SHARE * own_ns:
        return None  # many short stretches between its calls: Python code, not one thing that is slow
    elif _elsewhere(timeline, thread, silence) >= OTHER_THREAD_SHARE * silence.total:
        kind = LOCKS
    elif _plans(timeline, row, own_ns):
        kind = PLANNING
    else:
        kind = UNKNOWN
    return row, int(own_ns), usual_ns, kind, False


def _plans(timeline: Timeline, row: int, own_ns: int) -> bool:
    """Whether an op that is silent for long plans a kernel: it launches work itself, and none of its name and shapes
    was quick before it on its thread, as a plan is kept, by some libraries for each thread.

    If there are no similar ops, the recording does not show that such an op is usually short: then it counts only if it
    takes long.
    """
    ops = timeline.trace.ops
    if own_ns < thresholds.PLANNING_NS.whole or not _launches(timeline, row):
        return False
    mine = (ops.name == ops.name[row]) & (ops.thread == ops.thread[row])
    whole = ops.end_ns - ops.start_ns
    if (
        int(np.count_nonzero(mine & (whole < calibrated.LEAST_NS.whole))) < FEWEST_LIKE
        and own_ns < calibrated.LONG_PLANNING.value * thresholds.PLANNING_NS.whole
    ):
        return False
    if not any(letter.isdigit() for letter in timeline.trace.text(int(ops.dims[row])) or ""):
        return True  # its shapes were not recorded
    same = mine & (ops.dims == ops.dims[row])
    return not np.any(same & (ops.start_ns < ops.start_ns[row]) & (whole < calibrated.LEAST_NS.whole))


def _outside(timeline: Timeline, row: int) -> Intervals:
    """The stretches of an op in which no op inside it runs."""
    ops = timeline.trace.ops
    children = np.flatnonzero(timeline.nesting.parent == row)
    start, end = int(ops.start_ns[row]), int(ops.end_ns[row])
    return complement(clip(union(ops.start_ns[children], ops.end_ns[children]), start, end), start, end)


def _launches(timeline: Timeline, row: int) -> bool:
    """Whether an op launches work of the GPU itself."""
    return bool(np.any(timeline.links.op == row))


def _elsewhere(timeline: Timeline, thread: int, silence: Intervals) -> int:
    """Time of some stretches during which another thread of the process runs ops of its own, ns."""
    ops = timeline.trace.ops
    if not len(silence):
        return 0
    low, high = int(silence.start[0]), int(silence.end[-1])
    others = (ops.kind == OP) & (ops.thread != thread) & (ops.end_ns > low) & (ops.start_ns < high)
    return _common(silence, union(ops.start_ns[others], ops.end_ns[others])).total


def _common(one: Intervals, other: Intervals) -> Intervals:
    """What lies in both."""
    if not len(one) or not len(other):
        return EMPTY
    low, high = int(min(one.start[0], other.start[0])), int(max(one.end[-1], other.end[-1]))
    return _less(one, complement(other, low, high))


def _less(one: Intervals, other: Intervals) -> Intervals:
    """The first without what lies in the second."""
    if not len(one):
        return EMPTY
    low, high = int(one.start[0]), int(one.end[-1])
    return complement(join(complement(one, low, high), clip(other, low, high)), low, high)


def slow_spans(timeline: Timeline, thread: int) -> Intervals:
    """When a thread is in slow ops, except in the ops inside them."""
    found, ops = slow_calls(timeline), timeline.trace.ops
    rows = found.op[ops.thread[found.op] == thread]
    whole = found.whole[ops.thread[found.op] == thread]
    parts = [
        Intervals(ops.start_ns[[row]], ops.end_ns[[row]]) if all_of_it else _outside(timeline, row)
        for row, all_of_it in zip(rows.tolist(), whole.tolist(), strict=True)
    ]
    return union(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts])) if parts else EMPTY


def within_slow(timeline: Timeline, *, known: bool = False) -> Mask:
    """Rows of ops that are slow, or lie in a range in which code is compiled. `known`: only where what they do is
    known."""
    found = slow_calls(timeline)
    rows = np.zeros(len(timeline.trace.ops), bool)
    if not len(found):
        return rows
    asked = found.kind != UNKNOWN if known else np.ones(len(found), bool)
    rows[found.op[found.whole & asked]] = True
    rows = inside(timeline.nesting, rows)
    rows[found.op[asked]] = True
    return rows

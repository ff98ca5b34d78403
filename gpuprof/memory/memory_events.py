"""What holds a GPU's memory, from the memory events of a torch.profiler trace (profile_memory=True).

Such events have sizes and addresses, but neither stacks nor segments: the phase, the op and the module around each one
show what it is for, and memory allocated before the recording is one sum.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.memory.analyse import MOST_LINES, Case, device_report
from gpuprof.memory.lifetimes import allocations, in_use
from gpuprof.memory.memory_report import MemoryReport
from gpuprof.memory.owners import owners
from gpuprof.memory.passes import find_passes
from gpuprof.memory.snapshot import (
    ALLOC,
    FREE_REQUESTED,
    OTHER,
    Blocks,
    DeviceMemory,
    Events,
    Frame,
)
from gpuprof.memory.stacks import (
    ACTIVATIONS,
    BACKWARD,
    BEFORE_HISTORY,
    BY_LIFETIME,
    COMMUNICATION,
    FORWARD,
    GRADIENTS,
    INPUTS,
    LOGITS,
    OPTIMIZER,
    RECOMPUTE,
    UNKNOWN,
    Readings,
)
from gpuprof.memory.stacks import OTHER as OTHER_OWNER
from gpuprof.timeline import phases
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.source import Issue, Source
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, I32, I64, Trace
from gpuprof.units import Code, Published

CUDA: Published[Code] = 1
"""torch's number for the device type CUDA (c10/core/DeviceType.h)."""
_PHASES = {
    phases.FORWARD: FORWARD,
    phases.BACKWARD: BACKWARD,
    phases.RECOMPUTE: RECOMPUTE,
    phases.OPTIMIZER: OPTIMIZER,
}
_OWNERS = {FORWARD: ACTIVATIONS, RECOMPUTE: ACTIVATIONS, BACKWARD: BY_LIFETIME, OPTIMIZER: BY_LIFETIME}
_LOSS = re.compile(r"cross_entropy|log_softmax|nll_loss|(LogSoftmax|NllLoss|CrossEntropy)\w*Backward", re.IGNORECASE)


def analyse_trace(
    trace: Trace, path: str, size: int, lines: int = MOST_LINES, timeline: Timeline | None = None
) -> MemoryReport:
    """Peak, owners, steps and leaks of every GPU that a trace has memory events of.

    timeline: the trace's, if it was built already. Raises UnreadableTrace, one line, for a trace without any.
    """
    events = trace.memory
    usable = _usable(trace)
    if not usable.any():
        raise UnreadableTrace(
            f"{path} holds no memory events of a GPU: record with profile_memory=True, or gpuprof trace --memory"
        )
    timeline = timeline or build_timeline(trace)
    cases = []
    for device in np.unique(events.device[usable]).tolist():
        rows = np.flatnonzero(usable & (events.device == device))
        rows = rows[np.argsort(events.time_ns[rows], kind="stable")]
        cases.append(_case(trace, timeline, rows, device))
    devices = sorted((device_report(case, lines) for case in cases), key=lambda one: -one.peak.allocated_bytes)
    message = "a trace has no stacks of allocations: owners are read off phases and ops; a snapshot shows more"
    return MemoryReport(
        source=Source(path, "trace", size, int(usable.sum())),
        issues=(
            Issue("no_stacks", "info", message),
            *(issue for case in cases for issue in _disagreements(trace, case)),
        ),
        devices=tuple(devices),
    )


def has_events(trace: Trace) -> bool:
    """Whether a trace has memory events of a GPU."""
    return bool(_usable(trace).any())


def _usable(trace: Trace) -> np.ndarray:
    events = trace.memory
    return (events.device_type == CUDA) & (events.address != ABSENT) & (events.bytes != ABSENT)


def _case(trace: Trace, timeline: Timeline | None, rows: I64, device: int) -> Case:
    table = trace.memory
    stack, readings = _readings(trace, timeline, rows)
    size = table.bytes[rows]
    events = Events(
        action=np.where(size > 0, ALLOC, np.where(size < 0, FREE_REQUESTED, OTHER)).astype(np.int32),
        address=table.address[rows],
        size=np.abs(size),
        time_us=(table.time_ns[rows] - table.time_ns[rows[0]]) // 1000,
        stack=stack,
        device_free=np.zeros(len(rows), np.int64),
    )
    nothing = np.empty(0, np.int64)
    memory = DeviceMemory(device, events, Blocks(nothing, nothing, np.empty(0, bool), nothing.astype(np.int32)), None)
    found = allocations(memory)
    total = table.allocated_bytes[rows]
    # Memory allocated before the recording and not freed in it: the rest of the first event's total.
    before = int(total[0] - size[0]) - int(found.size[found.start < 0].sum()) if total[0] != ABSENT else 0
    if before > 0:
        unseen = Blocks(
            np.array([-1]), np.array([before]), np.zeros(1, bool), np.full(1, len(readings.place) - 1, np.int32)
        )
        memory = DeviceMemory(device, events, unseen, None)
        found = allocations(memory)
    passes = find_passes(events, readings)
    reserved = table.reserved_bytes[rows]
    held = None if (reserved == ABSENT).any() or not reserved.any() else np.concatenate([reserved[:1], reserved])
    return Case(
        memory, found, owners(found, readings, passes, events), passes, readings, in_use(found, len(events)), held
    )


def _readings(trace: Trace, timeline: Timeline | None, rows: I64) -> tuple[I32, Readings]:
    """For each event the number of what stands in for its stack (phase, op and module), and what each one says.

    The last one stands for what was allocated before.
    """
    phase, op, module = _around(trace, timeline, rows)
    keys, which = np.unique(np.stack([phase, op, module], axis=1), axis=0, return_inverse=True)
    names = [trace.text(int(op)) or "(no op)" for op in keys[:, 1]]
    of = [trace.text(int(module)) for module in keys[:, 2]]
    owner = [_owner(int(key), name) for key, name in zip(keys[:, 0], names, strict=True)]
    places = [Frame(module_class(text) if text else "", 0, name) for text, name in zip(of, names, strict=True)]
    count = len(keys) + 1
    known = [_PHASES.get(int(key), UNKNOWN) for key in keys[:, 0]]
    return which.ravel().astype(np.int32), Readings(
        phase=np.array([*known, UNKNOWN], np.int32),
        owner=np.array([*owner, BEFORE_HISTORY], np.int32),
        bare=np.zeros(count, bool),
        linear=np.array([*("linear" in name or "addmm" in name or name == "aten::mm" for name in names), False]),
        place=(*places, None),
    )


def _around(trace: Trace, timeline: Timeline | None, rows: I64) -> tuple[I32, I32, I32]:
    """Phase, name of the outermost op, and module of each event; strings by number, -1 for none."""
    thread, t = trace.memory.thread[rows], trace.memory.time_ns[rows]
    none = np.full(len(rows), -1, np.int32)
    if timeline is None:
        return np.full(len(rows), phases.OTHER, np.int32), none, none
    parent, ops = timeline.nesting.parent, trace.ops
    op = timeline.nesting.innermost(thread, t)
    phase = timeline.host.at(thread, t).astype(np.int32)
    inside = op >= 0
    phase[inside] = timeline.host.op[op[inside]]
    outer = climb(op, parent, (parent < 0) | (ops.kind[parent] == ANNOTATION))
    name = np.where(outer >= 0, ops.name[outer], -1).astype(np.int32)
    return phase, name, FrameIndex(trace, timeline.nesting).module(thread, t, op).astype(np.int32)


def _owner(phase: int, name: str) -> int:
    if phase == phases.COMMUNICATION:
        return COMMUNICATION
    if phase == phases.DATA:
        return INPUTS
    if _LOSS.search(name):
        return LOGITS
    if "AccumulateGrad" in name:
        return GRADIENTS
    return _OWNERS.get(_PHASES.get(phase, UNKNOWN), OTHER_OWNER)


def _disagreements(trace: Trace, case: Case) -> list[Issue]:
    """An issue if the events do not add up to the totals that they carry: some were lost."""
    table = trace.memory
    rows = np.flatnonzero((table.device_type == CUDA) & (table.device == case.memory.device))
    rows = rows[(table.address[rows] != ABSENT) & (table.bytes[rows] != ABSENT)]
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    total, used, time = table.allocated_bytes[rows], case.used[1:], table.time_ns[rows]
    known = np.flatnonzero(total != ABSENT)
    if not len(known):
        return []
    # The order of events with the same time is unknown: one of them is the last, whose total is theirs together.
    moments, moment = np.unique(time[known], return_inverse=True)
    together = used[np.searchsorted(time, moments, side="right") - 1]
    missed = np.full(len(moments), np.iinfo(np.int64).max)
    np.minimum.at(missed, moment, np.abs(total[known] - together[moment]))
    wrong = int(missed.max())
    if not wrong:
        return []
    message = f"GPU {case.memory.device}: the events miss the allocator's own totals by up to {wrong / 2**20:,.1f} MiB"
    return [Issue("totals_disagree", "warning", message)]

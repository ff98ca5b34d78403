"""From a memory snapshot to its report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.memory.leaks import growing
from gpuprof.memory.lifetimes import UNRECORDED_START, Allocations, allocations, in_use, reserved
from gpuprof.memory.memory_report import (
    UNUSED,
    Failure,
    HistorySteps,
    Leak,
    Line,
    MemoryReport,
    Owner,
    Peak,
    PhaseBytes,
    ReportedDevice,
)
from gpuprof.memory.owners import owners
from gpuprof.memory.passes import MemoryPhases, find_passes
from gpuprof.memory.series import series
from gpuprof.memory.snapshot import ABSENT_TIME, NO_STACK, OOM, DeviceMemory, Frame, Snapshot
from gpuprof.memory.stacks import AWAITING_FREE, OWNERS, PHASES, Readings, read_stacks
from gpuprof.tracefile.source import Issue, Source
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Convention, Lines

MOST_LINES: Convention[Lines] = 50
"""Lines that are kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """One device's memory with derived data."""

    memory: DeviceMemory
    found: Allocations
    owner: I32
    passes: MemoryPhases
    readings: Readings
    used: I64
    """Bytes in use, before the first event and after each."""
    held: I64 | None
    """Bytes reserved, likewise."""


def analyse(snapshot: Snapshot, lines: int = MOST_LINES) -> MemoryReport:
    """Peak, owners, steps and leaks of every device of a snapshot. lines: lines of Python to keep."""
    readings = read_stacks(snapshot.stacks)
    cases = [case_of(memory, readings) for memory in snapshot.devices]
    devices = sorted((device_report(case, lines) for case in cases), key=lambda device: -device.peak.allocated_bytes)
    events = sum(len(memory.events) for memory in snapshot.devices)
    return MemoryReport(
        source=Source(snapshot.path, "snapshot", snapshot.bytes, events),
        issues=tuple(issue for case in cases for issue in _issues(case)),
        devices=tuple(devices),
    )


def case_of(memory: DeviceMemory, readings: Readings) -> Case:
    """The data from which the report of one device is made."""
    found = allocations(memory)
    passes = find_passes(memory.events, readings)
    return Case(
        memory=memory,
        found=found,
        owner=owners(found, readings, passes, memory.events),
        passes=passes,
        readings=readings,
        used=in_use(found, len(memory.events)),
        held=reserved(memory),
    )


def device_report(case: Case, lines: int) -> ReportedDevice:
    """The report of one device."""
    memory, held = case.memory, case.held
    moment = int(np.argmax(case.used)) - 1
    return ReportedDevice(
        device=memory.device,
        events=len(memory.events),
        seconds=_seconds(memory, len(memory.events) - 1),
        before_bytes=int(case.used[0]),
        peak=_peak(case, moment, lines),
        reserved_peak_bytes=None if held is None else int(held.max()),
        failure=_failure(case),
        steps=_steps(case),
        leaks=_leaks(case),
        series=series(case.found, case.owner, case.passes, memory.events, case.used, case.held),
    )


def _seconds(memory: DeviceMemory, row: int) -> float | None:
    times = memory.events.time_us
    if not len(times) or times[0] == ABSENT_TIME or times[row] == ABSENT_TIME:
        return None
    return max(int(times[row]) - int(times[0]), 0) / 1e6 if row >= 0 else 0.0


def _peak(case: Case, moment: int, lines: int) -> Peak:
    rows = np.flatnonzero(case.found.live(moment))
    size = case.found.size[rows]
    owner = _owner_at(case, rows, moment)
    allocated = int(size.sum())
    held = None if case.held is None else int(case.held[moment + 1])
    named = [
        Owner(OWNERS[key], int(size[owner == key].sum()), int((owner == key).sum()))
        for key in np.unique(owner).tolist()
    ]
    if held is not None:
        named.append(Owner(UNUSED, held - allocated, 0))
    phase = _phase_of(case, rows)
    kept, rest = _lines(case, rows, owner, phase, lines)
    return Peak(
        event=moment,
        seconds=_seconds(case.memory, moment),
        step=_step_at(case, moment),
        phase=PHASES[case.passes.phase[moment]] if moment >= 0 else "other",
        allocated_bytes=allocated,
        reserved_bytes=held,
        owners=tuple(sorted(named, key=lambda one: -one.bytes)),
        phases=tuple(
            sorted(
                (PhaseBytes(PHASES[key], int(size[phase == key].sum())) for key in np.unique(phase).tolist()),
                key=lambda one: -one.bytes,
            )
        ),
        lines=kept,
        lines_rest_bytes=rest,
    )


def _owner_at(case: Case, rows: np.ndarray, moment: int) -> I32:
    """Owners at a moment. Memory that was freed, but may still be used by another stream, has a separate owner."""
    return np.where(case.found.requested[rows] <= moment, AWAITING_FREE, case.owner[rows]).astype(np.int32)


def _phase_of(case: Case, rows: np.ndarray) -> I32:
    """The phase in which each allocation was made."""
    stack, start = case.found.stack[rows], case.found.start[rows]
    phase = np.where(stack == NO_STACK, 0, case.readings.phase[stack]).astype(np.int32)
    recorded = start >= 0
    phase[recorded] = case.passes.phase[start[recorded]]
    return phase


def _lines(case: Case, rows: np.ndarray, owner: I32, phase: I32, most: int) -> tuple[tuple[Line, ...], int]:
    """The lines that hold most, and the bytes of all others."""
    totals: dict[tuple[Frame | None, int, int], list[int]] = {}
    place = case.readings.place
    keys = np.stack([case.found.stack[rows], owner, phase], axis=1)
    groups, which = np.unique(keys, axis=0, return_inverse=True)
    size = np.zeros(len(groups), np.int64)
    np.add.at(size, which.ravel(), case.found.size[rows])
    count = np.bincount(which.ravel(), minlength=len(groups))
    for (stack, own, of), total, number in zip(groups.tolist(), size.tolist(), count.tolist(), strict=True):
        both = totals.setdefault((None if stack == NO_STACK else place[stack], own, of), [0, 0])
        both[0] += total
        both[1] += number
    ordered = sorted(totals.items(), key=lambda one: (-one[1][0], one[0][1:], _text(one[0][0])))
    kept = tuple(
        Line(OWNERS[own], PHASES[of], *_split(frame), total, number)
        for (frame, own, of), (total, number) in ordered[:most]
    )
    return kept, sum(total for _, (total, _) in ordered[most:])


def _text(frame: Frame | None) -> str:
    return "" if frame is None else f"{frame.filename}:{frame.line or 0:09} {frame.name}"


def _split(frame: Frame | None) -> tuple[str | None, int | None, str | None]:
    """File, line and function; of a trace the module and the op, without a line."""
    return (None, None, None) if frame is None else (frame.filename or None, frame.line or None, frame.name)


def _step_at(case: Case, moment: int) -> int | None:
    if case.passes.source is None:
        return None
    return int(np.searchsorted(case.passes.boundaries, moment, side="right")) + 1


def _failure(case: Case) -> Failure | None:
    events = case.memory.events
    rows = np.flatnonzero(events.action == OOM)
    if not len(rows):
        return None
    row = int(rows[-1])
    allocated, stack = int(case.used[row + 1]), int(events.stack[row])
    own = case.readings.phase[stack]
    file, line, function = _split(case.readings.place[stack])
    return Failure(
        requested_bytes=int(events.size[row]),
        device_free_bytes=int(events.device_free[row]) or None,
        allocated_bytes=allocated,
        unused_bytes=None if case.held is None else int(case.held[row + 1]) - allocated,
        phase=PHASES[own or case.passes.phase[row]],
        step=_step_at(case, row),
        file=file,
        line=line,
        function=function,
        count=len(rows),
    )


def _steps(case: Case) -> HistorySteps | None:
    boundaries, source = case.passes.boundaries, case.passes.source
    if source is None:
        return None
    return HistorySteps(source, len(boundaries), tuple(case.used[boundaries].tolist()))


def _leaks(case: Case) -> tuple[Leak, ...]:
    """Growth by line and owner, without memory whose line is not in the history."""
    frames: dict[Frame | None, int] = {}
    group_of_stack = np.array([frames.setdefault(place, len(frames)) for place in case.readings.place], np.int64)
    group = np.where(case.found.stack == NO_STACK, -1, group_of_stack[case.found.stack] * len(OWNERS) + case.owner)
    places = list(frames)
    leaks = []
    for growth in growing(case.found, group, case.passes.boundaries):
        place, owner = divmod(growth.group, len(OWNERS))
        leaks.append(Leak(OWNERS[owner], *_split(places[place]), growth.bytes_per_step, growth.steps, growth.bytes))
    return tuple(leaks)


def _issues(case: Case) -> list[Issue]:
    found, memory, issues = case.found, case.memory, []
    of = f"GPU {memory.device}: "
    if not len(memory.events):
        message = "the snapshot has no history, so its peak is the moment at which it was taken. Call "
        message += "torch.cuda.memory._record_memory_history() before what you want to see"
        return [Issue("no_history", "warning", of + message)]
    unknown = int(found.size[(found.stack == NO_STACK) & (found.start == UNRECORDED_START)].sum())
    if unknown >= 2**20:
        message = (
            f"{unknown / 2**20:,.0f} MiB were allocated before the history and freed in it: who held them is unknown"
        )
        issues.append(Issue("before_history", "info", of + message))
    if case.readings.bare[np.unique(memory.events.stack)].all():
        message = "the history has no stacks: nothing can be said about owners. Record with context='all'"
        issues.append(Issue("no_stacks", "warning", of + message))
    if case.held is None:
        issues.append(Issue("no_segments", "info", of + "the snapshot has no segments: reserved memory is not known"))
    elif int((case.held - case.used).min()) < 0:
        message = "the history allocates more than the segments hold: the two contradict each other"
        issues.append(Issue("segments_disagree", "warning", of + message))
    return issues

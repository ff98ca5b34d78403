"""Writes a recording as a speedscope file: CPU threads, GPU time by launching op, idle time by cause.
Everything is from the analysed window, in whole nanoseconds from its start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.interop.slices import Placement, place, preorder, separate_ranges
from gpuprof.interop.trace_events import filled, json_text
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, I64
from gpuprof.units import Bytes, Convention

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_CHUNK_BYTES: Convention[Bytes] = 1 << 16
_PYTHON = re.compile(r"(?P<file>[^()]+)\((?P<line>\d{1,9})\): (?P<name>.+)", re.DOTALL)
"""The profiler's name of a Python frame."""


def write_speedscope(diagnosis: Diagnosis, file: BinaryIO) -> int:
    """Writes the file; returns the number of profiles. Raises GpuprofError if nothing was recorded."""
    from gpuprof import __version__

    timeline = diagnosis.tables.timeline
    name = json_text(Path(diagnosis.source.path).name)
    head = f'"$schema":"{SCHEMA}","name":{name},"activeProfileIndex":0'
    file.write(f'{{"exporter":"gpuprof {__version__}",{head},"profiles":[\n'.encode())
    frames, count = _Frames(timeline.trace.strings), 0
    for profile in _profiles(diagnosis, frames):
        file.write(b",\n" if count else b"")
        count += 1
        for part in profile:
            file.write(part.encode("ascii"))
    # The shared frames come last: only now are they known.
    file.write(f'\n],"shared":{{"frames":[\n{frames.text()}\n]}}}}\n'.encode("ascii"))
    return count


@dataclass(slots=True)
class _Frames:
    """The frames of the file, each text once; strings of the trace are added by id."""

    strings: Sequence[str]
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def of_strings(self, ids: np.ndarray, unknown: str = "?") -> I64:
        """The frame of each string id; `unknown` for ids below 0."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        texts: list[str] = [self.strings[int(i)] if i >= 0 else unknown for i in distinct.tolist()]
        numbers = [self.number(text) for text in texts]
        return np.array(numbers, np.int64)[inverse]

    def text(self) -> str:
        return ",\n".join(map(_frame, self._numbers))


def _frame(text: str) -> str:
    python = _PYTHON.fullmatch(text)
    if python is None:
        return f'{{"name":{json_text(text)}}}'
    return f'{{"name":{json_text(text)},"file":{json_text(python["file"])},"line":{int(python["line"])}}}'


def _profiles(diagnosis: Diagnosis, frames: _Frames) -> Iterator[Iterator[str]]:
    """GPU time first, then idle time by cause, then the threads: the main one, then the busiest."""
    timeline = diagnosis.tables.timeline
    devices = np.unique(timeline.trace.gpu.device[timeline.members]).tolist()
    for device in devices:
        yield _sampled(f"GPU {device}: time by op", *_gpu_stacks(timeline, device, frames))
    for device in sorted({d.device for d in timeline.devices}):
        yield _sampled(f"GPU {device}: idle time by cause", *_idle_stacks(diagnosis, device, frames))
    yield from _threads(timeline, frames)


# -- what is summed


def _gpu_stacks(timeline: Timeline, device: int, frames: _Frames) -> tuple[list[list[int]], I64]:
    """Stacks of ops with the kernel at the end, and the ns of each; they sum to the device's kernel time."""
    trace, rows = timeline.trace, timeline.members
    rows = rows[trace.gpu.device[rows] == device]
    ns = (trace.gpu.end_ns - trace.gpu.start_ns)[rows].clip(0)
    op = timeline.links.op[rows]
    path, steps = _paths(timeline)
    key = np.where(op >= 0, path[op] if len(path) else -1, -1)
    pairs, inverse = np.unique(np.stack([key, trace.gpu.name[rows]]), axis=1, return_inverse=True)
    weights = np.zeros(pairs.shape[1], np.int64)
    np.add.at(weights, inverse.ravel(), ns)
    names = frames.of_strings(pairs[1])
    op_frames = frames.of_strings(steps[:, 1])
    unknown = frames.number("(no op)") if np.any(pairs[0] < 0) else -1
    stacks = []
    for at, name in zip(pairs[0].tolist(), names.tolist(), strict=True):
        stack = [] if at >= 0 else [unknown]
        while at >= 0:
            stack.append(int(op_frames[at]))
            at = int(steps[at, 0])
        stacks.append([*reversed(stack), name])
    return stacks, weights


def _paths(timeline: Timeline) -> tuple[I64, I64]:
    """(for each op row the number of its path, the names from the outermost op down; for each path its parent; its
    name). The ranges of single steps are left out: they would separate what is the same in every step.
    """
    trace, parent = timeline.trace, timeline.nesting.parent
    ops = trace.ops
    step = (ops.kind == ANNOTATION) & trace.rows_named(ops.name, timeline.steps.are)
    path = np.full(len(ops), -1, np.int64)
    found: list[I64] = []
    children = np.argsort(parent, kind="stable")
    bounds = parent[children]
    level = children[: np.searchsorted(bounds, 0)]  # rows without a parent
    count = 0
    while len(level):
        above = np.where(parent[level] >= 0, path[parent[level]], -1)
        path[level] = above
        named = level[~step[level]]
        keys = np.stack([above[~step[level]], ops.name[named].astype(np.int64)], axis=1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        path[named] = count + inverse.ravel()
        found.append(distinct)
        count += len(distinct)
        level = _children(children, bounds, level)
    return path, np.concatenate(found) if found else np.empty((0, 2), np.int64)


def _children(children: I64, bounds: I64, rows: I64) -> I64:
    """The rows whose parent is one of `rows`."""
    low, high = np.searchsorted(bounds, rows), np.searchsorted(bounds, rows, side="right")
    size = high - low
    offset = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    return children[np.repeat(low, size) + offset]


def _idle_stacks(diagnosis: Diagnosis, device: int, frames: _Frames) -> tuple[list[list[int]], I64]:
    """Stacks of cause, phase, op and line of Python, and the ns of each; they sum to the device's idle time."""
    gaps, ops = diagnosis.tables.columns, diagnosis.tables.timeline.trace.ops
    by_cause = np.where((gaps.device == device)[:, None], gaps.by_cause, 0)
    gap, cause = np.nonzero(by_cause)
    op = gaps.op[gap]
    name = np.where(op >= 0, ops.name[op] if len(ops) else -1, -1)
    keys = np.stack([cause, gaps.phase[gap], name, gaps.frame[gap]])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    weights = np.zeros(distinct.shape[1], np.int64)
    np.add.at(weights, inverse.ravel(), by_cause[gap, cause])
    stacks = []
    columns = [distinct[0].tolist(), distinct[1].tolist(), *(frames.of_strings(d).tolist() for d in distinct[2:])]
    for (cause_, phase, op_, frame), known in zip(
        zip(*columns, strict=True), (distinct[2:] >= 0).T.tolist(), strict=True
    ):
        tail = [number for number, is_known in zip((op_, frame), known, strict=True) if is_known]
        stacks.append([frames.number(CAUSES[cause_]), frames.number(PHASES[phase]), *tail])
    return stacks, weights


def _sampled(name: str, stacks: list[list[int]], weights: I64) -> Iterator[str]:
    """A profile of stacks; stacks with a common prefix are adjacent, heaviest first."""
    sums: dict[tuple[int, ...], int] = {}
    prefixes = [[tuple(stack[: i + 1]) for i in range(len(stack))] for stack in stacks]
    for each, ns in zip(prefixes, weights.tolist(), strict=True):
        for prefix in each:
            sums[prefix] = sums.get(prefix, 0) + ns
    keys = [[(-sums[prefix], prefix[-1]) for prefix in each] for each in prefixes]
    order = sorted(np.flatnonzero(weights > 0).tolist(), key=keys.__getitem__)
    yield f'{{"type":"sampled","name":{json_text(name)},"unit":"nanoseconds","startValue":0,'
    yield f'"endValue":{int(weights.sum())},"samples":['
    yield ",\n".join(json.dumps(stacks[i], separators=(",", ":")) for i in order)
    yield f'],"weights":{json.dumps([int(weights[i]) for i in order])}}}'


# -- over time


def _threads(timeline: Timeline, frames: _Frames) -> Iterator[Iterator[str]]:
    """A profile per CPU thread of the window; a second one for partly overlapping spans."""
    trace, (low, high) = timeline.trace, timeline.window
    tables = (trace.frames, trace.ops, trace.calls)
    thread, start, end, name = (
        np.concatenate([getattr(t, column) for t in tables]) for column in ("thread", "start_ns", "end_ns", "name")
    )
    # Frames enclose ops, and ops enclose calls; within a table by id.
    ids = (trace.frames.python_id, trace.ops.external, np.zeros(len(trace.calls), np.int64))
    rank = np.concatenate([each.clip(0, 2**48) + (i << 50) for i, each in enumerate(ids)])
    rows = np.flatnonzero((start < high) & (np.maximum(end, start) >= low) & (end >= start))
    thread, name, rank = thread[rows].astype(np.int64), name[rows], rank[rows]
    start, end = start[rows].clip(low, high) - low, end[rows].clip(low, high) - low
    number = frames.of_strings(name, "(no name)")
    lane = 2 * thread
    lane[np.isin(rows, len(trace.frames) + np.flatnonzero(separate_ranges(trace)))] += 1
    placed = place(lane, start, end, rank)
    counts = np.bincount(thread, minlength=len(trace.threads))
    ordered = lane[placed.order]
    for t in sorted(np.flatnonzero(counts).tolist(), key=lambda t: (t != timeline.main_thread, -counts[t])):
        title = trace.threads[t].name.strip() or f"thread {trace.threads[t].thread}"
        for side, name in ((0, title), (1, f"ranges of {title}")):
            mine = placed.order[slice(*np.searchsorted(ordered, [2 * t + side, 2 * t + side + 1]))]
            for part in np.unique(placed.part[mine]).tolist():
                track = mine[placed.part[mine] == part]
                yield _evented(name + (f" ({part + 1})" if part else ""), track, placed, start, end, number, high - low)


def _evented(
    name: str, rows: I64, placed: Placement, start: I64, end: I64, number: I64, length: int
) -> Iterator[str]:  # fmt: skip
    """A profile of opening and closing spans, in nesting order."""
    first, last = preorder(placed, rows)
    at, frame = np.empty(2 * len(rows), np.int64), np.empty(2 * len(rows), np.int64)
    kind = np.empty(2 * len(rows), object)
    for place_, moment, letter in ((first, start, "O"), (last, end, "C")):
        at[place_], frame[place_], kind[place_] = moment[rows], number[rows], letter
    yield f'{{"type":"evented","name":{json_text(name)},"unit":"nanoseconds",'
    yield f'"startValue":0,"endValue":{length},"events":[\n'
    for low in range(0, len(at), _CHUNK_BYTES):
        part = slice(low, low + _CHUNK_BYTES)
        events = filled('{"type":"%s","frame":%d,"at":%d}', [kind[part], frame[part], at[part]])
        yield (",\n" if low else "") + ",\n".join(events)
    yield "]}"

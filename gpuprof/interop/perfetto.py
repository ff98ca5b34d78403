"""Writes a recording with gpuprof's results as a Chrome trace, for ui.perfetto.dev and chrome://tracing.
Times start at the first event: viewers store times as floats, which near Unix time have a resolution of a quarter of a
microsecond. `baseTimeNanoseconds` (Unix time of 0) and `otherData.origin_ns` give the original times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.interop.drawn_lanes import Lanes
from gpuprof.interop.finding_spans import OURS, busy_share, found_lanes
from gpuprof.interop.recording_spans import GPU, HOST, recorded_lanes
from gpuprof.interop.slices import Placement, place
from gpuprof.interop.trace_events import FARTHEST_NS, JsonTexts, Spans, filled, json_text, json_value, lines, micros
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, FLOW_FWDBWD, I64, Trace
from gpuprof.units import Assumed, Bytes, Convention, Level, WholeNs

COMPRESSION_LEVEL: Convention[Level] = 2
"""Compression level; higher levels of this library gain little."""
_CHUNK_BYTES: Convention[Bytes] = 1 << 16
_FARTHEST_FROM_WINDOW_NS: Assumed[WholeNs] = 86_400 * 10**9
"""An event a day before the window has a wrong time, and must not be the origin."""


def write_perfetto(diagnosis: Diagnosis, file: BinaryIO) -> int:
    """Writes the gzipped file; returns the number of events. Raises GpuprofError if nothing was recorded."""
    drawing = draw(diagnosis)
    return write_events(_head(diagnosis, drawing), events_of(diagnosis, drawing), file)


def write_events(head: dict[str, Any], parts: Iterable[list[str]], file: BinaryIO) -> int:
    """Writes a gzipped document; returns the number of events. `parts`: its events as JSON texts, in parts."""
    from isal import igzip_threaded

    events = 0
    opened: Any = igzip_threaded.open(file, "wb", compresslevel=COMPRESSION_LEVEL)  # its type hints wrongly say text
    with opened as out:
        texts = {key: json_value(value) for key, value in head.items()}
        written = ",".join(f"{json.dumps(key)}:{text}" for key, text in texts.items() if text is not None)
        out.write(f'{{{written},"traceEvents":[\n'.encode())
        before = b""
        for part in parts:
            out.write(before + ",\n".join(part).encode("ascii"))
            before, events = b",\n", events + len(part)
        out.write(b"\n]}\n")
    return events


@dataclass(frozen=True, slots=True)
class TakenNumbers:
    """Numbers already used by other recordings in the same file."""

    pids: int = 0
    tids: int = 0
    arrows: int = 0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A placed recording. Spans of all tables are numbered consecutively, those of a table from `first[table]` on."""

    tables: dict[str, Spans]
    first: dict[str, int]
    placement: Placement
    start_ns: I64
    """Relative to `origin_ns`; likewise the ends."""
    end_ns: I64
    pid: I64
    tid: I64
    groups: dict[str, tuple[int, str]]
    """Key → (pid, name), from top to bottom."""
    tracks: tuple[tuple[int, int, str], ...]
    """(pid, tid, name), from top to bottom."""
    origin_ns: int
    arrows: int
    """Number of arrow ids already used."""


def draw(
    diagnosis: Diagnosis, label: str = "", taken: TakenNumbers = TakenNumbers(), origin_ns: int | None = None
) -> Drawing:
    """Places everything that is drawn of a recording. `label`: prefix of its groups' names. `origin_ns`: origin of
    times on the recording's clock; its first event if not given."""
    timeline = diagnosis.tables.timeline
    texts, lanes = JsonTexts(timeline.trace.strings), Lanes()
    tables = found_lanes(diagnosis, lanes, texts) | recorded_lanes(timeline, lanes, texts)
    lane = np.concatenate([t.lane for t in tables.values()])
    start, end = (np.concatenate([getattr(t, n) for t in tables.values()]) for n in ("start_ns", "end_ns"))
    rank = np.concatenate([np.zeros(len(t), np.int64) if t.rank is None else t.rank for t in tables.values()])
    placement = place(lane, start, end, rank)
    sizes = [len(t) for t in tables.values()]
    first = dict(zip(tables, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    # New numbers, since files reuse them: a GPU has the pid 0, and streams of two GPUs share tids.
    ordered = _ordered_groups(lanes)
    groups = {key: (taken.pids + i, label + name) for i, (key, name) in enumerate(ordered.items(), start=1)}
    parts = np.ones(len(lanes.lanes), np.int64)
    np.maximum.at(parts, lane, placement.part + 1)
    order = sorted(range(len(parts)), key=lambda n: (groups[lanes.lanes[n].group][0], lanes.lanes[n].order))
    first_tid, tracks = np.zeros(len(parts), np.int64), []
    for number in order:
        pid = groups[lanes.lanes[number].group][0]
        first_tid[number] = taken.tids + len(tracks) + 1
        for part in range(int(parts[number])):
            name = lanes.lanes[number].name + (f" ({part + 1})" if part else "")
            tracks.append((pid, taken.tids + len(tracks) + 1, name))
    pid_of_lane = np.array([groups[each.group][0] for each in lanes.lanes], np.int64)
    origin = first_event_ns(timeline, [start]) if origin_ns is None else origin_ns
    return Drawing(
        tables, first, placement, start - origin, end - origin, pid_of_lane[lane], first_tid[lane] + placement.part,
        groups, tuple(tracks), origin, taken.arrows,
    )  # fmt: skip


def first_event_ns(timeline: Timeline, starts: Iterable[I64]) -> int:
    """The earliest plausible start among these and the window's."""
    low = timeline.window[0]
    believed = (one[one >= low - _FARTHEST_FROM_WINDOW_NS] for one in starts)
    return min([int(one.min()) for one in believed if len(one)], default=low)


def _ordered_groups(lanes: Lanes) -> dict[str, str]:
    """Ours on top, then the GPUs, the host processes, and the rest."""
    ranks = {OURS: 0, GPU: 1, HOST: 2}
    place_of = {key: min((r for k, r in ranks.items() if key.startswith(k)), default=3) for key in lanes.groups}
    return {key: lanes.groups[key] for key in sorted(lanes.groups, key=place_of.__getitem__)}


def events_of(diagnosis: Diagnosis, drawing: Drawing) -> Iterator[list[str]]:
    """Parts of the list of events, as JSON texts."""
    timeline = diagnosis.tables.timeline
    yield _names(drawing)
    yield from _complete(drawing)
    yield from _arrows(timeline, drawing)
    yield from _utilization(timeline, drawing)
    yield from _memory(timeline.trace, drawing)


def _names(drawing: Drawing) -> list[str]:
    """Metadata events with the names and order of tracks."""
    found = []

    def note(what: str, pid: int, tid: int, args: str) -> None:
        found.append(f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"ts":0,"args":{args}}}')

    for pid, name in drawing.groups.values():
        note("process_name", pid, 0, f'{{"name":{json_text(name)}}}')
        note("process_sort_index", pid, 0, f'{{"sort_index":{pid}}}')
    for pid, tid, name in drawing.tracks:
        note("thread_name", pid, tid, f'{{"name":{json_text(name)}}}')
        note("thread_sort_index", pid, tid, f'{{"sort_index":{tid}}}')
    return found


def _complete(drawing: Drawing) -> Iterator[list[str]]:
    """All spans, track by track, ordered by start: viewers rely on the order if two begin together."""
    firsts, tables = np.array(list(drawing.first.values())), list(drawing.tables.values())
    for at in range(0, len(drawing.start_ns), _CHUNK_BYTES):
        spans = drawing.placement.order[at : at + _CHUNK_BYTES]
        table = np.searchsorted(firsts, spans, side="right") - 1
        out = np.empty(len(spans), object)
        for number in np.unique(table).tolist():
            here = np.flatnonzero(table == number)
            mine = spans[here]
            rows = mine - firsts[number]
            out[here] = lines(tables[number], rows, drawing.pid[mine], drawing.tid[mine], drawing.start_ns[mine])
        yield out.tolist()


def _arrows(timeline: Timeline, drawing: Drawing) -> Iterator[list[str]]:
    """Arrows from launches to their work, and from forward to backward ops; each end is inside a span of its track."""
    gpu, call = timeline.trace.gpu, timeline.links.call
    number = drawing.arrows
    if "gpu" in drawing.first and "calls" in drawing.first:
        works = np.flatnonzero((call >= 0) & (gpu.end_ns > gpu.start_ns))
        source, target = drawing.first["calls"] + call[works], drawing.first["gpu"] + works
        times = drawing.start_ns[source], drawing.start_ns[target]
        # With disagreeing clocks work may begin before its launch, and viewers reject arrows that go back in time.
        good = (times[0] <= times[1]) & (drawing.end_ns[source] > drawing.start_ns[source])
        yield from _flow("ac2g", number, source[good], target[good], times[0][good], times[1][good], drawing)
        number += int(good.sum())
    if "ops" in drawing.first:
        source, target, begin, end = _forward_backward(timeline, drawing)
        yield from _flow("fwdbwd", number, source, target, begin, end, drawing)


def _forward_backward(timeline: Timeline, drawing: Drawing) -> tuple[I64, I64, I64, I64]:
    """Spans at both ends of the recording's forward-to-backward arrows, with the times."""
    flows, nesting, first = timeline.trace.flows, timeline.nesting, drawing.first["ops"]
    rows = np.flatnonzero((flows.kind == FLOW_FWDBWD) & (flows.id != ABSENT))
    begins, ends = rows[flows.begins[rows] == 1], rows[flows.begins[rows] == 0]
    begins = begins[np.unique(flows.id[begins], return_index=True)[1]]
    ends = ends[np.unique(flows.id[ends], return_index=True)[1]]
    _, a, b = np.intersect1d(flows.id[begins], flows.id[ends], assume_unique=True, return_indices=True)
    begins, ends = begins[a], ends[b]
    source = nesting.innermost(flows.thread[begins], flows.time_ns[begins])
    target = nesting.innermost(flows.thread[ends], flows.time_ns[ends])
    good = (source >= 0) & (target >= 0) & (flows.time_ns[begins] <= flows.time_ns[ends])
    begin, end = (flows.time_ns[each[good]] - drawing.origin_ns for each in (begins, ends))
    return first + source[good], first + target[good], begin, end


def _flow(
    kind: str, before: int, source: I64, target: I64, begin: I64, end: I64, drawing: Drawing
) -> Iterator[list[str]]:
    """Both ends of the arrows between spans; ids continue from `before`."""
    for at in range(0, len(source), _CHUNK_BYTES):
        part = slice(at, at + _CHUNK_BYTES)
        ids = before + 1 + np.arange(len(source))[part]
        for ph, more, spans, ns in (("s", "", source[part], begin[part]), ("f", ',"bp":"e"', target[part], end[part])):
            times, ts = micros(ns)
            template = f'{{"ph":"{ph}"{more},"cat":"{kind}","name":"{kind}","id":%d,"pid":%d,"tid":%d,"ts":{ts}}}'
            yield filled(template, [ids, drawing.pid[spans], drawing.tid[spans], *times])


def _utilization(timeline: Timeline, drawing: Drawing) -> Iterator[list[str]]:
    """Busy share of each GPU over time."""
    pid = drawing.groups[OURS][0]
    for device, (moments, permille) in busy_share(timeline).items():
        times, ts = micros(moments - drawing.origin_ns)
        template = f'{{"ph":"C","pid":{pid},"tid":0,"name":"GPU {device} busy","ts":{ts},"args":{{"percent":%d.%d}}}}'
        yield filled(template, [*times, permille // 10, permille % 10])


def _memory(trace: Trace, drawing: Drawing) -> Iterator[list[str]]:
    """The allocator's totals, if the recording has them."""
    memory = trace.memory
    devices = np.unique(np.stack([memory.device_type, memory.device]), axis=1).T.tolist() if len(memory) else []
    for kind, device in devices:
        rows = np.flatnonzero((memory.device_type == kind) & (memory.device == device))
        rows = rows[np.argsort(memory.time_ns[rows], kind="stable")]
        pid = drawing.groups.get(f"{GPU}{device}", drawing.groups[OURS])[0] if kind else drawing.groups[OURS][0]
        where = f"GPU {device}" if kind else "host"
        for key, column in (("allocated", memory.allocated_bytes), ("reserved", memory.reserved_bytes)):
            counted = rows[column[rows] != ABSENT]
            for at in range(0, len(counted), _CHUNK_BYTES):
                part = counted[at : at + _CHUNK_BYTES]
                ns = memory.time_ns[part].clip(-FARTHEST_NS, FARTHEST_NS)
                times, ts = micros(ns - drawing.origin_ns)
                name = f'"name":"{where} memory {key}"'
                template = f'{{"ph":"C","pid":{pid},"tid":0,{name},"ts":{ts},"args":{{"bytes":%d}}}}'
                yield filled(template, [*times, column[part]])


def _head(diagnosis: Diagnosis, drawing: Drawing) -> dict[str, Any]:
    """The keys before the events: the recording's metadata, and the verdict."""
    from gpuprof import __version__

    meta, window = diagnosis.tables.timeline.trace.meta, diagnosis.tables.timeline.window
    head: dict[str, Any] = {
        "exporter": f"gpuprof {__version__}",
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "deviceProperties": [{**gpu.properties, "id": gpu.device, "name": gpu.name} for gpu in meta.gpus],
        "distributedInfo": meta.distributed,
        **meta.versions,
        **meta.options,
        "otherData": {
            "recording": Path(diagnosis.source.path).name,
            "verdict": diagnosis.verdict.summary,
            "origin_ns": str(drawing.origin_ns),
            "window_start_ns": str(window[0]),
            "window_end_ns": str(window[1]),
        },
    }
    if meta.base_time_ns is not None:
        head["baseTimeNanoseconds"] = meta.base_time_ns + drawing.origin_ns
    return head

"""Every recording, compared with a plain reading of its file: no event is lost, times add up, both readers agree, and
the unchanged replay matches the recording."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from helpers import oracle
from helpers.diagnosed import diagnosed
from helpers.present import present
from helpers.quick import few
from helpers.timeline import timeline_of
from helpers.traces import RUNS, WHOLE, each_shared, resolve, shared_trace

from gpuprof.replay.build.build import build as build_graph
from gpuprof.replay.graph import NEVER
from gpuprof.replay.simulate import simulate
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.kineto import layout, stream
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.layout import CATEGORIES, OTHER, TABLES
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.trace import ABSENT, NO_TEXT, Trace


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recorded file, as read by the small reader and by json."""

    path: Path
    trace: Trace
    events: list[dict]


QUICK = (
    "roofline_pair", "public/hta_bigint_20digit_comms_id.pt.trace",
    "public/hta_cpu_only_rank34.pt.trace", "public/kineto_v100_oldschema_resnet50_nw0.pt.trace",
    "public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace", "public/zoology_a100_runtime_but_no_kernels",
)  # fmt: skip
"""Two programs in one recording, and unusual ones: ids of 20 digits, no GPU, the schema of 2021, ranks, no kernels."""


@pytest.fixture(scope="module", params=few([one for one in WHOLE if one.values[0] not in RUNS], QUICK))
def recording(request) -> Recording:
    path = resolve(request.param)
    return Recording(path, small(path), oracle.load(path))


def small(path: Path) -> Trace:
    return read_kineto(path, path.stat().st_size, small_bytes=1 << 40)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Fail where scanner and parser disagree, instead of reading the file the slow way."""
    monkeypatch.setenv("GPUPROF_DEBUG", "1")


# -- the device's time


def test_partition_and_gaps_equal_the_sweep(recording: Recording):
    diagnosis = diagnosed(recording.path)
    check_sums(diagnosis)
    window = present(diagnosis.window)
    low, high = window.start_ns, window.end_ns
    work = oracle.device_work(recording.events)
    assert {d.device for d in diagnosis.devices} == set(work)
    for device in diagnosis.devices:
        truth = oracle.partition(work[device.device], low, high)
        assert device.compute_ns == truth["compute"]
        assert device.communication_ns == truth["communication"]
        assert device.copy_ns == truth["copy"]
        assert device.idle_ns == truth["idle"]
        columns = diagnosis.tables.columns
        mine = columns.device == device.device
        gaps = list(zip(columns.start_ns[mine].tolist(), columns.end_ns[mine].tolist(), strict=True))
        assert gaps == oracle.idle_intervals(work[device.device], low, high)


def check_sums(diagnosis) -> None:
    for device in diagnosis.devices:
        parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.idle_ns)
        assert sum(parts) == device.window_ns == diagnosis.window.end_ns - diagnosis.window.start_ns
        assert device.busy_ns + device.idle_ns == device.window_ns
    if not diagnosis.devices:
        return
    columns = diagnosis.tables.columns
    assert (columns.by_cause >= 0).all()
    assert (columns.by_cause.sum(axis=1) == columns.ns).all()
    assert sum(c.ns for c in diagnosis.gaps.by_cause) == diagnosis.gaps.total_ns
    assert diagnosis.gaps.total_ns == sum(d.idle_ns for d in diagnosis.devices)
    assert sum(p.ns for p in diagnosis.gaps.by_phase) == diagnosis.gaps.total_ns
    assert sum(p.ns for p in diagnosis.phases) == diagnosis.devices[0].window_ns
    assert all(p.busy_ns + p.idle_ns == p.ns for p in diagnosis.phases)
    kernels = diagnosis.kernels
    assert sum(c.ns for c in kernels.by_category) == kernels.total_ns
    assert sum(c.ns for c in kernels.by_phase) == kernels.total_ns
    assert sum(c.count for c in kernels.by_category) == kernels.count


# -- the small reader


def test_nothing_is_dropped_or_changed(recording: Recording):
    got, events = recording.trace, recording.events
    assert got.reading.events == len(events)
    assert spans(got) == wanted_spans(events)
    check_gpu_arguments(got, events)
    check_op_arguments(got, events)


def wanted_spans(events) -> Counter:
    """(table, name, process, thread, start, end) of every span in the file, with how often it occurs."""
    return Counter(
        (table_of(e), e["name"], str(e["pid"]), str(e["tid"]), e["ts"], e["ts"] + e.get("dur", 0))
        for e in events
        if e["ph"] == "X" and table_of(e) != "syncs"
    )


def table_of(event) -> str:
    return TABLES[CATEGORIES.get(event.get("cat", ""), (OTHER, 0))[0]]


def spans(trace: Trace) -> Counter:
    found: Counter = Counter()
    for table in ("ops", "calls", "gpu", "frames", "other"):
        t = getattr(trace, table)
        for name, thread, start, end in zip(
            *(c.tolist() for c in (t.name, t.thread, t.start_ns, t.end_ns)), strict=True
        ):
            track = trace.threads[thread]
            found[table, trace.strings[name], track.process, track.thread, start, end] += 1
    # Instants lie in `other` too, and are no spans: they have no duration in the file.
    instants = Counter({k: n for k, n in found.items() if k[0] == "other" and k[4] == k[5]})
    return found - instants


def check_gpu_arguments(trace: Trace, events) -> None:
    gpu = [e for e in events if e["ph"] == "X" and e.get("cat", "") in oracle.DEVICE_CATEGORIES]
    assert len(gpu) == len(trace.gpu)
    for i, e in enumerate(gpu):
        args = e.get("args") or {}
        assert trace.gpu.device[i] == args.get("device", e["pid"])
        assert trace.gpu.correlation[i] == args.get("correlation", ABSENT)
        assert trace.gpu.bytes[i] == args.get("bytes", ABSENT)
        grid = args.get("grid")
        if isinstance(grid, list):
            assert [trace.gpu.grid_x[i], trace.gpu.grid_y[i], trace.gpu.grid_z[i]] == grid


def check_op_arguments(trace: Trace, events) -> None:
    ops = [e for e in events if e["ph"] == "X" and table_of(e) == "ops"]
    assert len(ops) == len(trace.ops)
    for i, e in enumerate(ops):
        args = e.get("args") or {}
        dims = trace.text(int(trace.ops.dims[i]))
        assert (None if dims is None else json.loads(dims)) == args.get("Input Dims")
        assert trace.ops.sequence[i] == args.get("Sequence number", ABSENT)
        assert trace.ops.forward_thread[i] == args.get("Fwd thread id", ABSENT)
        assert (trace.ops.extra[i] != NO_TEXT) == ("Collective name" in args)


@pytest.mark.parametrize(
    "name", each_shared("broken_truncated_json_70pct", "broken_truncated_gzip_60pct", folder="public/")
)
def test_a_cut_file_is_read_as_far_as_it_goes(name):
    path = shared_trace(f"public/{name}")
    text = oracle.inflate_what_is_there(path)
    whole = text[: text.rindex(b"\n  },") + 4] + b"]}"
    wanted = oracle.parse(whole)
    got = small(path)
    assert got.reading.truncated
    assert got.reading.events == len(wanted)


# -- the streaming reader


def streamed(path: Path, block_bytes: int = stream.BLOCK_BYTES) -> Trace:
    size = path.stat().st_size
    return build(stream.read_stream(path, size, None, block_bytes), str(path), size)


def differences(one: Trace, other: Trace) -> list[str]:
    """The columns that differ; text columns are compared as texts."""
    texts = texts_of(one, other)
    found = []
    for table in layout.TABLES:
        a, b = getattr(one, table), getattr(other, table)
        if len(a) != len(b):
            found.append(f"{table}: {len(a)} rows, {len(b)} rows")
            continue
        for field in dataclasses.fields(a):
            left, right = getattr(a, field.name), getattr(b, field.name)
            if field.name in texts:
                left, right = (ids[column] for ids, column in zip(texts[field.name], (left, right), strict=True))
            wrong = np.flatnonzero((left != right) & ~((left != left) & (right != right)))
            if len(wrong):
                found.append(f"{table}.{field.name}: {len(wrong)} differ, first at {wrong[0]}")
    ignored = {"reader": "", "dropped_sample": ""}
    for what in ("meta", "reading"):
        a, b = getattr(one, what), getattr(other, what)
        if what == "reading":
            a, b = dataclasses.replace(a, **ignored), dataclasses.replace(b, **ignored)
        if a != b:
            found.append(f"{what}: {a}, {b}")
    return found


def noted(texts: Iterable[bytes], into: list[bytes]) -> Iterable[bytes]:
    for text in texts:
        into.append(text)
        yield text


def texts_of(one: Trace, other: Trace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For every column of texts or threads, numbers that mean the same in both traces."""
    numbers: dict = {}

    def shared(values) -> np.ndarray:
        return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1])

    strings, threads = (shared(one.strings), shared(other.strings)), (shared(one.threads), shared(other.threads))
    return {**dict.fromkeys(layout.TEXT_FIELDS, strings), "thread": threads}


def test_both_readers_agree(recording: Recording, monkeypatch):
    path, wanted = recording.path, recording.trace
    read_by_python = []
    add_texts = stream.add_texts
    monkeypatch.setattr(stream, "add_texts", lambda texts, into: add_texts(noted(texts, read_by_python), into))
    assert not differences(wanted, streamed(path, 1 << 18))
    # Python reads the names of threads, and one event per block to check.
    assert sum(b'"M"' not in text for text in read_by_python) <= wanted.reading.text_bytes / (1 << 18) + 5
    if wanted.reading.text_bytes < 2 << 20:
        assert not differences(wanted, streamed(path, 1 << 10))


@pytest.mark.parametrize(
    "name", each_shared("broken_truncated_json_70pct", "broken_truncated_gzip_60pct", folder="public/")
)
def test_both_readers_agree_on_a_cut_file(name):
    path = shared_trace(f"public/{name}")
    wanted = small(path)
    assert wanted.reading.truncated
    for block_bytes in (1 << 12, stream.BLOCK_BYTES):
        assert not differences(wanted, streamed(path, block_bytes))


# -- the replay


def test_the_untouched_graph_replays_as_it_ran(recording: Recording):
    timeline = build_timeline(recording.trace)
    if timeline is not None:
        replays_as_it_ran(timeline)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_the_untouched_graph_of_a_run_replays_as_it_ran(path: Path):
    replays_as_it_ran(timeline_of(path))


def replays_as_it_ran(timeline: Timeline) -> None:
    graph = build_graph(timeline)
    schedule, nodes = simulate(graph), graph.on_gpu
    assert np.abs(schedule.start_ns - graph.recorded_start_ns)[nodes].max(initial=0) < 1
    steps = timeline.steps
    assert np.abs(schedule.step_end_ns - (steps.end_ns - steps.window[0])).max(initial=0) < 1
    looped = simulate(graph, 3)
    assert np.isfinite(looped.end_ns).all()
    assert looped.end_ns.min(initial=0) > NEVER / 2

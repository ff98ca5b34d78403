"""The exports: they meet other viewers' requirements, nothing is lost, and every sum equals the diagnosis's."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import helpers.trace_event_rules as rules
import numpy as np
import pytest
from helpers.budgets import budget
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import HOSTILE
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from helpers.paths import ROOT
from helpers.present import present
from helpers.quick import few
from helpers.traces import COMMITTED, RUNS, each_shared, resolve
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

import gpuprof
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.interop.perfetto import write_perfetto
from gpuprof.interop.slices import place, preorder
from gpuprof.interop.speedscope import write_speedscope
from gpuprof.timeline.phases import PHASES

MS = 1_000_000
ALL = [
    *(pytest.param(path, id=path.name.split(".")[0]) for path in COMMITTED[:2]),
    pytest.param(RUNS[0].parent, id="run tiny_lora", marks=pytest.mark.slow),
    *each_shared(
        "h200/tiny_lora_small_batch_stack",
        "h200/ddp_straggler_rank0",
        "public/hta_a100_event_sync_3streams",
        "public/tl_mi300_resnet_train_ckpt_8rank_rank0",
        "public/kineto_v100_oldschema_resnet50_nw0.pt.trace",
        slow=False,
    ),
    pytest.param("public/hta_v100_2rank_nccl_5steps", id="v100_2rank", marks=pytest.mark.slow),
]
SOME = few(
    ALL, ["roofline_pair", "public/hta_a100_event_sync_3streams", "public/kineto_v100_oldschema_resnet50_nw0.pt.trace"]
)
"""Recordings with frames, several streams, several GPUs, collectives, allocator events, and of the 2021 schema."""


class Document(dict):
    """A Perfetto file, and its complete events by category."""

    @cached_property
    def complete(self) -> dict[str, list[dict]]:
        found: dict[str, list[dict]] = defaultdict(list)
        for event in self["traceEvents"]:
            if event["ph"] == "X":
                found[event["cat"]].append(event)
        return found


def perfetto(diagnosis: Diagnosis, folder: Path) -> Document:
    file = folder / "out.json.gz"
    with file.open("wb") as out:
        count = write_perfetto(diagnosis, out)
    document = Document(rules.read(file))
    assert len(document["traceEvents"]) == count
    return document


def speedscope(diagnosis: Diagnosis) -> dict:
    out = io.BytesIO()
    count = write_speedscope(diagnosis, out)
    document = json.loads(out.getvalue().decode("ascii"))
    assert len(document["profiles"]) == count
    return document


def complete(document: Document, category: str) -> list[dict]:
    return document.complete.get(category, [])


def span(event: dict) -> tuple[int, int]:
    return rules.nanoseconds(event["ts"]), rules.nanoseconds(event["dur"])


def track_names(document: dict, what: str = "thread_name") -> list[str]:
    return [e["args"]["name"] for e in document["traceEvents"] if e["name"] == what]


# -- spans on tracks


spans = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[1], p[1] + p[2])),
    max_size=25,
)


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.array([row[i] for row in rows], np.int64) for i in range(3)]


@given(spans)
@budget(30)
def test_spans_of_a_track_lie_in_each_other_or_apart(rows):
    placed = place(*columns(rows))
    assert sorted(placed.order.tolist()) == list(range(len(rows)))
    for lane, part in {(row[0], int(p)) for row, p in zip(rows, placed.part, strict=True)}:
        track = [i for i in placed.order.tolist() if rows[i][0] == lane and placed.part[i] == part]
        rules.check_track([rows[i][1:] for i in track])
        inside = {i: [j for j in track if ancestor(placed.parent, j, i)] for i in track}
        for i in track:
            assert placed.descendants[i] == len(inside[i])
            parent = int(placed.parent[i])
            assert parent < 0 or (rows[parent][1] <= rows[i][1] and rows[i][2] <= rows[parent][2])
            # Whatever else is open when it begins contains it, so it has a parent.
            assert (parent >= 0) == any(rows[j][1] <= rows[i][1] < rows[j][2] for j in track[: track.index(i)])


def ancestor(parent: np.ndarray, row: int, of: int) -> bool:
    row = int(parent[row])
    while row >= 0 and row != of:
        row = int(parent[row])
    return row == of and of >= 0


@given(spans)
def test_a_lane_has_one_track_unless_spans_overlap_in_part(rows):
    placed = place(*columns(rows))
    for lane in (0, 1):
        mine = [row for row in rows if row[0] == lane]
        crossing = any(a[1] < b[1] < a[2] < b[2] for a in mine for b in mine)
        assert bool(np.any(placed.part[[row[0] == lane for row in rows]])) == crossing if mine else True


@given(spans)
def test_opens_and_closes_are_balanced(rows):
    lane, start, end = columns([(0, low, high) for _, low, high in rows])
    placed = place(lane, start, end)
    for part in set(placed.part.tolist()):
        track = placed.order[placed.part[placed.order] == part]
        first, last = preorder(placed, track)
        events = sorted(
            [(p, "O", i) for p, i in zip(first, track, strict=True)]
            + [(p, "C", i) for p, i in zip(last, track, strict=True)]
        )
        assert [p for p, _, _ in events] == list(range(2 * len(track)))
        stack = []
        for _, kind, i in events:
            if kind == "O":
                stack.append(i)
            else:
                assert stack.pop() == i
        at = [start[i] if kind == "O" else end[i] for _, kind, i in events]
        assert at == sorted(at)


def test_the_lower_rank_is_around_the_others():
    same = np.zeros(3, np.int64)
    placed = place(same, same, same + 5, np.array([2, 0, 1]))
    assert placed.parent.tolist() == [2, -1, 1]


# -- Perfetto


@pytest.mark.parametrize("recording", SOME)
def test_exports_of_recordings(recording, tmp_path):
    """Each is written and parsed only once, as that takes most of the time."""
    diagnosis = diagnosed(resolve(recording))
    document = perfetto(diagnosis, tmp_path)
    rules.check(document)
    check_nothing_that_takes_time_is_lost(document, diagnosis)
    check_our_tracks_are_on_top_and_add_up(document, diagnosis)
    check_gpuprof_reads_its_own_export(document, diagnosis, tmp_path / "out.json.gz")
    if recording is COMMITTED[0]:
        timeline = diagnosis.tables.timeline
        arrows = sum(e["ph"] == "s" and e["cat"] == "ac2g" for e in document["traceEvents"])
        assert arrows > 0.99 * (timeline.links.call >= 0).sum() > 0, "launches have arrows"


def check_nothing_that_takes_time_is_lost(document: Document, diagnosis: Diagnosis) -> None:
    trace, origin = diagnosis.tables.timeline.trace, int(document["otherData"]["origin_ns"])
    tables = {
        ("cpu_op", "user_annotation"): trace.ops,
        ("cuda_runtime", "cuda_driver"): trace.calls,
        ("kernel", "gpu_memcpy", "gpu_memset"): trace.gpu,
        ("python_function",): trace.frames,
        ("cuda_sync",): trace.syncs,
    }
    kept = {c for categories in tables for c in categories}
    for categories, table in tables.items():
        written = Counter((e["name"], *span(e)) for category in categories for e in complete(document, category))
        names = [(trace.text(i) or "") for i in table.name.tolist()]
        start, ns = table.start_ns - origin, (table.end_ns - table.start_ns).clip(0)
        assert written == Counter(zip(names, start.tolist(), ns.tolist(), strict=True))
    others = [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] not in kept]
    assert sum(not e["cat"].startswith("gpuprof_") for e in others) == len(trace.other)


def check_our_tracks_are_on_top_and_add_up(document: Document, diagnosis: Diagnosis) -> None:
    assert track_names(document, "process_name")[0] == "gpuprof"
    tops = {e["pid"]: e["args"]["sort_index"] for e in document["traceEvents"] if e["name"] == "process_sort_index"}
    assert min(tops, key=tops.__getitem__) == 1
    low, high = diagnosis.tables.timeline.window
    origin = int(document["otherData"]["origin_ns"])
    gaps = complete(document, "gpuprof_gap")
    assert sum(span(e)[1] for e in gaps) == sum(d.idle_ns for d in diagnosis.devices)
    for cause in CAUSES:
        by_cause = {c.cause: c.ns for c in diagnosis.gaps.by_cause} if diagnosis.gaps else {}
        assert sum(e["args"].get(f"{cause} (ns)", 0) for e in gaps) == by_cause.get(cause, 0)
    phases = [(*span(e), e["name"]) for e in complete(document, "gpuprof_phase")]
    assert phases[0][0] == low - origin and sum(phases[-1][:2]) == high - origin
    assert all(a + ns == b and one != two for (a, ns, one), (b, _, two) in pairwise(phases))
    assert {name for *_, name in phases} <= set(PHASES)
    steps = [span(e)[1] for e in complete(document, "gpuprof_step")]
    assert steps == list(present(diagnosis.steps).each_ns)
    findings = complete(document, "gpuprof_finding")
    assert {e["args"]["finding"] for e in findings} == {f.id for f in diagnosis.findings}
    for finding in diagnosis.findings:
        mine = [e for e in findings if e["args"]["finding"] == finding.id]
        places = [(low - origin + e.start_ns, e.ns or 0) for e in finding.evidence if e.start_ns is not None]
        assert sorted(map(span, mine)) == sorted(places or [(low - origin, high - low)])
        assert all(e["name"] == finding.title and e["args"]["fix"] == finding.fix for e in mine)
    busy = [e for e in document["traceEvents"] if e["ph"] == "C" and e["name"].endswith(" busy")]
    share = float(sum(e["args"]["percent"] for e in busy)) / 100 / max(len(busy), 1)
    assert share == pytest.approx(
        sum(d.busy_ns for d in diagnosis.devices) / max(sum(d.window_ns for d in diagnosis.devices), 1), abs=0.002
    )


def check_gpuprof_reads_its_own_export(document: dict, diagnosis: Diagnosis, file: Path) -> None:
    """Every column that a diagnosis uses comes back, with times counted from the origin."""
    trace = diagnosis.tables.timeline.trace
    again, origin = gpuprof.load(file), int(document["otherData"]["origin_ns"])
    assert not again.reading.dropped and not again.reading.repaired and not again.reading.rounded
    numbers = {
        "ops": ("external", "sequence", "forward_thread", "kind"),
        "calls": ("correlation", "kind"),
        "gpu": ("device", "stream", "correlation", "grid_x", "block_z", "registers", "bytes", "kind"),
        "frames": ("python_id", "parent_id", "module_id"),
    }
    for name, columns_ in numbers.items():
        one, two = getattr(trace, name), getattr(again, name)
        texts = ("name", *(("dims", "types") if name == "ops" else ()))

        def rows(table, strings, shift, columns_=columns_, texts=texts):
            whole = [getattr(table, c).tolist() for c in columns_]
            words = [[strings[i] if i >= 0 else None for i in getattr(table, c).tolist()] for c in texts]
            times = (table.start_ns - shift).tolist(), np.maximum(table.end_ns, table.start_ns - 0).tolist()
            lengths = [max(e - s - shift, 0) for s, e in zip(times[0], times[1], strict=True)]
            return Counter(zip(times[0], lengths, *whole, *words, strict=True))

        # Collectives keep their arguments as in the file, where shapes are written differently.
        plain = [t.take(t.extra < 0) if hasattr(t, "extra") else t for t in (one, two)]
        assert rows(plain[0], trace.strings, origin) == rows(plain[1], again.strings, 0)
    flows = (again.flows.kind == 0).sum()
    assert flows == 2 * sum(e["ph"] == "s" and e["cat"] == "ac2g" for e in document["traceEvents"])


kernels = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 400), st.sampled_from([7, 20])), max_size=20)


@given(kernels, kernels)
@settings(deadline=None, max_examples=15)
def test_any_spans_make_a_file_that_keeps_the_rules(tmp_path_factory, works, ops):
    folder = tmp_path_factory.mktemp("any")
    builder = TraceBuilder().step(0, 0, 2000)
    for start, ns, stream in works:
        builder.launch("kernel", (start, start + 3), (start + ns // 2, start + ns), stream=stream)
    for start, ns, stream in ops:
        builder.op("aten::mm", start, start + ns, tid=MAIN if stream == 7 else AUTOGRAD)
        builder.frame("train.py(3): step", start + 5, start + 5 + ns // 2, tid=MAIN)
    diagnosis = gpuprof.diagnose(builder.write(folder / "any.json"))
    document = perfetto(diagnosis, folder)
    rules.check(document)
    assert len(complete(document, "kernel")) == len(works)
    check_speedscope(speedscope(diagnosis), diagnosis)


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Diagnosis:
    """A file with all kinds of oddities: hostile names, crossing spans, times that run backwards, memory, waits."""
    builder = TraceBuilder()
    at = 1_700_000_000_000_000_001  # Unix time in ns, whose µs no float holds to the ns
    builder.step(0, at, at + 10 * MS)
    builder.launch(HOSTILE.replace("\ud800", ""), (at + 10, at + 20), (at + 30, at + 2 * MS))
    builder.launch("crossing", (at + 40, at + 50), (at + MS, at + 3 * MS))
    builder.launch("k" * 100_000, (at + 60, at + 70), (at + 4 * MS + 1, at + 4 * MS + 8))
    builder.op("</script><script>alert(1)</script>", at + 5, at + 9 * MS, **{"Input Dims": [[2, 3]], "100% sure": 1})
    builder.op('quote " and \\ and \u202e', at + 4 * MS, at + 9 * MS + 500_000)
    builder.launch("before its launch", (at + 5 * MS, at + 5 * MS + 9), (at + 4 * MS + 100, at + 4 * MS + 150))
    builder.launch("of no length", (at + 5 * MS + 20, at + 5 * MS + 29), (at + 6 * MS, at + 6 * MS))
    builder.op("backwards", at + 5 * MS, at + 5 * MS - 7)
    builder.gpu("Event Sync", at + 6, at + MS, cat="cuda_sync", stream=-1, wait_on_stream=7)
    for i in range(3):
        args = {
            "Total Allocated": 100 * i,
            "Total Reserved": 500,
            "Device Type": 1,
            "Device Id": 0,
            "Addr": 1,
            "Bytes": 100,
        }
        builder.event(
            ph="i", cat="cpu_instant_event", name="[memory]", pid=1, tid=MAIN, ts=at + i * MS, s="t", args=args
        )
    return gpuprof.diagnose(builder.write(tmp_path_factory.mktemp("odd") / "odd.json"))


def test_odd_recordings_keep_the_rules(odd, tmp_path):
    document = perfetto(odd, tmp_path)
    rules.check(document)
    assert "stream 7" in track_names(document) and "stream 7 (2)" in track_names(document)
    assert {e["name"] for e in complete(document, "cpu_op")} >= {
        "</script><script>alert(1)</script>", 'quote " and \\ and \u202e', "backwards",
    }  # fmt: skip
    backwards = next(e for e in complete(document, "cpu_op") if e["name"] == "backwards")
    assert backwards["dur"] == 0 and backwards["args"]["recorded dur (ns)"] == -7
    allocated = [e for e in document["traceEvents"] if e["name"] == "GPU 0 memory allocated"]
    assert [int(e["args"]["bytes"]) for e in allocated] == [0, 100, 200]
    assert int(document["otherData"]["origin_ns"]) == 1_700_000_000_000_000_001
    assert max(len(e["name"]) for e in complete(document, "kernel")) == 100_000


def test_nothing_recorded_is_said(tmp_path):
    diagnosis = gpuprof.diagnose(
        TraceBuilder().event(ph="i", name="mark", pid=1, tid=1, ts=5, s="g").write(tmp_path / "t.json")
    )
    with pytest.raises(GpuprofError, match="nothing was recorded"):
        write_perfetto(diagnosis, io.BytesIO())
    with pytest.raises(GpuprofError, match="nothing was recorded"):
        write_speedscope(diagnosis, io.BytesIO())


# -- speedscope

SCHEMA = json.loads((ROOT / "tests" / "data" / "speedscope.schema.json").read_text(encoding="utf-8"))


def check_speedscope(document: dict, diagnosis: Diagnosis) -> None:
    """Checks against the published schema, and what a schema cannot express."""
    few = {**document, "profiles": [first_events(p) for p in document["profiles"]]}
    Draft7Validator(SCHEMA).validate(few)
    frames = document["shared"]["frames"]
    assert len({f["name"] for f in frames}) == len(frames)
    whole = present(diagnosis.window)
    window = whole.end_ns - whole.start_ns
    for profile in document["profiles"]:
        assert profile["unit"] == "nanoseconds" and profile["startValue"] == 0
        if profile["type"] == "sampled":
            assert len(profile["samples"]) == len(profile["weights"])
            assert all(type(w) is int and w > 0 for w in profile["weights"])
            assert sum(profile["weights"]) == profile["endValue"]
            assert all(0 <= f < len(frames) for stack in profile["samples"] for f in stack)
            assert len(set(map(tuple, profile["samples"]))) == len(profile["samples"])
            continue
        assert profile["endValue"] == window
        stack, before = [], 0
        for event in profile["events"]:
            assert set(event) == {"type", "frame", "at"} and event["type"] in "OC"
            assert before <= event["at"] <= window and 0 <= event["frame"] < len(frames)
            before = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
            else:
                assert stack.pop() == event["frame"]
        assert not stack


def first_events(profile: dict) -> dict:
    """The document with fewer events: the validator is slow, and all events are alike."""
    return {**profile, "events": profile["events"][:300]} if "events" in profile else profile


@pytest.mark.parametrize("recording", SOME)
def test_speedscope_files_are_valid_and_add_up(recording):
    diagnosis = diagnosed(resolve(recording))
    document = speedscope(diagnosis)
    check_speedscope(document, diagnosis)
    ends = {p["name"]: p["endValue"] for p in document["profiles"]}
    by_op = sum(ns for name, ns in ends.items() if name.endswith("time by op"))
    idle = sum(ns for name, ns in ends.items() if name.endswith("idle time by cause"))
    assert by_op == (diagnosis.kernels.total_ns if diagnosis.kernels else 0)
    assert idle == sum(d.idle_ns for d in diagnosis.devices)


def test_speedscope_keeps_every_span_of_the_window(odd):
    document = speedscope(odd)
    check_speedscope(document, odd)
    names = [f["name"] for f in document["shared"]["frames"]]
    opened = Counter(names[e["frame"]] for p in document["profiles"] for e in p.get("events", ()) if e["type"] == "O")
    assert opened["cudaLaunchKernel"] == 5
    assert opened["</script><script>alert(1)</script>"] == opened['quote " and \\ and \u202e'] == 1


def test_stacks_of_speedscope_are_those_of_the_ops(tmp_path):
    """Compared with a walk up the parents, one kernel at a time."""
    diagnosis = diagnosed(COMMITTED[0])
    timeline, document = diagnosis.tables.timeline, speedscope(diagnosed(COMMITTED[0]))
    trace, expected = timeline.trace, Counter()
    for row in timeline.members.tolist():
        stack, op = [trace.strings[trace.gpu.name[row]]], int(timeline.links.op[row])
        stack += ["(no op)"] if op < 0 else []
        while op >= 0:
            name = trace.strings[trace.ops.name[op]]
            stack += [] if name.startswith("ProfilerStep") else [name]
            op = int(timeline.nesting.parent[op])
        expected[tuple(reversed(stack))] += max(int(trace.gpu.end_ns[row] - trace.gpu.start_ns[row]), 0)
    names = [f["name"] for f in document["shared"]["frames"]]
    profile = document["profiles"][0]
    found = {tuple(names[f] for f in s): w for s, w in zip(profile["samples"], profile["weights"], strict=True)}
    assert found == {stack: ns for stack, ns in expected.items() if ns}


# -- Parquet


def test_parquet_brings_the_tables_back(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from gpuprof.interop.parquet import TABLES, write_parquet

    diagnosis = diagnosed(COMMITTED[0])
    rows = write_parquet(diagnosis, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*(f"{name}.parquet" for name in TABLES), "diagnosis.json"}
    for name in ("gaps", "kernels", "steps", "ops"):
        wrote, read = getattr(diagnosis.tables, name)(), pd.read_parquet(tmp_path / f"{name}.parquet")
        assert len(read) == rows[name] == len(wrote)
        assert list(read.columns) == list(wrote.columns) and list(read.index) == list(wrote.index)
        for column in wrote.columns:
            one, two = wrote[column], read[column]
            if one.dtype.kind in "iu" or isinstance(one.dtype, (pd.CategoricalDtype, pd.Int64Dtype)):
                assert one.dtype == two.dtype, column
            else:
                assert pd.api.types.is_string_dtype(two.dtype), column
            known = [[None if pd.isna(v) else v for v in c.tolist()] for c in (one, two)]
            assert known[0] == known[1], column
    found = pd.read_parquet(tmp_path / "findings.parquet")
    assert found["id"].tolist() == [f.id for f in diagnosis.findings]
    assert [len(e) for e in found["evidence"]] == [len(f.evidence) for f in diagnosis.findings]
    assert json.loads((tmp_path / "diagnosis.json").read_text())["schema"] == "gpuprof.diagnosis/1"


def test_parquet_takes_names_that_are_no_text(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from gpuprof.interop.parquet import write_parquet

    builder = TraceBuilder().step(0, 0, MS).op(HOSTILE, 5, 500)
    builder.launch("kernel", (10, 20), (30, 400))
    write_parquet(gpuprof.diagnose(builder.write(tmp_path / "t.json")), tmp_path)
    assert HOSTILE.replace("\ud800", "\ufffd") in pd.read_parquet(tmp_path / "ops.parquet")["name"].tolist()
    # No gap here is in a module, and the column still holds texts.
    assert pd.api.types.is_string_dtype(pd.read_parquet(tmp_path / "gaps.parquet")["module"].dtype)

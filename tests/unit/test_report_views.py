"""The data of the page's views: every event once, in lanes that do not overlap, and trees that sum up."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.unpack import events, unpack
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof import diagnose
from gpuprof.report import labels
from gpuprof.report.page.packing import pack
from gpuprof.report.page.views.counter_lines import lowest_and_highest
from gpuprof.report.page.views.gpu_tracks import gpu_phase_spans
from gpuprof.report.page.views.nesting_rows import depths
from gpuprof.report.page.views.overview import host_phase_spans
from gpuprof.report.page.views.texts import coded
from gpuprof.report.page.views.timeline_window import choose
from gpuprof.report.page.views.trees import paths, tree
from gpuprof.report.page.views.view_colours import BY_GAIN
from gpuprof.report.page.views.views import packed_views
from gpuprof.report.palette import CAUSE_PAINTS
from gpuprof.timeline.phases import PHASES

DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"


@pytest.fixture(scope="module", params=[DEMO, RUN], ids=["demo", "run"])
def seen(request):
    """(diagnosis, header, columns, events) of a recording."""
    diagnosis = diagnosed(request.param)
    header, columns = unpack(packed_views(diagnosis)[0])
    return diagnosis, header, columns, events(header, columns)


# -- packing

numbers = st.lists(st.integers(0, 2**48 - 1), max_size=50)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), numbers, max_size=4), st.text(max_size=30))
def test_what_is_packed_comes_back(columns, text):
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    header, found = unpack(pack({"text": text}, arrays))
    assert found == columns
    assert header["text"] == text


@pytest.mark.parametrize("value", [-1, 2**48])
def test_what_cannot_be_packed_is_refused(value):
    with pytest.raises(ValueError, match="cannot hold"):
        pack({}, {"start": np.array([0, value])})


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError):
        pack({"efficiency": float("nan")}, {})


# -- lanes

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=40)


@given(spans)
@settings(max_examples=300)
def test_spans_of_one_lane_do_not_overlap_and_what_lies_inside_is_deeper(pairs):
    start = np.array([s for s, _ in pairs], np.int64)
    end = start + np.array([n for _, n in pairs], np.int64)
    depth = depths(start, end)
    for i in range(len(pairs)):
        for j in range(len(pairs)):
            if i == j or depth[i] != depth[j]:
                continue
            assert end[i] <= start[j] or end[j] <= start[i], (pairs[i], pairs[j])
    for i in range(len(pairs)):
        holds = (start < start[i]) & (end > end[i])
        assert not holds.any() or depth[i] > depth[holds].max()


def test_lanes_are_in_order(seen):
    _, _, _, found = seen
    last: dict[tuple[int, int], int] = {}
    for event in found:
        lane = (event.track, event.depth)
        assert event.start_ns >= last.get(lane, event.start_ns), event
        last[lane] = event.start_ns + event.ns


# -- the timeline


def test_every_event_of_the_recording_is_drawn_once(seen):
    diagnosis, header, _, found = seen
    trace = diagnosis.tables.timeline.trace
    kinds = Counter(header["tracks"][event.track]["kind"] for event in found)
    assert kinds["stream"] == len(trace.gpu)
    assert kinds["ops"] == len(trace.ops) + len(trace.calls)
    assert kinds["frames"] == len(trace.frames)
    assert kinds["waits"] == len(diagnosis.tables.columns.start_ns)
    assert kinds["steps"] == diagnosis.steps.count


def test_times_are_exact(seen):
    """Starts and durations of kernels, in any order, are those of the recording."""
    diagnosis, header, _, found = seen
    gpu, low = diagnosis.tables.timeline.trace.gpu, diagnosis.window.start_ns
    drawn = sorted((e.start_ns, e.ns) for e in found if header["tracks"][e.track]["kind"] == "stream")
    ends = np.maximum(gpu.end_ns, gpu.start_ns)
    assert drawn == sorted(zip((gpu.start_ns - low).tolist(), (ends - gpu.start_ns).tolist(), strict=True))


def test_arrows_lead_to_the_launching_call(seen):
    """Compared by time and name: a kernel's arrow points at the call that the trace's correlation ids name."""
    diagnosis, header, _, found = seen
    timeline = diagnosis.tables.timeline
    trace, low = timeline.trace, diagnosis.window.start_ns
    by_correlation = {int(c): i for i, c in enumerate(trace.calls.correlation.tolist())}
    launched = {}
    for row, correlation in enumerate(trace.gpu.correlation.tolist()):
        call = by_correlation.get(correlation)
        if call is not None:
            key = (int(trace.gpu.start_ns[row]) - low, int(trace.gpu.stream[row]))
            launched[key] = (int(trace.calls.start_ns[call]) - low, trace.strings[trace.calls.name[call]])
    checked = 0
    for event in found:
        track = header["tracks"][event.track]
        if track["kind"] != "stream" or event.link < 0:
            continue
        call = found[event.link]
        assert (call.start_ns, call.name) == launched[event.start_ns, int(track["name"].split()[-1])]
        checked += 1
    assert checked > 0.9 * len(trace.gpu)


def test_waits_point_at_what_they_wait_for(seen):
    _, header, _, found = seen
    waits = [e for e in found if header["tracks"][e.track]["kind"] == "waits"]
    for event in waits:
        if event.link >= 0:
            assert found[event.link].start_ns == event.start_ns + event.ns
    assert sum(e.link >= 0 for e in waits) > 0.9 * len(waits)
    assert {e.name for e in waits} <= {paint.label for paint in CAUSE_PAINTS.values()}


def test_phases_of_the_host_fill_the_window(seen):
    diagnosis, *_ = seen
    start, end, phase = host_phase_spans(diagnosis.tables.timeline)
    assert start[0] == diagnosis.window.start_ns
    assert end[-1] == diagnosis.window.end_ns
    assert (start[1:] == end[:-1]).all()
    assert (phase[1:] != phase[:-1]).all()
    result = {PHASES[p] for p in phase.tolist()}
    assert {"forward", "backward", "optimizer"} <= result


def test_findings_stand_where_their_evidence_says(seen):
    diagnosis, header, _, found = seen
    drawn = {(e.start_ns, e.ns) for e in found if header["tracks"][e.track]["kind"] == "findings"}
    places = {(e.start_ns, e.ns) for f in diagnosis.findings for e in f.evidence if e.start_ns is not None}
    assert drawn == places
    assert drawn


def five_steps() -> TraceBuilder:
    """Of 1, 1, 3, 1 and 1 ms, each with 40 ops and 20 kernels; the third is the one that stands for none."""
    builder, at = TraceBuilder(), 1_000_000
    for number, ns in enumerate((1_000_000, 1_000_000, 3_000_000, 1_000_000, 1_000_000)):
        builder.step(number, at, at + ns)
        for i in range(40):
            builder.op(f"aten::op{i % 5}", at + i * 20_000, at + i * 20_000 + 1_000 * (1 + i % 7))
        for i in range(20):
            start = at + i * 40_000 + 200
            builder.launch("kernel", (start, start + 300), (start + 1_000, start + 15_000))
        at += ns
    return builder


def test_phases_of_the_gpu_are_one_row(tmp_path):
    """Backward kernels one after the other; a collective runs beside them on a second stream, and ends after them."""
    us, builder = 1000, TraceBuilder()
    builder.step(0, 0, 20_000 * us)
    builder.op("aten::mm", 10 * us, 3000 * us)
    builder.launch("gemm_kernel", (20 * us, 30 * us), (100 * us, 3000 * us))
    for i in range(20):
        at = (3000 + 500 * i) * us
        builder.op("autograd::engine::evaluate_function: MmBackward0", at, at + 400 * us)
        builder.launch("gemm_kernel", (at + 10 * us, at + 20 * us), (at + 30 * us, at + 400 * us))
        builder.launch(
            "ncclDevKernel_AllReduce", (at + 40 * us, at + 50 * us), (at + 100 * us, at + 560 * us), stream=20
        )
    found = diagnose(builder.write(tmp_path / "steps.json")).tables.timeline
    start, end, phase = gpu_phase_spans(found, np.arange(len(found.trace.gpu)))
    assert (start[1:] >= end[:-1]).all(), "no two at the same time"
    assert {PHASES[code] for code in phase.tolist()} == {"forward", "backward", "communication"}
    assert end.max() == found.trace.gpu.end_ns.max() and start.min() == found.trace.gpu.start_ns.min()


def test_of_a_large_recording_whole_steps_are_shown(tmp_path):
    diagnosis = diagnose(five_steps().write(tmp_path / "steps.json"))
    timeline = diagnosis.tables.timeline
    every = choose(timeline, 10**9)
    assert every.note == ""
    some = choose(timeline, every.events // 2)
    assert "of 5 steps" in some.note
    assert some.low_ns in timeline.steps.start_ns
    assert some.low_ns != timeline.steps.start_ns[2], "the longest step stands for none"
    assert some.events < every.events
    fewest = choose(timeline, len(some.gpu) + 10)
    assert "shows 2 of 5" in fewest.note and len(fewest.gpu) == 40, "what the GPU did is never thinned"
    assert "left out" in fewest.note
    assert len(fewest.ops) + len(fewest.calls) < len(some.ops) + len(some.calls)
    data, note = packed_views(diagnosis, every.events // 2)
    assert note == some.note
    assert unpack(data)[0]["step_count"] == 5, "sums stay those of all steps"


# -- trees


def totals(header, columns, name: str) -> dict[str, int]:
    """Path → ns of the node with all below it."""
    number = [t["id"] for t in header["trees"]].index(name)
    parent = [p - 1 for p in columns[f"tree{number}.parent"]]
    own, text = columns[f"tree{number}.own"], columns[f"tree{number}.name"]
    total = list(own)
    for i in range(len(own) - 1, 0, -1):
        assert parent[i] < i
        total[parent[i]] += total[i]
    names: list[str] = []
    for i, above in enumerate(parent):
        # Kernels with the same short name are still different ones.
        here = header["full"].get(str(text[i]), header["strings"][text[i]]).replace("/", "|")
        names.append(here if above < 0 else f"{names[above]}/{here}")
    assert len(set(names)) == len(names), "a node stands twice"
    return dict(zip(names, total, strict=True))


def test_gpu_time_sums_up(seen):
    diagnosis, header, columns, _ = seen
    found = totals(header, columns, "gpu")
    assert found["GPU time"] == diagnosis.kernels.total_ns
    phases = {p.name: p.ns for p in diagnosis.kernels.by_phase}
    assert {path.split("/")[1]: ns for path, ns in found.items() if path.count("/") == 1} == phases


def test_idle_time_sums_up(seen):
    diagnosis, header, columns, _ = seen
    found = totals(header, columns, "idle")
    assert found["idle"] == diagnosis.gaps.total_ns
    assert sorted(ns for path, ns in found.items() if path.count("/") == 1) == sorted(
        c.ns for c in diagnosis.gaps.by_cause if c.ns
    )


def test_host_threads_are_as_wide_as_the_window(seen):
    diagnosis, header, columns, _ = seen
    window = diagnosis.window.end_ns - diagnosis.window.start_ns
    found = totals(header, columns, "host")
    threads = [ns for path, ns in found.items() if path.count("/") == 1]
    assert threads
    for ns in threads:
        assert ns == window


def test_what_the_next_step_does_is_not_the_optimizers(tmp_path):
    """The profiler steps in a hook of the optimizer, whose range ends 50 µs into the next step."""
    builder, step, us = TraceBuilder(), 10_000_000, 1000
    for i in range(3):
        at = i * step
        builder.step(i, at, at + step)
        builder.op("aten::conv2d", at + 100 * us, at + 6000 * us)
        builder.launch("conv_kernel", (at + 200 * us, at + 210 * us), (at + 300 * us, at + 5300 * us))
        # The last range is cut by the profiler itself, as it takes long to stop.
        builder.annotation("Optimizer.step#Adam.step", at + 9000 * us, at + step + (50 if i < 2 else 90_000) * us)
        builder.op("aten::_fused_adam_", at + 9100 * us, at + 9500 * us)
        builder.launch("adam_kernel", (at + 9200 * us, at + 9210 * us), (at + 9300 * us, at + 9900 * us))
    diagnosis = diagnose(builder.write(tmp_path / "steps.json"))
    header, columns = unpack(packed_views(diagnosis)[0])
    on_gpu = totals(header, columns, "gpu")
    assert {path for path in on_gpu if "conv" in path and "Optimizer" in path} == set()
    adam = next(ns for path, ns in on_gpu.items() if path.endswith("Optimizer.step#Adam.step/aten::_fused_adam_"))
    assert adam == 3 * 600 * us
    host = totals(header, columns, "host")
    assert {path for path in host if "conv" in path and "Optimizer" in path} == set()
    boxes = {path.split("/")[2] for path in host if path.count("/") > 1}
    assert "steps" in boxes and not any("ProfilerStep" in one for one in boxes), "of all steps one box"
    assert {one.depth for one in events(header, columns) if one.name.startswith("ProfilerStep")} == {0}, "no staircase"
    # The part of each optimizer range before the next step: two whole ones of 1 ms, and the last up to the window's
    # end.
    assert sum(ns for path, ns in host.items() if path.endswith("/Optimizer.step#Adam.step")) == 3 * 1000 * us
    assert host["CPU time"] == 3 * step
    ranges = {one.name: one for one in diagnosis.ranges}
    assert ranges["Optimizer.step#Adam.step"].ns == (1050 + 1050 + 1000) * us
    assert ranges["ProfilerStep#"].launches == 6, "what runs in both ranges counts in both"


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 3)), max_size=30))
def test_paths_are_distinguished_by_their_labels(rows):
    parent = np.array([min(p, i - 1) for i, (p, _) in enumerate(rows)], np.int64)
    label = np.array([name for _, name in rows], np.int64)
    found = paths(parent, label)

    def plainly(row: int) -> tuple[int, ...]:
        return (*(plainly(int(parent[row])) if parent[row] >= 0 else ()), int(label[row]))

    def of_node(node: int) -> tuple[int, ...]:
        above = int(found.parent[node])
        return (*(of_node(above) if above >= 0 else ()), int(found.label[node]))

    for row in range(len(rows)):
        assert of_node(int(found.node[row])) == plainly(row)
    assert len(found.parent) == len({plainly(row) for row in range(len(rows))})


def test_of_too_many_nodes_the_smallest_are_summed_up(monkeypatch):
    from gpuprof.report.page.views import trees

    monkeypatch.setattr(trees, "MOST_NODES", 3)
    parent = np.array([-1, 0, 0, 1, 1])
    leaf, ns = np.array([2, 3, 4, 4]), np.array([5, 70, 3, 4])
    found = tree("t", "", "", "", parent, np.arange(5), leaf, ns, np.ones(4, np.int64), np.array([1, 2, 3, 3]), 0)
    assert found.parent.tolist() == [-1, 0, 1]
    assert found.text.tolist() == [0, 1, 3]
    assert found.own_ns.tolist() == [5, 7, 70]
    assert found.count.tolist() == [1, 2, 1]
    assert found.paint.tolist() == [2, 2, 2]


# -- the kernel table


def test_kernel_rows_are_all_the_gpu_time(seen):
    diagnosis, header, _, _ = seen
    rows, strings = header["kernels"], header["strings"]
    assert sum(rows["ns"]) == diagnosis.kernels.total_ns
    assert sum(rows["count"]) == diagnosis.kernels.count
    assert rows["ns"] == sorted(rows["ns"], reverse=True)
    table = diagnosis.tables.kernels()
    by_op = table.groupby(table["op"].fillna("–"))["ns"].agg(["sum", "max"])
    found: Counter[str] = Counter()
    longest: dict[str, int] = {}
    for op, ns, most in zip(rows["op"], rows["ns"], rows["max_ns"], strict=True):
        found[strings[op]] += ns
        longest[strings[op]] = max(longest.get(strings[op], 0), most)
    assert dict(found) == by_op["sum"].to_dict()
    assert longest == by_op["max"].to_dict()


def test_medians_and_bounds_of_kernels(seen):
    diagnosis, header, _, _ = seen
    rows, strings = header["kernels"], header["strings"]
    table = diagnosis.tables.kernels()
    first = {key: rows[key][0] for key in ("op", "phase", "category", "median_ns", "count", "efficiency", "bound")}
    same = table[
        (table["op"] == strings[first["op"]])
        & (table["phase"] == strings[first["phase"]])
        & (table["category"].map(labels.category) == strings[first["category"]])
    ]
    groups = [g for _, g in same.groupby("name") if len(g) == first["count"]]
    assert any(sorted(g["ns"])[(len(g) - 1) // 2] == first["median_ns"] for g in groups)
    assert first["bound"] in ("compute", "memory", "latency")
    assert 0 < first["efficiency"] <= 1


# -- small parts


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=400), st.integers(4, 60))
def test_thinned_lines_keep_their_extremes(values, most):
    array = np.array(values, np.int64)
    kept = lowest_and_highest(array, most)
    assert (np.diff(kept) > 0).all()
    assert {int(array[kept].min()), int(array[kept].max())} == {min(values), max(values)}
    assert len(kept) <= max(most, len(values) if len(values) <= most else most)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 1)), min_size=1, max_size=60))
def test_combinations_are_numbered(rows):
    first, code = coded(*(np.array(column) for column in zip(*rows, strict=True)))
    assert len(first) == len(set(rows))
    for row, number in zip(rows, code.tolist(), strict=True):
        assert rows[first[number]] == row


def test_the_header_is_plain_json(seen):
    _, header, _, _ = seen
    json.dumps(header, allow_nan=False)


def test_a_parent_of_several_kinds_is_painted_as_none_of_them():
    """Node 1 holds 60 of one kind and 40 of another, node 2 95 and 5; `mixed` is 9."""
    parent = np.array([-1, 0, 0, 1, 1, 2, 2])
    leaf, ns, paint = np.array([3, 4, 5, 6]), np.array([60, 40, 95, 5]), np.array([1, 2, 1, 2])
    of = {"id": "", "title": "", "levels": "", "note": "", "parent": parent, "text": parent, "leaf": leaf, "ns": ns}
    found = tree(**of, count=np.ones(4, np.int64), paint=paint, plain=0, mixed=9)
    assert found.paint.tolist() == [9, 9, 1, 1, 2, 1, 2]
    assert tree(**of, count=np.ones(4, np.int64), paint=paint, plain=0).paint.tolist() == [1, 1, 1, 1, 2, 1, 2]


def test_functions_have_the_shade_of_their_gain():
    """The mean of the root is 0.52; a part of which nothing is known does not count."""
    of = {"id": "t", "title": "", "levels": "", "note": "", "parent": np.array([-1, 0, 0, 0]), "text": np.arange(4)}
    share = np.array([1.0, 0.9, 0.05, np.nan])
    found = tree(
        **of, leaf=np.array([1, 1, 2, 3]), ns=np.array([10, 10, 18, 500]), count=np.ones(4, np.int64), paint=share,
        plain=7,
    )  # fmt: skip
    assert found.paint.tolist() == [BY_GAIN[2], BY_GAIN[4], BY_GAIN[0], 7]


def test_the_timeline_ends_with_the_work_and_not_with_the_profiler(seen):
    """Stacks that were open when the profiler stopped do not make it longer."""
    _, header, _, found = seen
    open_ended = ("frames", "ops")
    ends = [one.start_ns + one.ns for one in found if header["tracks"][one.track]["kind"] not in open_ended]
    assert header["span"][1] - max(ends) <= 0.02 * (header["span"][1] - header["span"][0])

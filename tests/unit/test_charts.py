"""Charts say what the diagnosis says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.charts import FIGURES, RUN, THROTTLED_RUN, content, drawn
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import MS, STEPS, host_bound, two_devices, unusable
from helpers.present import present
from helpers.traces import shared_trace

from gpuprof.diagnosis.result.finding_model import Combined, Finding
from gpuprof.ranks.summary import Job, Member, OnPath, RankSummary
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.report import charts, palette
from gpuprof.report.charts.downsample import outline
from gpuprof.report.charts.groups import kernel_groups, known_roofline, modelled_rows, possible
from gpuprof.report.charts.telemetry import _throttled
from gpuprof.report.page.html import palette_css
from gpuprof.value_range import Range

pytest_plugins = ["helpers.charts"]


# -- numbers


def test_bars_of_gaps_sum_to_the_idle_time(real):
    figure = content(charts.gap_histogram(real))
    idle_ms = sum(sum(bar["y"]) for bar in figure["data"])
    assert idle_ms == pytest.approx(real.gaps.total_ns / real.steps.count / len(real.devices) / 1e6, rel=1e-4)
    by_cause = {cause.cause: cause.ns for cause in real.gaps.by_cause if cause.ns}
    labels = {palette.CAUSE_PAINTS[key].label: ns for key, ns in by_cause.items()}
    for bar in figure["data"]:
        expected = labels.pop(bar["name"]) / real.steps.count / len(real.devices) / 1e6
        assert sum(bar["y"]) == pytest.approx(expected, rel=1e-4)
    assert not labels, "each cause has its bars"


def test_a_gap_is_in_the_bar_of_its_length(bare_trace):
    """Gaps of 10 to 20 µs, counted by hand, are in the bar right of the tick at 10 µs."""
    figure = content(charts.gap_histogram(bare_trace))
    ticks = dict(zip(figure["layout"]["xaxis"]["ticktext"], figure["layout"]["xaxis"]["tickvals"], strict=True))
    at = ticks["10 µs"] + 0.5
    shown = sum(bar["y"][bar["x"].index(at)] for bar in figure["data"])
    table = bare_trace.tables.gaps()
    inside = table[(table.ns >= 10_000) & (table.ns < 20_000)]
    assert len(inside)
    assert shown == pytest.approx(inside.ns.sum() / bare_trace.steps.count / 1e6, rel=1e-4)


def test_sensitivities_are_halves_in_percent():
    diagnosis = host_bound(sensitivities=Sensitivities(0.8, 0.0, 0.1, 0.0, 0.3, 0.2, 0.05, 0.01))
    bar = content(charts.sensitivities(diagnosis))["data"][0]
    shown = dict(zip(bar["y"], bar["x"], strict=True))
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert shown["CPU (host)"] == pytest.approx(40)
    assert shown["GPU arithmetic"] == pytest.approx(10)
    assert "GPU" not in shown, "its parts tell more"
    assert bar["textposition"] == ["inside"] + ["outside"] * (len(shown) - 1)
    whole = host_bound(sensitivities=Sensitivities(0.8, 0.0, 0.1, 0.0, 0.3))
    assert "GPU" in content(charts.sensitivities(whole))["data"][0]["y"]


def test_phases_are_per_step():
    busy, idle = content(charts.phases(host_bound()))["data"]
    assert (busy["name"], idle["name"]) == ("GPU busy", "GPU idle")
    assert dict(zip(busy["y"], busy["x"], strict=True))["backward"] == pytest.approx(34 / STEPS)
    assert sum(busy["x"]) + sum(idle["x"]) == pytest.approx(168)


def test_points_are_all_kernels_whose_work_is_known(real):
    """Time, FLOPs and bytes of the points, compared with another computation from columns, without the small ones that
    are left out."""
    roof, timeline = real.tables.roofline, real.tables.timeline
    gpu, rows = timeline.trace.gpu, timeline.members
    ns = (gpu.end_ns - gpu.start_ns)[rows]
    work = roof.work
    known = work.model[rows] & ~work.over_link[rows] & (work.bytes[rows] > 0)
    ours = {
        name: sum(_microseconds(point) for point in _points(getattr(charts, name)(real)))
        for name in ("roofline", "bandwidth")
    }
    steps = real.steps.count
    matmul = known & (work.flops[rows] > 0)
    assert 0.95 < ours["roofline"] / (ns[matmul].sum() / steps / 1e3) < 1.03
    other = known & (work.flops[rows] == 0)
    assert 0.95 < ours["bandwidth"] / (ns[other].sum() / steps / 1e3) < 1.03


def _points(figure) -> list[tuple[float, float, list[str]]]:
    return [
        (x, y, words)
        for trace in content(figure)["data"]
        if "customdata" in trace
        for x, y, words in zip(trace["x"], trace["y"], trace["customdata"], strict=True)
    ]


def _microseconds(point) -> float:
    """The time per step in the label of a point, to its two digits."""
    value, unit = point[2][2].split(" and ")[0].split(" ")
    return float(value.replace(",", "")) * {"ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}[unit]


def test_the_largest_point_is_the_kernel_with_most_matrix_time(bare_trace):
    """One group computed by pandas: its place on both axes."""
    roof = bare_trace.tables.roofline
    table = bare_trace.tables.kernels()
    rows = bare_trace.tables.timeline.members
    table["flops"], table["bytes"], table["dtype"] = roof.work.flops[rows], roof.work.bytes[rows], roof.work.dtype[rows]
    sums = table[(table.flops > 0)].groupby(["name", "op", "dtype"])[["ns", "flops", "bytes"]].sum()
    top = sums.sort_values("ns").iloc[-1]
    traces = [t for t in content(charts.roofline(bare_trace))["data"] if "customdata" in t]
    size, x, y = max(
        point for t in traces for point in zip(t["marker"]["size"], t["x"], t["y"], strict=True)
    )  # fmt: skip
    assert x == pytest.approx(top.flops / top.bytes, rel=1e-4)
    assert y == pytest.approx(top.flops / top.ns * 1e9, rel=1e-4)
    assert size == pytest.approx(38)


def test_ceilings_are_labelled_with_their_rates(bare_trace):
    words = " ".join(note["text"] for note in content(charts.roofline(bare_trace))["layout"]["annotations"])
    assert "memory 4.28 TB/s" in words
    assert "bf16 tensor 796 TFLOP/s" in words
    assert "int8" not in words, "only of formats in use"


def test_what_if_shows_time_for_the_same_work():
    fixes = (
        Finding("a", "first", "high", (), "", Range(40 * MS, 50 * MS, 70 * MS), Range(1, 2, 2.5)),
        Finding("b", "more work", "high", (), "", Range(150 * MS, 160 * MS, 200 * MS), Range(3, 4, 5), work=4.0),
    )
    both = Combined(("a", "b"), ("first", "more work"), Range(80 * MS, 100 * MS, 120 * MS), Range(5, 6, 8), 4.0)
    steps = replace(present(host_bound().steps), unprofiled_ns=100 * MS)
    figure = content(charts.what_if(host_bound(findings=fixes, combined=both, steps=steps)))
    now, points = figure["data"]
    assert now["x"] == [100, 100]
    assert points["x"] == [50, 25, 16.6667]
    assert points["error_x"]["array"] == pytest.approx([50, 8.3333, 3.3333], rel=1e-3)
    assert points["error_x"]["arrayminus"] == pytest.approx([10, 5, 4.1667], rel=1e-3)
    labels = figure["layout"]["yaxis"]["ticktext"]
    assert labels == ["1  first", "2  more work (4× work)", "1 + 2  together (4× work)"]
    assert "for the work of a step now" in figure["layout"]["xaxis"]["title"]["text"]


def test_what_is_worth_trying_stands_last_as_open_circles():
    sure = Finding("a", "first", "high", (), "", Range(40 * MS, 50 * MS, 70 * MS), Range(1, 2, 2.5))
    unsure = replace(sure, id="b", title="second", probability=0.6)
    steps = replace(present(host_bound().steps), unprofiled_ns=100 * MS)
    figure = content(charts.what_if(host_bound(findings=(sure,), worth_trying=(unsure,), steps=steps)))
    points = figure["data"][1]
    assert figure["layout"]["yaxis"]["ticktext"] == ["1  first", "2  second"]
    assert points["marker"]["symbol"] == ["circle", "circle-open"]
    assert [words[0] for words in points["customdata"]] == ["1  first", "2  second, 60 % likely"]
    alone = content(charts.what_if(host_bound(findings=(), worth_trying=(unsure,), steps=steps)))
    assert alone["data"][1]["marker"]["symbol"] == ["circle-open"]


def test_ranks_wait_for_the_slowest():
    ranks = (rank(0, 75, 42), rank(1, 117, 0))
    own, waiting = content(charts.ranks(host_bound(ranks=ranks)))["data"]
    assert (own["y"], own["x"], waiting["x"]) == (["rank 0", "rank 1"], [75, 117], [42, 0])
    many = content(charts.ranks(host_bound(ranks=tuple(rank(i, 75, 42) for i in range(40)))))
    assert many["layout"]["height"] < 500
    assert len(many["data"][0]["x"]) == 40


def test_who_waits_in_which_step():
    members = (
        Member(0, 0, "", 75 * MS, (0, 0, 0), (40 * MS, 42 * MS, 0)),
        Member(1, 0, "", 117 * MS, (40 * MS, 42 * MS, 0), (0, 0, 0)),
    )
    job = Job(
        2, 3, 1, 1, (("world", 1),), 117 * MS, 96 * MS, 1.2, 0.0, None, None, (), None, None, members, ()
    )  # fmt: skip
    late, waits = content(charts.rank_steps(host_bound(job=job)))["data"]
    assert (late["x"], late["y"]) == ([0, 1], ["rank 1"] * 2)
    assert (waits["x"], waits["y"]) == ([0, 1], ["rank 0"] * 2)
    assert late["marker"]["opacity"] == [pytest.approx(40 / 42, abs=1e-3), 1]
    many = replace(job, ranks=1024, members=members * 512)
    assert content(charts.rank_steps(host_bound(job=many)))["layout"]["height"] < 1000
    alone = replace(job, members=tuple(replace(one, waited_ns=(0, 0, 0)) for one in members))
    assert charts.rank_steps(host_bound(job=alone)) is None


def test_the_critical_path_has_a_row_for_each_rank_on_it():
    members = tuple(Member(r, r // 2, "", 75 * MS, (0,), (0,)) for r in range(4))
    path = (
        OnPath(0, "forward", 0, 30 * MS), OnPath(0, "communication", 30 * MS, 2 * MS),
        OnPath(3, "backward", 32 * MS, 60 * MS), OnPath(0, "forward", 92 * MS, 8 * MS),
    )  # fmt: skip
    job = Job(
        4, 1, 2, 1, (("world", 1),), 100 * MS, 96 * MS, 1.04, 0.0, None, None, (), None, None, members, (), path
    )  # fmt: skip
    figure = content(charts.critical_path(host_bound(job=job)))
    bars = {trace["name"]: trace for trace in figure["data"]}
    assert list(bars) == ["forward", "backward", "communication"]
    assert (bars["forward"]["y"], bars["forward"]["base"], bars["forward"]["x"]) == (
        ["rank 0, stage 0"] * 2, [0, 92], [30, 8],
    )  # fmt: skip
    assert bars["backward"]["customdata"] == [["60 ms", "60 %"]]
    legend = figure["layout"]["meta"]["legend"]
    assert [part["name"] for part in legend] == list(bars), "the page writes it, at any width"
    assert all(f"--{part['kind']}-{part['key']}:" in palette_css() for part in legend)
    assert figure["layout"]["yaxis"]["categoryarray"] == ["rank 0, stage 0", "rank 3, stage 1"]
    wide = tuple(OnPath(r, "forward", r * MS, MS + r) for r in range(100))
    many = content(charts.critical_path(host_bound(job=replace(job, critical_path=wide))))
    assert len(many["data"][0]["y"]) == 40
    assert "60 ranks with less of it are left out" in many["layout"]["meta"]["note"]
    assert charts.critical_path(host_bound(job=replace(job, critical_path=()))) is None


def rank(number: int, pace_ms: int, waiting_ms: int) -> RankSummary:
    return RankSummary(number, "", 117 * MS, pace_ms * MS, waiting_ms * MS, 0, 0.0, "host", None, None, None)


def test_steps_of_a_run_are_distinguished(timed_run):
    figure = content(charts.steps(timed_run))
    points = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    lines = [json.loads(line) for line in (RUN / "steps.jsonl").read_text().splitlines()]
    assert sum(len(trace["x"]) for trace in points) == len(lines) - 1, "the first has no beginning"
    recorded = next(trace for trace in points if trace["name"] == "recorded")
    assert recorded["x"] == [line["step"] for line in lines if line["stage"] == "trace"]
    assert {trace["name"] for trace in points} >= {"warm-up", "without the profiler", "recorded"}
    named = [trace["name"] for trace in points if trace.get("showlegend")]
    assert len(named) == len(set(named)), "once in the legend"


def test_a_step_far_above_the_others_does_not_flatten_them():
    steps = present(host_bound().steps)
    long = replace(steps, each_ns=(100 * MS,) * 9 + (9000 * MS,))
    figure = content(charts.steps(host_bound(steps=long)))
    assert max(figure["data"][0]["y"]) == 400
    assert figure["data"][0]["marker"]["symbol"][-1] == "triangle-up"
    assert "9.0 s" in figure["data"][0]["customdata"]
    assert "1 step far above" in figure["layout"]["meta"]["note"]


def test_telemetry_of_a_run():
    figure = content(charts.telemetry(diagnosed(THROTTLED_RUN)))
    samples = [json.loads(line) for line in (THROTTLED_RUN / "telemetry.jsonl").read_text().splitlines()]
    assert max(figure["data"][0]["y"]) == pytest.approx(max(s["gpus"][0]["power_w"] for s in samples), rel=1e-4)
    utilisation = next(trace for trace in figure["data"] if trace.get("yaxis") == "y4")
    assert max(utilisation["y"]) == pytest.approx(100 * max(s["gpus"][0]["utilization"] for s in samples))
    held_back = {reason for s in samples for reason in s["gpus"][0]["throttle"] or ()}
    assert held_back, "the run is one whose clock was held back"
    assert "the power limit" in figure["layout"]["meta"]["note"]
    shaded = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    seconds = sum(shape["x1"] - shape["x0"] for shape in shaded)
    share = sum(bool(s["gpus"][0]["throttle"]) for s in samples) / len(samples)
    span = (samples[-1]["unix_ns"] - samples[0]["unix_ns"]) / 1e9
    assert seconds == pytest.approx(share * span, rel=0.1)


def test_memory_of_a_run_is_that_of_its_steps(timed_run):
    figure = content(charts.memory(timed_run))
    lines = [json.loads(line) for line in (RUN / "steps.jsonl").read_text().splitlines()]
    peak = next(trace for trace in figure["data"] if trace["name"] == "peak of the step")
    assert max(peak["y"]) == pytest.approx(max(line["peak_bytes"] or 0 for line in lines) / 2**30, rel=1e-4)


def test_a_peak_of_the_recorded_steps_alone_is_not_the_runs(timed_run):
    """The tile next to the verdict leaves the recorded steps out, since recording shapes keeps tensors alive."""
    known = timed_run.run.memory
    assert "in the others" not in content(charts.memory(timed_run))["layout"]["meta"]["note"]
    less = replace(timed_run, run=replace(timed_run.run, memory=replace(known, peak_bytes=known.peak_bytes // 2)))
    assert "in the recorded steps" in content(charts.memory(less))["layout"]["meta"]["note"]


@pytest.mark.slow
def test_memory_of_a_trace_keeps_its_peaks():
    diagnosis = diagnosed(shared_trace("public/tl_h100_owlv2_fwd"))
    figure = present(charts.memory(diagnosis))
    events = diagnosis.tables.timeline.trace.memory
    used = events.allocated_bytes[events.device_type == 1]
    assert len(used) > 4000
    line = next(trace for trace in content(figure)["data"] if trace["name"] == "in use")
    assert len(line["x"]) <= 4000
    assert max(line["y"]) == pytest.approx(used.max() / 2**30, rel=1e-5)
    assert min(line["y"]) == pytest.approx(used.min() / 2**30, rel=1e-5)
    assert len(charts.to_json(figure)) < 100_000


def test_thinning_keeps_the_extremes_of_every_stretch():
    values = np.random.default_rng(5).integers(0, 1_000_000, 10_007)
    rows = outline(values, 300)
    assert len(rows) <= 302
    assert (np.diff(rows) > 0).all()
    assert rows[0] == 0
    assert rows[-1] == len(values) - 1
    for part, kept in zip(np.array_split(values, 50), np.array_split(np.arange(len(values)), 50), strict=True):
        near = values[rows[(rows >= kept[0] - 110) & (rows <= kept[-1] + 110)]]
        assert near.max() >= part.max()
        assert near.min() <= part.min()
    assert outline(values[:5], 300).tolist() == [0, 1, 2, 3, 4]


# -- where nothing can be shown


def test_nothing_is_drawn_of_what_was_not_recorded(bare_trace):
    assert set(drawn(bare_trace)) == {"bandwidth", "gap_histogram", "phases", "roofline", "sensitivities", "what_if"}
    assert set(drawn(unusable())) <= {"phases", "steps"}, "what is shown without columns"
    by_hand = host_bound()
    assert set(drawn(by_hand)) == {"phases", "steps"}
    assert charts.steps(replace(by_hand, steps=replace(present(by_hand.steps), each_ns=(MS, MS)))) is None
    assert charts.ranks(replace(by_hand, ranks=())) is None
    assert charts.what_if(by_hand) is None
    assert charts.phases(replace(by_hand, phases=())) is None


def test_every_figure_of_a_run(timed_run):
    assert set(drawn(timed_run)) == set(FIGURES) - {"ranks", "rank_steps", "critical_path", "memory_owners"}


def test_several_devices():
    assert "phases" in drawn(two_devices())


# -- narrow windows, and impossible values


def test_no_point_is_above_its_ceiling(bare_trace):
    known = known_roofline(bare_trace)
    assert known is not None
    groups = kernel_groups(*known, modelled_rows(*known))
    real = max(groups, key=lambda group: group.flops_per_s)
    helper = replace(real, name="prepare_grouped_gemm_data", flops=real.ns * 8e6)
    kept, note = possible([real, helper], known[1].ceilings)
    assert kept == [real] and note.startswith(" 1 kernel left out")
    assert possible([real], known[1].ceilings) == ([real], "")


def test_an_idle_gpu_is_not_held_back():
    folder = diagnosed(THROTTLED_RUN).folder
    assert folder is not None and _throttled(folder)[1] == "the power limit"
    idle = replace(folder, throttle_reasons=("gpu_idle",) * len(folder.throttle_reasons))
    assert _throttled(idle) == ([], "")


def test_in_a_narrow_window_the_legend_stands_below(bare_trace):
    layout = json.loads(charts.to_json(present(charts.roofline(bare_trace))))["layout"]
    narrow = layout["meta"]["narrow"]
    assert narrow["legend.orientation"] == "h" and narrow["height"] > layout["height"]


def test_in_a_narrow_window_no_label_of_the_roofline_lies_on_a_kernel():
    """Labels are written right-aligned in 10 px: in a plot of 200 × 245 px each has its room left of all kernels at its
    height, and none lies on another."""
    layout, data = (content(charts.roofline(diagnosed(THROTTLED_RUN)))[key] for key in ("layout", "data"))
    narrow = layout["meta"]["narrow"]
    low, high = narrow["xaxis.range"]
    bottom, top = layout["yaxis"]["range"]

    def place(x: float, y: float) -> tuple[float, float]:
        return 200 * (x - low) / (high - low), 245 * (y - bottom) / (top - bottom)

    labels = [
        (*place(narrow[f"annotations.{i}.x"], narrow[f"annotations.{i}.y"]), 5.6 * len(one["text"]))
        for i, one in enumerate(layout["annotations"])
    ]
    kernels = [
        (*place(math.log10(x), math.log10(y)), size / 2)
        for trace in data
        if trace["mode"] == "markers" and trace["x"] != [None]
        for x, y, size in zip(trace["x"], trace["y"], trace["marker"]["size"], strict=True)
    ]  # fmt: skip
    assert len(labels) > 1 and len(kernels) > 5
    for i, (x, y, width) in enumerate(labels):
        assert x - width >= -8, "it begins in the chart"
        for px, py, radius in kernels:
            assert px - radius >= x - 6 or abs(py - y) > radius + 7, (layout["annotations"][i]["text"], px, py)
        for _, other, _ in labels[i + 1 :]:
            assert abs(other - y) >= 10

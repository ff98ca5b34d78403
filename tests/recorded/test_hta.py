"""Handing a Trace to HolisticTraceAnalysis: the same as its own parser where that is right, and right where it errs.

HTA lives in a venv of its own; `helpers/hta_script.py` runs there and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.interop.hta import trace_analysis

DATA = ROOT / "tests" / "data"
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
ROOFLINE = DATA / "roofline_pair.json.gz"
INDUCTOR = DATA / "unsloth_llama1b.json.gz"
OURS = [ROOFLINE, DATA / "tiny_lora_dataloader.json.gz", DEMO]
SHARED = [
    "h200/ddp_straggler_rank0.json.gz",
    "public/hta_a100_nccl_meta_2rank_rank0.json.gz",
    "public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz",
]


@cache
def run(python: str, what: str, *traces: Path) -> dict[str, Any]:
    """What `hta_script.py` prints about traces; several are ranks of one run."""
    done = subprocess.run(
        [python, str(ROOT / "tests" / "helpers" / "hta_script.py"), what, *map(str, traces)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(
    params=[OURS[0], *(pytest.param(other, marks=pytest.mark.slow) for other in (*OURS[1:], *SHARED))],
    ids=lambda p: Path(p).name.split(".")[0],
)
def trace(request: pytest.FixtureRequest) -> Path:
    """A recording of one device per process: ours, and others where they are present."""
    if isinstance(request.param, Path):
        return request.param
    return request.getfixturevalue("shared") / "traces" / request.param


def test_the_table_is_the_one_that_hta_would_have_made(hta_python: str, trace: Path):
    said = run(hta_python, "breakdowns", trace)
    # A file in whole µs gives the bandwidth of a copy with more digits than follow from its duration.
    known = {"memory_bw_gbps"} if in_whole_microseconds(trace) else set()
    assert set(said["differences"]["0"]) <= known
    assert said["min_ts"][0] == said["min_ts"][1]
    assert said["end_is_consistent"]


def in_whole_microseconds(trace: Path) -> bool:
    return not (gpuprof.load(trace).gpu.start_ns % 1000).any()


def test_analyses_of_rounded_times_return_what_hta_returns(hta_python: str, trace: Path):
    """Also where HTA fails: on the demo its rounding leaves negative durations."""
    said = run(hta_python, "breakdowns", trace)
    assert set(said["hta"]) == {"temporal", "kernels", "idle", "overlap"}
    for name, result in said["hta"].items():
        assert said["ours"][name] == result, name


def test_hta_agrees_with_gpuprof_to_the_nanosecond(hta_python: str, trace: Path):
    """Busy time and compute time within HTA's own span, which goes from the first kernel to the last."""
    said = run(hta_python, "breakdowns", trace)
    own = said["gpuprof"]["0"]
    for parser, tolerance in (("ours_exact", 0.001), ("hta_exact", 1.0)):  # HTA's doubles carry about 1 ns
        (row,) = said[parser]["temporal"]
        assert row["kernel_time(us)"] == pytest.approx(own["span"], abs=tolerance)
        assert row["compute_time(us)"] == pytest.approx(own["compute"], abs=tolerance)
        busy = row["compute_time(us)"] + row["non_compute_time(us)"]
        assert busy == pytest.approx(own["busy"], abs=tolerance)
        if own["overlap_percent"] is not None:
            (row,) = said[parser]["overlap"]
            assert row["comp_comm_overlap_pctg"] == pytest.approx(own["overlap_percent"], abs=0.01)


def test_ranks_of_one_run(hta_python: str, shared: Path):
    traces = sorted((shared / "traces" / "public" / "param_dlrm_8rank").glob("*.json.gz"))[:2]
    said = run(hta_python, "breakdowns", *traces)
    for name in ("temporal", "kernels", "overlap"):
        assert said["ours"][name] == said["hta"][name]
    assert [row["rank"] for row in said["ours"]["temporal"]] == [0, 1]
    assert said["min_ts"][0] == said["min_ts"][1]


def test_work_belongs_to_the_step_that_launched_it(hta_python: str, tmp_path: Path):
    """Three steps, of which HTA leaves out the last; in each, a kernel starts after the step has ended."""
    events = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "python"}}]
    for i in range(3):
        step = {"cat": "user_annotation", "name": f"ProfilerStep#{i + 4}", "ts": 100 * i, "dur": 100, "args": {}}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100 * i + 90, "dur": 5}
        events += [{"ph": "X", "pid": 1, "tid": 1, **e} for e in (step, call | {"args": {"correlation": i + 1}})]
        where = {"device": 0, "stream": 7, "correlation": i + 1}
        kernel = {"cat": "kernel", "name": "gemm", "ts": 100 * i + 110, "dur": 20, "args": where}
        events.append({"ph": "X", "pid": 0, "tid": 7, **kernel})
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"traceEvents": events}))

    said = run(hta_python, "breakdowns", path)
    assert not said["differences"]["0"]
    assert said["ours"] == said["hta"]
    assert said["gpuprof"]["0"]["busy"] == said["ours"]["temporal"][0]["compute_time(us)"] == 40


def test_where_hta_rounds_small_kernels_away(hta_python: str):
    said = run(hta_python, "breakdowns", DEMO)
    own = said["gpuprof"]["0"]
    assert said["hta"]["temporal"] == "AssertionError"
    assert sum_of_kernels(said["hta"]) < 0.7 * own["compute"]
    assert sum_of_kernels(said["ours_exact"]) == pytest.approx(own["compute"], rel=0.001)


def sum_of_kernels(results: dict[str, Any]) -> float:
    """Time of the compute kernels by name (some overlap, so a little more than their union)."""
    _, each = results["kernels"]
    return sum(row["sum (us)"] for row in each if row["kernel_type"] == "COMPUTATION")


def test_where_hta_takes_inductor_ops_for_kernels(hta_python: str):
    """They run on the host and have a `stream` argument: HTA sees the GPU compute nearly twice as long as it does."""
    said = run(hta_python, "breakdowns", INDUCTOR)
    own = said["gpuprof"]["0"]
    assert said["differences"]["0"] == {"stream": 2420, "iteration": 2420}
    (alone,), (handed,) = said["hta_exact"]["temporal"], said["ours_exact"]["temporal"]
    assert alone["compute_time(us)"] > 1.8 * own["compute"]
    assert handed["compute_time(us)"] == pytest.approx(own["compute"], abs=0.001)


def test_where_hta_takes_two_devices_for_one(hta_python: str, tmp_path: Path):
    """Two GPUs of one process that work in turn are idle half of the time each; HTA finds no idle time at all."""
    events = []
    for i in range(10):
        where = {"device": i % 2, "stream": 7, "correlation": i + 1}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append(call | {"ts": 100 * i, "dur": 10, "args": {"correlation": i + 1}})
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": i % 2, "tid": 7}
        events.append(kernel | {"ts": 100 * i + 50, "dur": 100, "args": where})
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"traceEvents": events}))

    said = run(hta_python, "breakdowns", path)
    own = said["gpuprof"]["0"]
    assert own["busy_of_devices"] == [500, 500]
    assert own["span"] == 1000
    assert said["hta"]["temporal"] == said["ours"]["temporal"]
    assert said["hta"]["temporal"][0]["idle_time_pctg"] == 0


def test_where_hta_joins_work_without_a_launch_to_the_first_event(hta_python: str, tmp_path: Path):
    """`index_correlation` 0 means "launch not recorded", but is the first event's index in HTA's own table."""
    events = [{"ph": "X", "cat": "cpu_op", "name": "late", "pid": 1, "tid": 1, "ts": 500, "dur": 10, "args": {}}]
    for i, start in enumerate((0, 20)):
        where = {"device": 0, "stream": 7, "correlation": i + 1}
        events.append(
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start, "dur": 10, "args": where}
        )
    path = tmp_path / "unlaunched.json"
    path.write_text(json.dumps({"traceEvents": events}))

    said = run(hta_python, "breakdowns", path)
    causes = {who: {row["idle_category"]: row["idle_time"] for row in said[who]["idle"]} for who in ("hta", "ours")}
    assert causes["hta"]["host_wait"] == 10
    assert causes["ours"] == {"kernel_wait": 10, "other": 0}


def test_every_analysis_runs(hta_python: str):
    """Two of them, kernels with annotations and kernel sequences, fail here when HTA has read the file itself."""
    results = run(hta_python, "analyses", ROOFLINE)["results"]
    assert not {name: result for name, result in results.items() if not isinstance(result, int)}
    assert results["kernels with annotations"] == len(gpuprof.load(ROOFLINE).gpu)
    assert results["kernel sequences"] > 0


def test_what_hta_writes_marks_the_events_that_it_means(hta_python: str):
    """HTA marks by position in the file, and the Trace has an order of its own."""
    said = run(hta_python, "analyses", ROOFLINE)
    assert len(said["critical"]) > 100
    assert said["marked"] == said["critical"]
    assert said["counters"] > 0


def test_without_hta_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hta", None)
    with pytest.raises(gpuprof.GpuprofError) as caught:
        trace_analysis(gpuprof.load(ROOFLINE))
    assert "\n" not in str(caught.value)
    assert "gpuprof-toolkit[hta]" in str(caught.value)
    assert "pandas < 3" in str(caught.value)


def test_no_trace_is_refused():
    with pytest.raises(gpuprof.GpuprofError, match="no trace"):
        trace_analysis({})

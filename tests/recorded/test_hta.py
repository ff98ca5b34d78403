"""Handing a Trace to HolisticTraceAnalysis gives the same as its own parser where that is right, and the right result
where it errs.

HTA lives in a venv of its own; `helpers/hta_script.py` runs there and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.once import once
from helpers.paths import ROOT, SHARED
from helpers.traces import each_shared, resolve

import gpuprof
from gpuprof.interop.hta import trace_analysis

DATA = ROOT / "tests" / "data"
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
ROOFLINE = DATA / "roofline_pair.json.gz"
INDUCTOR = DATA / "unsloth_llama1b.json.gz"
OURS = [ROOFLINE, DATA / "tiny_lora_dataloader.json.gz", DEMO]
FURTHER = [
    "h200/ddp_straggler_rank0",
    "public/hta_a100_nccl_meta_2rank_rank0",
    "public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace",
]


def run(python: str, jobs: dict[str, tuple[str, list[Path]]]) -> dict[str, Any]:
    """What `hta_script.py` prints: the result of each job, which names an analysis and traces, the ranks of one run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps({name: [what, *map(str, traces)] for name, (what, traces) in jobs.items()}))
        done = subprocess.run(
            [python, str(ROOT / "tests" / "helpers" / "hta_script.py"), str(file)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ask(hta_python: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """`ask(what, *traces)`: the result for traces, or for those that a test here writes, given by the name of their
    function.

    One process answers all quick tests, as it takes seconds to start.
    """

    def make(folder: Path) -> None:
        jobs = {"analyses": ("analyses", [ROOFLINE])}
        for trace in (ROOFLINE, DEMO, INDUCTOR):
            jobs[key("breakdowns", trace)] = ("breakdowns", [trace])
        if len(ranks := two_ranks()) == 2:
            jobs[key("breakdowns", *ranks)] = ("breakdowns", ranks)
        for written in (three_steps, two_devices, unlaunched):
            file = folder / f"{written.__name__}.json"
            file.write_text(json.dumps({"traceEvents": written()}))
            jobs[key("breakdowns", written)] = ("breakdowns", [file])
        (folder / "results.json").write_text(json.dumps(run(hta_python, jobs)))

    results = json.loads((once(tmp_path_factory, "hta", make) / "results.json").read_text())

    def result(what: str, *traces: Path | Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
        name = what if what == "analyses" else key(what, *traces)
        if name not in results:
            results.update(run(hta_python, {name: (what, [trace for trace in traces if isinstance(trace, Path)])}))
        assert "failed" not in results[name], results[name]["failed"]
        return results[name]

    return result


def key(what: str, *traces: Path | Callable[..., Any]) -> str:
    return " ".join([what, *(str(trace) if isinstance(trace, Path) else trace.__name__ for trace in traces)])


def two_ranks() -> list[Path]:
    return sorted((SHARED / "traces" / "public" / "param_dlrm_8rank").glob("*.json.gz"))[:2]


@pytest.fixture(
    params=[
        pytest.param(OURS[0], id="roofline_pair"),
        *(pytest.param(other, id=other.name.split(".")[0], marks=pytest.mark.slow) for other in OURS[1:]),
        *(pytest.param(*row.values, id=row.id, marks=(*row.marks, pytest.mark.slow)) for row in each_shared(*FURTHER)),
    ],
)
def trace(request: pytest.FixtureRequest) -> Path:
    """A recording with one device per process: the repository's own, and others where they are present."""
    return resolve(request.param)


@pytest.mark.slow
def test_the_table_is_the_one_that_hta_would_have_made(ask, trace: Path):
    said = ask("breakdowns", trace)
    # A file in whole µs gives a copy's bandwidth with more digits than its duration supports.
    known = {"memory_bw_gbps"} if in_whole_microseconds(trace) else set()
    assert set(said["differences"]["0"]) <= known
    assert said["min_ts"][0] == said["min_ts"][1]
    assert said["end_is_consistent"]


def in_whole_microseconds(trace: Path) -> bool:
    return not (gpuprof.load(trace).gpu.start_ns % 1000).any()


@pytest.mark.slow
def test_analyses_of_rounded_times_return_what_hta_returns(ask, trace: Path):
    """Also where HTA fails: on the demo its rounding leaves negative durations."""
    said = ask("breakdowns", trace)
    assert set(said["hta"]) == {"temporal", "kernels", "idle", "overlap"}
    for name, result in said["hta"].items():
        assert said["ours"][name] == result, name


@pytest.mark.slow
def test_hta_agrees_with_gpuprof_to_the_nanosecond(ask, trace: Path):
    """Busy time and compute time within HTA's own span, which goes from the first kernel to the last."""
    said = ask("breakdowns", trace)
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


@pytest.mark.slow
def test_ranks_of_one_run(ask, shared: Path):
    said = ask("breakdowns", *two_ranks())
    for name in ("temporal", "kernels", "overlap"):
        assert said["ours"][name] == said["hta"][name]
    assert [row["rank"] for row in said["ours"]["temporal"]] == [0, 1]
    assert said["min_ts"][0] == said["min_ts"][1]


def three_steps() -> list[dict[str, Any]]:
    """In each, a kernel starts after the step has ended."""
    events = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "python"}}]
    for i in range(3):
        step = {"cat": "user_annotation", "name": f"ProfilerStep#{i + 4}", "ts": 100 * i, "dur": 100, "args": {}}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100 * i + 90, "dur": 5}
        events += [{"ph": "X", "pid": 1, "tid": 1, **e} for e in (step, call | {"args": {"correlation": i + 1}})]
        where = {"device": 0, "stream": 7, "correlation": i + 1}
        kernel = {"cat": "kernel", "name": "gemm", "ts": 100 * i + 110, "dur": 20, "args": where}
        events.append({"ph": "X", "pid": 0, "tid": 7, **kernel})
    return events


@pytest.mark.slow
def test_work_belongs_to_the_step_that_launched_it(ask):
    """HTA leaves out the last of the three steps."""
    said = ask("breakdowns", three_steps)
    assert not said["differences"]["0"]
    assert said["ours"] == said["hta"]
    assert said["gpuprof"]["0"]["busy"] == said["ours"]["temporal"][0]["compute_time(us)"] == 40


@pytest.mark.slow
def test_where_hta_rounds_small_kernels_away(ask):
    said = ask("breakdowns", DEMO)
    own = said["gpuprof"]["0"]
    assert said["hta"]["temporal"] == "AssertionError"
    assert sum_of_kernels(said["hta"]) < 0.7 * own["compute"]
    assert sum_of_kernels(said["ours_exact"]) == pytest.approx(own["compute"], rel=0.001)


def sum_of_kernels(results: dict[str, Any]) -> float:
    """Time of the compute kernels by name (some overlap, so a little more than their union)."""
    _, each = results["kernels"]
    return sum(row["sum (us)"] for row in each if row["kernel_type"] == "COMPUTATION")


@pytest.mark.slow
def test_where_hta_takes_inductor_ops_for_kernels(ask):
    """They run on the host but have a `stream` argument, so that for HTA the GPU computes nearly twice as long as it
    does."""
    said = ask("breakdowns", INDUCTOR)
    own = said["gpuprof"]["0"]
    assert said["differences"]["0"] == {"stream": 2420, "iteration": 2420}
    (alone,), (handed,) = said["hta_exact"]["temporal"], said["ours_exact"]["temporal"]
    assert alone["compute_time(us)"] > 1.8 * own["compute"]
    assert handed["compute_time(us)"] == pytest.approx(own["compute"], abs=0.001)


def two_devices() -> list[dict[str, Any]]:
    """Two GPUs of one process that work in turn."""
    events = []
    for i in range(10):
        where = {"device": i % 2, "stream": 7, "correlation": i + 1}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append(call | {"ts": 100 * i, "dur": 10, "args": {"correlation": i + 1}})
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": i % 2, "tid": 7}
        events.append(kernel | {"ts": 100 * i + 50, "dur": 100, "args": where})
    return events


@pytest.mark.slow
def test_where_hta_takes_two_devices_for_one(ask):
    """Each is idle half of the time; HTA finds no idle time at all."""
    said = ask("breakdowns", two_devices)
    own = said["gpuprof"]["0"]
    assert own["busy_of_devices"] == [500, 500]
    assert own["span"] == 1000
    assert said["hta"]["temporal"] == said["ours"]["temporal"]
    assert said["hta"]["temporal"][0]["idle_time_pctg"] == 0


def unlaunched() -> list[dict[str, Any]]:
    """Kernels whose launches were not recorded."""
    events = [{"ph": "X", "cat": "cpu_op", "name": "late", "pid": 1, "tid": 1, "ts": 500, "dur": 10, "args": {}}]
    for i, start in enumerate((0, 20)):
        where = {"device": 0, "stream": 7, "correlation": i + 1}
        events.append(
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start, "dur": 10, "args": where}
        )
    return events


@pytest.mark.slow
def test_where_hta_joins_work_without_a_launch_to_the_first_event(ask):
    """`index_correlation` 0 means "launch not recorded", but is also the first event's index in HTA's own table."""
    said = ask("breakdowns", unlaunched)
    causes = {who: {row["idle_category"]: row["idle_time"] for row in said[who]["idle"]} for who in ("hta", "ours")}
    assert causes["hta"]["host_wait"] == 10
    assert causes["ours"] == {"kernel_wait": 10, "other": 0}


@pytest.mark.slow
def test_every_analysis_runs(ask):
    """Two of them, kernels with annotations and kernel sequences, fail here when HTA has read the file itself."""
    results = ask("analyses", ROOFLINE)["results"]
    assert not {name: result for name, result in results.items() if not isinstance(result, int)}
    assert results["kernels with annotations"] == len(gpuprof.load(ROOFLINE).gpu)
    assert results["kernel sequences"] > 0


@pytest.mark.slow
def test_what_hta_writes_marks_the_events_that_it_means(ask):
    """HTA marks by position in the file, while a Trace has another order."""
    said = ask("analyses", ROOFLINE)
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

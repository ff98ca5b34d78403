"""Runs that `gpuprof trace --nsys` recorded on H200 hosts: the diagnoses of exports, and of exports with traces."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers import diagnosed as recordings
from helpers.paths import ROOT
from helpers.present import present

import gpuprof
from gpuprof.cli.entry import main
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import build_timeline

RUNS = ROOT / "tests/data/nsys"


@pytest.fixture
def diagnosed():
    """The diagnosis of a run, or of a file, by its name."""
    return lambda name: recordings.diagnosed(RUNS / name)


@pytest.mark.parametrize(
    ("name", "bound", "cause", "launches"),
    [
        ("lora", "host", "launch", 5_300),
        pytest.param("moe", "host", "launch", 11_000, marks=pytest.mark.slow),
        ("dense_both", "memory", None, 1_700),
    ],
)
def test_the_verdict_of_each(name, bound, cause, launches, diagnosed):
    found = diagnosed(name)
    assert (found.verdict.bound, found.verdict.cause) == (bound, cause)
    assert found.source.kind == "run"
    assert found.replay.shown
    assert found.kernels.launches_per_step == pytest.approx(launches, rel=0.05)
    assert found.steps.unprofiled_ns < 1.02 * found.steps.recorded_ns
    assert {issue.id for issue in found.quality.issues} >= {"baseline_under_nsys"}


def test_the_work_of_the_gpu_is_not_stretched_to_fit_the_baseline(diagnosed):
    """The MoE took 423 ms in the capture and 243 before it: the host differs, the kernels took as long."""
    found = diagnosed("moe")
    recorded = found.devices[0].compute_ns / found.steps.count
    assert found.devices_estimated[0].compute_ns == pytest.approx(recorded, rel=0.03)


def test_backward_owns_what_autograd_launches(diagnosed):
    for name in ("lora", "moe"):
        found = diagnosed(name)
        spent = {one.name: one for one in found.ranges}
        step = next(one for text, one in spent.items() if text == found.steps.name)
        parts = [spent[text] for text in ("forward", "backward", "optimizer", "data") if text in spent]
        assert spent["backward"].launches > 0.5 * step.launches
        assert sum(one.launches for one in parts) == pytest.approx(step.launches, rel=0.01)
        by_phase = {phase.phase: phase for phase in found.phases}
        assert by_phase["backward"].busy_ns == pytest.approx(spent["backward"].busy_ns, rel=0.02)


def test_a_folder_with_both_kinds_has_the_times_of_one_and_the_names_of_the_other(diagnosed):
    found = diagnosed("dense_both")
    (paired,) = (issue for issue in found.quality.issues if issue.id == "paired")
    assert "5,283 of 5,283" in paired.message
    assert not {issue.id for issue in found.quality.issues} & {"no_ops", "no_shapes"}
    export = gpuprof.load(RUNS / "dense_both/nsys.sqlite.gz")
    trace = found.tables.timeline.trace
    assert np.array_equal(trace.gpu.start_ns, export.gpu.start_ns)
    assert np.array_equal(trace.gpu.end_ns, export.gpu.end_ns)
    assert found.kernels.unattributed_ns == 0
    assert found.roofline.mfu is not None
    assert {finding.id for finding in found.findings} >= {"adapter_casts", "compile"}


def test_the_counters_agree_with_the_roofline_on_what_binds(diagnosed, tmp_path):
    """Without the trace the export's counters must lead to the verdict that FLOPs and bytes lead to."""
    shutil.copytree(RUNS / "dense_both", tmp_path / "run")
    (tmp_path / "run/trace.rank0.json.gz").unlink()
    alone = gpuprof.diagnose(tmp_path / "run")
    assert alone.verdict.bound == diagnosed("dense_both").verdict.bound == "memory"
    assert present(alone.roofline).mfu is None
    assert all(kernel.flops is None for kernel in present(alone.kernels).top)
    for phase in present(alone.activity):
        assert present(phase.sm_percent) > 90
        assert 30 < present(phase.tensor_percent) < 50
        assert 35 < present(phase.dram_percent) < 50
    both = to_json(diagnosed("dense_both"))["sensitivities"]
    alone_gains = to_json(alone)["sensitivities"]
    assert alone_gains["memory"] == pytest.approx(both["memory"], abs=0.1)
    assert alone_gains["compute"] == pytest.approx(both["compute"], abs=0.1)


def test_two_ranks_in_one_export(diagnosed):
    """Rank 1 has 15 ms more of Python in every step, and the other rank waits for that."""
    found = diagnosed("ddp")
    assert (found.verdict.bound, found.verdict.cause) == ("host", "straggler")
    assert [rank.rank for rank in found.ranks] == [0, 1]
    slow = max(found.ranks, key=lambda rank: rank.pace_ns)
    assert slow.rank == 1
    assert slow.pace_ns - min(rank.pace_ns for rank in found.ranks) == pytest.approx(15e6, rel=0.1)
    assert found.environment.rank == 1
    assert "other_processes" not in {issue.id for issue in found.quality.issues}
    assert any(finding.id == "straggler" for finding in found.findings)
    assert "syncs" in {one.id for one in (*found.findings, *found.considered)}


def test_one_rank_of_an_export_can_be_named():
    ranks = {}
    for path in sorted((RUNS / "ddp").glob("rank*.json")):
        rank = json.loads(path.read_text())
        found = gpuprof.diagnose(f"{RUNS}/ddp/nsys.sqlite.gz#pid={rank['pid']}")
        assert found.environment.rank == rank["rank"]
        ranks[rank["rank"]] = found.devices[0].device
    assert ranks == {0: 0, 1: 1}


def test_a_recording_of_the_run_that_cannot_be_read_is_reported(tmp_path):
    """Nothing is lost silently: the verdict then comes from the other recording alone."""
    shutil.copytree(RUNS / "dense_both", tmp_path / "run")
    (tmp_path / "run/nsys.sqlite.gz").write_bytes(b"SQLite format 3\0" + bytes(4000))
    found = gpuprof.diagnose(tmp_path / "run")
    issues = {issue.id: issue for issue in found.quality.issues}
    assert "nsys.sqlite.gz is a damaged SQLite file" in issues["recording_unread"].message
    assert "paired" not in issues
    assert present(found.steps).source == "profiler_step"
    assert found.verdict.bound is not None


@pytest.mark.slow
def test_the_two_kinds_given_as_files_or_as_runs(tmp_path, capsys):
    """In either order. With two runs the baseline is that of the one without Nsight Systems."""
    both = RUNS / "dense_both"
    files = [both / "nsys.sqlite.gz", both / "trace.rank0.json.gz"]
    runs = [tmp_path / "timed", tmp_path / "named"]
    for run, other in zip(runs, reversed(files), strict=True):
        shutil.copytree(both, run)
        (run / other.name).unlink()
    (runs[0] / "steps.jsonl").write_text("")
    for pair in (files, runs[::-1]):
        assert main(["diagnose", *map(str, pair), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert any(issue["id"] == "paired" for issue in found["quality"]["issues"])
        assert found["steps"]["unprofiled_ns"] is not None


def test_the_report_of_an_export_says_what_it_lacks(diagnosed, tmp_path):
    gpuprof.write_report(diagnosed("lora"), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "are not known from this recording" in page
    assert "Your ranges" in page
    assert "counters showed" not in page
    gpuprof.write_report(diagnosed("dense_both"), tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "counters showed" in page
    assert "No roofline" not in page


def test_steps_are_those_that_the_run_marked(diagnosed):
    for name in ("lora", "moe", "dense_both"):
        found = diagnosed(name)
        assert found.steps.source == "user_range"
        assert found.steps.count == 3
        timeline = present(build_timeline(gpuprof.load(RUNS / name / "nsys.sqlite.gz")))
        assert timeline.steps.name == "step_#"


@pytest.mark.parametrize("way", ["whole", "node"])
def test_cuda_graphs_recorded_as_a_whole_or_node_by_node(way, diagnosed):
    """Six steps that replay a graph of 20 matmuls and 20 tanh, then run a small eager matmul and its backward."""
    found = diagnosed(f"graphs/{way}.sqlite.gz")
    issues = {issue.id for issue in found.quality.issues}
    graph_kernels = 1 if way == "whole" else 40
    assert found.kernels.count / found.steps.count == pytest.approx(16 + graph_kernels, abs=0.5)
    busiest = found.kernels.by_category[0]
    if way == "whole":
        assert "graphs_whole" in issues
        assert busiest.category == "other"
        assert found.verdict.bound is None  # the GPU works, but on what is not known
        assert "not recorded" in found.verdict.summary
    else:
        assert "graphs_whole" not in issues
        assert busiest.category == "gemm"
        assert found.verdict.bound == "compute"
    assert busiest.ns > 0.9 * found.kernels.total_ns


def test_the_device_is_as_busy_whichever_way_a_graph_was_recorded(diagnosed):
    whole, node = (diagnosed(f"graphs/{way}.sqlite.gz") for way in ("whole", "node"))
    assert whole.devices[0].busy_ns == pytest.approx(node.devices[0].busy_ns, rel=0.03)


def test_ops_that_emit_nvtx_wrote():
    trace = gpuprof.load(RUNS / "graphs/node.sqlite.gz")
    ops = trace.ops
    rows = np.flatnonzero(trace.rows_named(ops.name, lambda text: text == "aten::mm"))
    assert len(rows) == 3 * 6  # the matmul, and the two of its backward
    assert {trace.text(i) for i in ops.dims[rows].tolist()} == {"[[512, 512], [512, 512]]"}
    nodes = trace.rows_named(ops.name, lambda text: text == "MmBackward0")
    assert np.all(ops.forward_thread[nodes] > 0)
    timeline = present(build_timeline(trace))
    gemm = trace.rows_named(trace.gpu.name, lambda text: "gemm" in text) & (timeline.links.op >= 0)
    phases = [PHASES[code] for code in timeline.phase[gemm].tolist()]
    assert phases.count("forward") % 6 == 0
    assert phases.count("backward") == 2 * phases.count("forward") > 0

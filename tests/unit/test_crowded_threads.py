"""Ops on tensors in host memory in more threads than the run may use cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.make_run import RunBuilder
from helpers.program import FLOAT, MS, Program

import gpuprof
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.findings import host_preprocessing


def on_the_cpu(folder: Path, threads: int | None, cpus: int, took: int = 40 * MS) -> Analysis:
    """Each step computes on the CPU, and then on the GPU for 60 ms."""
    program = Program()

    def body() -> None:
        program.op("aten::div", dims=[[64, 1_000_000]], types=[FLOAT], host=took)
        program.small_mm(gpu=60 * MS)
        program.synchronize()

    for _ in range(3):
        program.step(body)
    builder = RunBuilder().stage("baseline_free", [100.0] * 12).stage("trace", [100.0] * 3)
    builder.rank["threads"] = threads
    builder.manifest["host"] = {"cpus": cpus, "cpu_quota": None, "memory_bytes": None, "platform": "Linux"}
    folder.mkdir(exist_ok=True)
    case = analysis_of(gpuprof.diagnose(builder.write(folder / "run", program.trace.write(folder / "trace.json"))))
    assert case is not None
    return case


def test_one_thread_for_each_core(tmp_path):
    case = on_the_cpu(tmp_path, 64, 8)
    found = only(host_preprocessing, case, "threads")
    assert case.step_ns - case.step_of(found.change(case.graph)) == pytest.approx(20 * MS, rel=0.05)
    assert "64 threads" in found.evidence[0].text and "8 cores" in found.evidence[0].text
    assert "set_num_threads(8)" in str(found.fix) and found.odds < 1


@pytest.mark.parametrize(("threads", "cpus", "took"), [(8, 8, 40 * MS), (None, 8, 40 * MS), (64, 8, 1 * MS)])
def test_not_with_few_threads_or_little_to_compute(tmp_path, threads, cpus, took):
    case = on_the_cpu(tmp_path, threads, cpus, took)
    assert not [one for one in host_preprocessing.find(case) if one.key == "threads"]

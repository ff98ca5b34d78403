"""Batches that the training prepares itself or that its workers prepare too slowly."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.make_run import LOADER, RunBuilder
from helpers.paths import SHARED
from helpers.program import FLOAT, MS, US, Program

import gpuprof
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.torch_version import is_before_2
from gpuprof.diagnosis.findings import compile, cuda_graphs, input_workers, optimizer

OWN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def fed_by(loader: str, batch_ms: int = 22, old: bool = False, gpu: int = 380 * US) -> Program:
    """Four steps that each wait for a batch, and then launch kernels about as fast as the GPU works; `old`: ranges of
    torch are recorded as ops, as they were before 2.0."""
    program = Program()

    def body() -> None:
        start = program.now
        program.python(batch_ms * MS)
        (program.trace.op if old else program.trace.annotation)(loader, start, program.now)
        for _ in range(60):
            program.op(
                "aten::mm", "volta_sgemm_128x64_nn", gpu, [[128, 512], [512, 512]], [FLOAT, FLOAT], host=250 * US
            )
            program.elementwise()
        program.backward(lambda: program.small_mm(host=250 * US, gpu=gpu), 60)

    for number in range(4):
        start = program.now
        body()
        (program.trace.op if old else program.trace.annotation)(f"ProfilerStep#{number}", start, program.now)
    return program


def test_gaps_while_a_batch_is_prepared_are_the_inputs(tmp_path: Path):
    """A CPU that launches faster could hide the batch behind the GPU's work, and would gain as much as no batch at all;
    but in the recording the GPU waits for the batch."""
    found = gpuprof.diagnose(fed_by(OWN).trace.write(tmp_path / "trace.json"))
    assert found.verdict.bound == "input"
    assert found.sensitivities is not None and found.sensitivities.host < found.sensitivities.input


def test_without_workers_their_number_is_known(tmp_path: Path):
    found = only(input_workers, fed_by(OWN).case(tmp_path))
    assert found.title.startswith("input workers: ")
    assert "in the training's own process" in found.evidence[0].text


def test_of_workers_that_only_the_iterator_shows_the_number_is_unknown(tmp_path: Path):
    found = only(input_workers, fed_by(WORKERS).case(tmp_path))
    assert found.title == "twice the input workers"
    assert "num_workers=num_workers * 2" in str(found.fix)
    assert "waits 22 ms a step for its workers" in found.evidence[0].text


@pytest.mark.parametrize("old", [True, False])
def test_a_torch_before_2_is_not_advised_what_it_lacks(tmp_path: Path, old: bool):
    case = fed_by(OWN, old=old).case(tmp_path)
    assert is_before_2(case) == old
    assert bool(list(compile.find(case))) != old
    reasons = [finding.ABSENT.why(case) or "" for finding in (compile, cuda_graphs, optimizer)]
    assert all(("older than 2.0" in reason) == old for reason in reasons)


def test_a_recording_of_2021_without_workers_is_input_bound():
    """torch 1.9 on a V100, num_workers=0: batches take 44 to 47 of 149 to 159 ms of a recorded step."""
    path = SHARED / "traces" / "public" / "kineto_v100_oldschema_resnet50_nw0.pt.trace.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    found = gpuprof.diagnose(path)
    assert found.verdict.bound == "input"
    assert found.findings[0].id == "input_workers"
    assert not {"compile", "cuda_graphs", "optimizer"} & {one.id for one in found.findings}


def test_a_step_takes_the_batches_of_the_timed_steps(tmp_path: Path):
    """They accumulate one batch each, the recorded ones two: workers feed the mean step, which is that of the timed
    steps."""
    made = {"batches": 12, "batch_ns": 200 * MS, "batch_cpu_ns": 200 * MS, "spread": 0.0}
    builder = RunBuilder().stage("baseline_free", [80.0] * 12)
    builder.stage("warmup", [190.0]).stage("trace", [188.0] * 3, micro_steps=2)
    builder.rank["loader"] = LOADER | {"num_workers": 8, "made": made}
    case = analysis_of(gpuprof.diagnose(builder.write(tmp_path / "run")))
    assert case is not None and case.feed is not None and case.run is not None
    assert case.run.work.micro_steps == 2
    assert case.feed.batches == 1


@pytest.mark.parametrize(("waits_ms", "steps", "workers", "late"), [
    (16.0, 60, 2, True), (1.0, 60, 2, False), (16.0, 12, 2, False), (16.0, 60, 0, False),
])  # fmt: skip
def test_batches_that_run_out_after_the_timed_steps(tmp_path: Path, waits_ms: float, steps: int, workers: int, late):
    """The timed steps took batches that were ready before them; the steps in which Python was sampled wait. They are no
    evidence if there are few of them, or if no worker is behind the wait."""
    made = {"batches": 12, "batch_ns": 170 * MS, "batch_cpu_ns": 160 * MS, "spread": 0.0}
    builder = RunBuilder().stage("baseline_free", [80.0, 80.5] * 15)
    builder.stage("warmup", [190.0]).stage("trace", [188.0] * 3)
    for _ in range(steps // 2):
        builder.stage("sampling", [80.0]).stage("sampling", [80.0 + waits_ms], data_ns=round(waits_ms * MS))
    sampled = builder.rank["stages"][-steps // 2 * 2 :]
    del builder.rank["stages"][-steps // 2 * 2 + 1 :]
    sampled[0] |= {"steps": steps, "ns": sum(one["ns"] for one in sampled)}
    builder.rank["loader"] = LOADER | {"num_workers": workers, "prefetch_factor": 2, "made": made}
    case = analysis_of(gpuprof.diagnose(builder.write(tmp_path / "run")))
    assert case is not None and case.budget is not None
    waited = sum(one.mean_ns or 0 for one in case.budget.excess if one.cause == "input")
    assert (case.budget.steps > 60, waited > 4 * MS) == (late, late)
    if late:
        assert case.feed is not None
        assert case.feed.loader.batch_ns == pytest.approx(2 * case.budget.mean_ns, rel=0.05)

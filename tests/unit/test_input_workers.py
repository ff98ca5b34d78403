"""Batches that the training prepares itself or that its workers prepare too slowly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.case import only
from helpers.make_run import LOADER, RunBuilder
from helpers.paths import SHARED
from helpers.program import FLOAT, MS, US, Program

import gpuprof
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.torch_version import is_before_2
from gpuprof.diagnosis.findings import compile, cuda_graphs, input_workers, optimizer
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.record.model.loader_meter import tensors_in

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


def handing_over(folder: Path, tensors: int | None, waits_ms: float = 18.0) -> Analysis:
    """Every step waits for its batch; the eight workers, who need 80 ms for one, could deliver one every 10 ms. The GPU
    then works for 12 ms."""
    made = {"batches": 30, "batch_ns": 80 * MS, "batch_cpu_ns": 78 * MS, "spread": 0.1, "tensors": tensors}
    program, step = Program(), 12.0 + waits_ms

    def body() -> None:
        start = program.now
        program.python(round(waits_ms * MS))
        program.trace.annotation(WORKERS, start, program.now)
        for _ in range(60):
            program.small_mm(host=100 * US, gpu=100 * US)
        program.backward(lambda: program.small_mm(host=100 * US, gpu=100 * US), 60)

    for _ in range(3):
        program.step(body)
    folder.mkdir(exist_ok=True)
    builder = RunBuilder().stage("baseline_free", [step, step + 0.3] * 20, data_ns=round(waits_ms * MS))
    builder.stage("warmup", [40.0]).stage("trace", [step] * 3)
    builder.rank["loader"] = LOADER | {"num_workers": 8, "prefetch_factor": 2, "made": made}
    case = analysis_of(gpuprof.diagnose(builder.write(folder / "run", program.trace.write(folder / "trace.json"))))
    assert case is not None and case.feed is not None
    return case


def test_every_step_waits_for_batches_that_workers_make_in_time(tmp_path: Path):
    """Something else holds them up: the waits belong to the step, and a step of fewer operations keeps them."""
    case = handing_over(tmp_path, None)
    assert case.mean.now_ns() == pytest.approx(case.mean_ns, rel=0.01)
    assert case.mean.lumps_ns["waits"] == pytest.approx(17.5 * MS, rel=0.05)
    assert case.mean.consumer_ns() == pytest.approx(12.5 * MS, rel=0.05)
    prompt = handing_over(tmp_path / "prompt", None, waits_ms=0.3)
    assert "waits" not in prompt.mean.lumps_ns


@pytest.mark.parametrize(("tensors", "advised"), [(114, True), (9, False)])
def test_many_tensors_of_a_batch_are_handed_over_one_after_another(tmp_path: Path, tensors: int, advised: bool):
    case = handing_over(tmp_path, tensors)
    found = [one for one in input_workers.find(case) if one.key == "packed"]
    assert bool(found) == advised
    if found:
        step = predict(case, found[0])
        assert step.expected == pytest.approx(case.mean_ns - 106 * 120_000, rel=0.02) and step.low < step.high
        assert "114 tensors" in found[0].evidence[0].text


def test_more_workers_do_not_hand_over_quicker(tmp_path: Path):
    made = {"batches": 12, "batch_ns": 800 * MS, "batch_cpu_ns": 780 * MS, "spread": 0.0, "tensors": 500}
    builder = RunBuilder().stage("baseline_free", [80.0] * 30)
    builder.stage("warmup", [90.0]).stage("trace", [88.0] * 3)
    builder.rank["loader"] = LOADER | {"num_workers": 2, "prefetch_factor": 2, "made": made}
    case = analysis_of(gpuprof.diagnose(builder.write(tmp_path / "run")))
    assert case is not None
    assert only(input_workers, case, "").least_ns == 500 * 40_000


def test_tensors_are_counted_in_lists_and_dictionaries():
    image, boxes = torch.zeros(3, 4, 4), torch.zeros(2, 4)
    batch = ([image, image], [{"boxes": boxes, "size": (4, 4)}, {"boxes": boxes, "area": boxes[0]}], "names")
    assert tensors_in(batch) == 5
    assert tensors_in([image] * 5000) < 5000

"""Gradient accumulation: which work belongs to which pass, and the same training with fewer passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.case import case_of, only, run_of
from helpers.cpu_recording import recorded
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.present import present
from helpers.program import MS, SHORT, US, Program

from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.batches.inner_passes import inner_passes
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batch_of, micro_batches
from gpuprof.diagnosis.findings import accumulation, larger_batch
from gpuprof.diagnosis.fixes.predict import fixes
from gpuprof.diagnosis.result.run_model import RunMemory, StepWork

PASS, OPTIMIZER = 40, 10
"""Number of launches in a forward pass and in the optimizer."""


def accumulating(tmp_path: Path, passes: int, gpu: int = SHORT, grid=None, **run) -> Analysis:
    """Steps of several passes; kernels fill the GPU if `gpu` is long."""
    program = Program()

    def matmul() -> None:
        program.op("aten::mm", "nvjet_hsh_128x64", gpu, [[128, 512], [512, 512]], grid=grid or [4, 1, 1])

    def body() -> None:
        for _ in range(passes):
            for _ in range(PASS):
                matmul()
            program.backward(matmul, PASS)
        with_optimizer(program)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path, run_of(**run) if run else None)


def with_optimizer(program: Program) -> None:
    start = program.now
    for _ in range(OPTIMIZER):
        program.elementwise()
    program.trace.annotation("Optimizer.step#AdamW.step", start, program.now)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_every_launch_belongs_to_its_pass(passes: int, tmp_path: Path):
    case = accumulating(tmp_path, passes)
    assert micro_batches(case) == passes
    number = micro_batch_of(case, passes)
    counts = np.bincount(number[case.graph.on_gpu & (number >= 0)], minlength=passes) / case.steps
    assert counts.tolist() == [2 * PASS] * passes
    assert (number[case.graph.on_gpu] < 0).sum() / case.steps == OPTIMIZER


def test_passes_that_an_update_separates_are_of_two_gradients(tmp_path: Path):
    """A discriminator, then a generator; neither has micro-batches."""
    program = Program()

    def body() -> None:
        for _ in range(2):
            for _ in range(PASS):
                program.small_mm()
            program.backward(program.small_mm, PASS)
            with_optimizer(program)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert micro_batches(case) is None and not list(accumulation.find(case))


def test_launch_bound_passes_are_merged(tmp_path: Path):
    """Except for the optimizer, four launch-bound passes take four times as long as one with four times the samples."""
    case = accumulating(tmp_path, 4)
    found = only(accumulation, case)
    step = case.step_of(found.change(case.graph))
    optimizer = OPTIMIZER / (4 * 2 * PASS + OPTIMIZER)
    assert step / case.step_ns == pytest.approx((1 - optimizer) / 4 + optimizer, rel=0.08)
    assert found.work == 1 and not found.changes, "the same samples in an optimizer step"
    assert found.title == "micro-batch 4 passes → 1, each 4 times as large"
    (advised,) = (one for one in fixes(case).findings if one.id == "accumulation")
    assert advised.changes is None and advised.speedup.low > 2


def test_passes_that_fill_the_gpu_gain_nothing(tmp_path: Path):
    case = accumulating(tmp_path, 4, gpu=500 * US, grid=[100_000, 1, 1])
    assert "accumulation" not in [one.id for one in fixes(case).findings]
    (why,) = (one for one in fixes(case).considered if one.id == "accumulation")
    assert "of CPU time off a step of 160 ms" in why.reason and "less than 1 %" in why.reason


def test_memory_limits_the_micro_batch(tmp_path: Path):
    """100 GB of 140 are activations of one pass: twice that does not fit; 40 GB do."""
    for gigabytes, factor in ((100, None), (40, 2)):
        memory = RunMemory(10 << 30, None, (10 + gigabytes) << 30)
        case = accumulating(tmp_path / str(gigabytes), 4, work=StepWork(32, None, None, 4), memory=memory)
        found = list(accumulation.find(case))
        assert (found[0].title if found else None) == (factor and "micro-batch 8 × 4 → 16 × 2")


def test_a_larger_batch_changes_the_training(tmp_path: Path):
    case = accumulating(tmp_path, 1)
    assert not list(accumulation.find(case))
    (found,) = (one for one in fixes(case).findings if one.id == "larger_batch")
    assert found.changes == "8 times the samples in an optimizer step"
    assert "gradient_accumulation_steps" not in str(only(larger_batch, case).fix)


def test_steps_that_differ_in_their_passes_have_none(tmp_path: Path):
    program = Program()
    for passes in (2, 1, 2):

        def body(passes: int = passes) -> None:
            for _ in range(passes):
                program.small_mm()
                program.backward(program.small_mm, 4)
            program.python(1 * MS)

        program.step(body)
    assert micro_batches(program.case(tmp_path)) is None


@pytest.mark.slow  # a recording of 27,000 kernels
def test_a_loss_that_encodes_its_batch_in_parts():
    """256 pairs, 32 sentences at a time: 16 passes, and 16 more in the backward pass of the loss. The backward passes
    of these are no recomputation."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "cached_contrastive" / "recording")
    case = analysis_of(found)
    assert case is not None
    inner = inner_passes(case)
    assert inner is not None and inner.count == 16
    work = [int((inner.number[case.graph.on_gpu] == one).sum()) for one in range(15)]
    assert max(work) < 1.05 * min(work)
    parts, once = (next(one for one in found.findings if one.id == name) for name in ("accumulation", "recompute"))
    assert parts.speedup.low < 8.0 < parts.speedup.high, "measured with 256 at a time"
    assert "parts of the batch" in parts.title and once.speedup.high < 2 and "encodes" in once.title
    above = present(found.above_reach)
    assert above.largest[0].finding == "accumulation"


def adversarial(model, batch, optimizer):
    """Gradients of samples whose embeddings are moved are added to those of the samples (FGM)."""
    import torch

    model(batch).square().mean().backward()
    table = model[0].weight
    moved = table.grad / table.grad.norm()
    table.data.add_(moved)
    model(batch).square().mean().backward()
    with torch.no_grad():
        table.sub_(moved)


def sharpness_aware(model, batch, optimizer):
    """All weights are moved along their gradients, and back."""
    import torch

    model(batch).square().mean().backward()
    with torch.no_grad():
        moved = [0.05 * one.grad for one in model.parameters()]
        for one, by in zip(model.parameters(), moved, strict=True):
            one.add_(by)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    with torch.no_grad():
        for one, by in zip(model.parameters(), moved, strict=True):
            one.sub_(by)


def accumulated(model, batch, optimizer):
    for part in batch.split(len(batch) // 2):
        model(part).square().mean().backward()


@pytest.mark.parametrize(("passes", "count"), [(adversarial, None), (sharpness_aware, None), (accumulated, 2)])
def test_passes_between_which_weights_move_are_no_micro_batches(tmp_path: Path, passes, count: int | None):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 50))
    optimizer, batch = torch.optim.SGD(model.parameters(), 1e-3), torch.randint(0, 50, (4, 8))

    def step(_: int) -> None:
        optimizer.zero_grad()
        passes(model, batch, optimizer)
        optimizer.step()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    assert micro_batches(case) == count

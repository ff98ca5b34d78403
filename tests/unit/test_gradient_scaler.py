"""A gradient scaler's work in a step, and what goes with it."""

from __future__ import annotations

import pytest
from helpers.case import only
from helpers.program import GAP, MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.cpu.gradient_scaler import UNSCALE, gradient_scaler, is_optimizer_step
from gpuprof.diagnosis.findings import optimizer, syncs

KERNELS = 50


def scaled(tmp_path, between: str = "") -> Analysis:
    """A GPU-bound pass; the scaler checks gradients, collects them for 1 ms and reads the result; then the optimizer's
    lists, and slow host work. `between`: an op between the read and the optimizer's step."""
    program = Program()

    def body():
        for _ in range(KERNELS):
            program.small_mm(10 * US, 100 * US)
        program.op("aten::reciprocal", kernel="reciprocal", gpu=2 * US)
        program.python(1 * MS)
        program.op(UNSCALE, kernel="multi_tensor_apply_kernel<Unscale>", gpu=20 * US)
        program.item()
        if between:
            program.op(between)
        program.python(1 * US)
        start = program.now - 1
        for _ in range(4):
            program.op("aten::_foreach_mul_", kernel="multi_tensor_apply_kernel<Lists>", gpu=20 * US)
        program.trace.annotation("Optimizer.step#AdamW.step", start, program.now + 1)
        program.python(4 * MS)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path)


def test_a_fused_optimizer_does_not_wait_for_the_scalers_verdict(tmp_path):
    case = scaled(tmp_path)
    proposal = only(optimizer, case)
    assert "gradient scaler waits" in proposal.evidence[0].text
    # The wait holds the CPU until the GPU is done; without it the 5 ms of Python hide behind the GPU's 5 ms.
    assert case.step_ns > KERNELS * 100 * US + 4 * MS
    assert case.step_of(proposal.change(case.graph)) < case.step_ns - 3 * MS


def test_other_reads_before_the_step_stay(tmp_path):
    """Another op lies between the read and the step, so the read is not scaler.step's."""
    case = scaled(tmp_path, between="aten::add")
    proposal = only(optimizer, case)
    assert "scaler" not in proposal.evidence[0].text
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_ns, rel=0.02)


def test_bf16_needs_no_scaler(tmp_path):
    case = scaled(tmp_path)
    scaler = gradient_scaler(case, case.ops_named(is_optimizer_step))
    assert scaler is not None
    checks = float(case.graph.duration_ns[scaler.checks & ~case.graph.on_gpu].sum()) / case.steps
    assert checks == pytest.approx(1 * MS + 20 * US, rel=0.02)
    proposal = only(syncs, case, "values")
    assert "bfloat16" in str(proposal.fix)
    assert proposal.changes
    gpu = KERNELS * (100 * US + GAP)
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(max(gpu, 4 * MS) + 4 * 21 * US, rel=0.05)

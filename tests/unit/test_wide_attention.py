"""Attention in float32 in a model of bf16: priced as flash attention, with the casts around it; and calls that waited
for work of the step before, which was not recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of, only
from helpers.program import BF16, FLOAT, MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import autocast, wide_attention
from gpuprof.replay.build.carried_in import carried_over

RECORDING = Path(__file__).parents[2] / "scenarios/programs/rope_float32/recording"
Q = [4, 16, 2048, 64]
FORWARD = "aten::_scaled_dot_product_efficient_attention"


def program(folder: Path, matmuls: str, attends: str) -> Analysis:
    """Three steps of a matrix multiplication and an attention of three inputs, one of which is cast before it."""
    made = Program()
    for _ in range(3):

        def body() -> None:
            made.mm(4096, 4096, 4096, gpu=5 * MS, type=matmuls)
            if attends != BF16:
                made.cast(Q, BF16, attends, gpu=200 * US)
            made.op(
                FORWARD, "fmha_cutlassF_f32_aligned_64x64_rf_sm80", 10 * MS, [Q, Q, Q, [], [], [], []], [attends] * 3
            )
            if attends != BF16:
                made.cast(Q, attends, BF16, gpu=100 * US)
            made.mm(4096, 4096, 4096, gpu=5 * MS, type=matmuls)

        made.step(body)
    return case_of(made.trace.write(folder / "trace.json"), as_recorded=True)


def test_attention_at_the_rate_of_flash_without_the_casts_next_to_it(tmp_path: Path) -> None:
    case = program(tmp_path, BF16, FLOAT)
    proposal = only(wide_attention, case)
    assert case.roofline is not None
    limits, values = case.roofline.ceilings, 4 * 16 * 2048 * 64
    flash = 4 * 4 * 16 * 2048**2 * 64 / (limits.flops["bf16"] * 0.42) * 1e9
    casts = 2 * values * 6 / (limits.memory_bytes_per_s * 0.65) * 1e9
    step = case.step_of(proposal.change(case.graph))
    assert step == pytest.approx(10 * MS + flash + casts, rel=0.02)
    assert proposal.best is not None
    assert proposal.worst is not None
    assert case.step_of(proposal.best(case.graph)) < step < case.step_of(proposal.worst(case.graph)) < case.step_ns
    assert "100 % of the time of matrix multiplications is in bf16" in proposal.evidence[0].text
    assert "torch.bfloat16" in str(proposal.fix)
    assert not list(autocast.find(case))


@pytest.mark.parametrize(("matmuls", "attends"), [(BF16, BF16), (FLOAT, FLOAT)])
def test_not_where_attention_is_like_the_rest(tmp_path: Path, matmuls: str, attends: str) -> None:
    assert not list(wide_attention.find(program(tmp_path, matmuls, attends)))


def test_a_full_queue_of_work_that_was_not_recorded_is_no_time_of_the_cpu() -> None:
    """The GPU is a step behind: launches of 2 and 5 ms wait for attention of the step before."""
    case = case_of(RECORDING, as_recorded=True)
    graph = carried_over(case.graph)
    assert float(graph.duration_ns[~graph.on_gpu].sum()) < 80 * MS
    step = case.step_of(only(wide_attention, case).change(graph))
    assert 60 * MS < step < 100 * MS

"""Matrix multiplications of an optimizer: in float32, and one matrix after another."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.program import BF16, FLOAT, MS, PLAIN, US, Program

from gpuprof.calibration import precision
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import optimizer_matmuls

WIDE, ROUNDS, MATRICES = [1024, 1024], 5, 8
SLOW = 200 * US
SGEMM = "cutlass_80_simt_sgemm_128x128_8x4_nn_align1"


def iteration(program: Program, shape: list[int], kind: str, gpu: int) -> None:
    """A norm, and rounds of three multiplications with an elementwise op each."""
    rows, columns = sorted(shape)
    square, kernel = [rows, rows], SGEMM if kind == FLOAT else "nvjet_sm90_tst_128x128"
    program.op("aten::linalg_vector_norm", PLAIN, 4 * US, [shape, [], []], [kind, "Scalar", ""])
    for _ in range(ROUNDS):
        for pair in ([[rows, columns], [columns, rows]], [square, square], [square, [rows, columns]]):
            program.op("aten::mm", kernel, gpu, pair, [kind, kind])
            program.op("aten::add", PLAIN, 4 * US, [shape, shape, []], [kind, kind, "Scalar"])


def trained(
    folder: Path, body, matrices: int, *, shapes=(WIDE,), kind: str = FLOAT, gpu: int = SLOW, other: int = 2 * MS
) -> Analysis:
    """Steps of ten kernels of other work, and of an optimizer that calls `body` for each matrix."""
    program = Program()

    def step() -> None:
        for _ in range(10):
            program.small_mm(20 * US, other)
        begin = program.now
        for number in range(matrices):
            body(program, list(shapes[number % len(shapes)]), kind, gpu)
        program.trace.annotation("Optimizer.step#Muon.step", begin - 1, program.now + 1)

    for _ in range(3):
        program.step(step, sync=True)
    return program.case(folder)


def gains(case: Analysis) -> dict[str, float]:
    """Key → what it takes off the step, ns."""
    return {one.key: case.step_ns - case.step_of(one.change(case.graph)) for one in optimizer_matmuls.find(case)}


def test_bf16_is_faster_and_a_stack_is_faster_still(tmp_path: Path):
    case = trained(tmp_path, iteration, MATRICES, shapes=(WIDE, [2048, 1024], [1024, 2048]), gpu=SLOW)
    each = MATRICES * ROUNDS * 3
    found = gains(case)
    assert 0.8 * each * SLOW < found[""] < each * SLOW, "16-bit multiplications of this size take 10 to 30 µs"
    assert found["stacked"] > found[""] and {one.odds for one in optimizer_matmuls.find(case)} == {1.0}
    text = next(one for one in optimizer_matmuls.find(case) if one.key == "stacked").evidence[0].text
    assert f"{MATRICES} iterations" in text and "of 2 shapes" in text, "tall matrices are transposed"


def test_where_it_is_in_bf16_stacking_takes_launches_off(tmp_path: Path):
    """The CPU takes 30 × 20 µs for each of 16 matrices, and the GPU less."""
    case = trained(tmp_path, iteration, 16, kind=BF16, gpu=5 * US, other=5 * US)
    (proposal,) = optimizer_matmuls.find(case)
    assert not proposal.changes and "bfloat16" not in str(proposal.fix)
    work = 16 * (ROUNDS * 6 + 1) * 20 * US
    assert gains(case)["stacked"] == pytest.approx(work * 15 / 16, rel=0.3)


def preconditioned(program: Program, shape: list[int], kind: str, gpu: int) -> None:
    program.op("aten::linalg_vector_norm", PLAIN, 4 * US, [shape, [], []], [kind, "Scalar", ""])
    for _ in range(2):
        program.op("aten::mm", SGEMM, gpu, [shape, shape], [kind, kind])


def test_preconditioners_may_need_float32(tmp_path: Path):
    (proposal,) = optimizer_matmuls.find(trained(tmp_path, preconditioned, MATRICES))
    assert proposal.odds == precision.PRECONDITIONER.value and proposal.needs and proposal.key == ""


@pytest.mark.parametrize("matrices", [0, 3], ids=["an optimizer without them", "few of one shape, in bf16"])
def test_nothing_to_propose(tmp_path: Path, matrices: int):
    assert not gains(trained(tmp_path, iteration, matrices, kind=BF16, gpu=5 * US))

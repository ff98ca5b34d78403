"""A large square matrix that is multiplied and not made by the step may be sparse."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import FLOAT, MS, PLAIN, US, Program

from gpuprof.calibration import kernels
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import sparse_matrix

SIZE, WIDTH = 8_192, 64
EACH = 1 * MS


def step_with(folder: Path, *made: tuple[str, list], size: int = SIZE, other: int = EACH) -> Analysis:
    """Two multiplications by a matrix and one op on it, other ops, and other work."""
    program = Program()

    def body() -> None:
        for _ in range(2):
            program.op("aten::mm", "sgemm", EACH, [[size, size], [size, WIDTH]], [FLOAT, FLOAT])
        program.op("aten::mul", PLAIN, EACH, [[size, 1], [size, size]], [FLOAT, FLOAT])
        for name, shapes in made:
            program.op(f"aten::{name}", PLAIN, 10 * US, shapes, [FLOAT] * len(shapes))
        for _ in range(5):
            program.small_mm(20 * US, other)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_it_takes_a_share_of_the_time(tmp_path: Path):
    case = step_with(tmp_path)
    proposal = only(sparse_matrix, case)
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(3 * EACH * (1 - kernels.SPARSE_LEFT.value), rel=0.02)
    assert "8,192 × 8,192" in proposal.evidence[0].text


@pytest.mark.parametrize(
    "case",
    [
        lambda folder: step_with(folder, ("softmax", [[SIZE, SIZE], [], []])),
        lambda folder: step_with(folder, ("mm", [[SIZE, WIDTH], [WIDTH, SIZE]])),  # its gradient, or scores
        lambda folder: step_with(folder, size=1_024),
        lambda folder: step_with(folder, other=50 * MS),
    ],
    ids=["attention", "a trained matrix", "a transform", "little of the step"],
)
def test_not_what_is_dense(tmp_path: Path, case):
    assert not list(sparse_matrix.find(case(tmp_path)))

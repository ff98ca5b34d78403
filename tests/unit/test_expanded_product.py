"""Products and differences that are expanded and summed; not masks, nor results used for something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import FLOAT, MS, PLAIN, US, Program

from gpuprof.calibration import kernels
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import expanded_product

ROWS, COLUMNS, WIDTH = 2_048, 2_048, 256
LARGE = [ROWS, COLUMNS, WIDTH]
EACH = 2 * MS


def step_with(folder: Path, *ops: str, left: list[int], right: list[int]) -> Analysis:
    """Ops of which the first has two operands and the others get its result; other work; no backward pass."""
    program = Program()

    def body() -> None:
        program.op(f"aten::{ops[0]}", PLAIN, EACH, [left, right], [FLOAT, FLOAT])
        for name in ops[1:]:
            program.op(f"aten::{name}", PLAIN, EACH, [LARGE, []], [FLOAT, "Scalar"])
        for _ in range(5):
            program.small_mm(20 * US, 1 * MS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize(
    ("ops", "way"), [(("mul", "sum"), "torch.einsum"), (("sub", "pow", "sum"), "torch.cdist"),
                     (("sub", "linalg_vector_norm"), "torch.cdist")],
)  # fmt: skip
def test_it_is_a_matrix_multiplication(tmp_path: Path, ops: tuple[str, ...], way: str):
    case = step_with(tmp_path, *ops, left=[ROWS, 1, WIDTH], right=[1, COLUMNS, WIDTH])
    proposal = only(expanded_product, case)
    rate = present(case.roofline).ceilings.flops["tf32"]
    wanted = max(kernels.EXPANDED_LEFT.value * 2 * ROWS * COLUMNS * WIDTH / rate * 1e9, 10 * US)
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(len(ops) * EACH - wanted, rel=0.02)
    assert "2,048 × 2,048 × 256 elements" in proposal.evidence[0].text and way in str(proposal.fix)


@pytest.mark.parametrize(
    ("ops", "right"),
    [
        (("mul", "sum"), LARGE),  # a mask, a bias: nothing is expanded
        (("mul", "softmax", "sum"), [1, COLUMNS, WIDTH]),  # the tensor itself is used
        (("sub", "sum"), [1, COLUMNS, WIDTH]),  # no square
        (("add", "sum"), [1, COLUMNS, WIDTH]),
    ],
)
def test_not_what_a_matrix_multiplication_cannot_do(tmp_path: Path, ops: tuple[str, ...], right: list[int]):
    assert not list(expanded_product.find(step_with(tmp_path, *ops, left=[ROWS, 1, WIDTH], right=right)))

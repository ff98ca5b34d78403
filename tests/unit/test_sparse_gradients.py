"""Tables with dense gradients although few rows are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.program import FLOAT, MS, PLAIN, US, Program

from gpuprof.diagnosis.findings import sparse_gradients

WIDTH, BATCH = 16, 4096


def step_with(path: Path, rows: int):
    """A step that fills a table's gradient (2 ms) and updates it along with a weight of the same size (4 ms)."""
    program = Program()
    table = [rows, WIDTH]
    more: dict[str, Any] = {"Concrete Inputs": ["", "", str(rows), "-1", "False"]}

    def body() -> None:
        program.op("aten::mm", PLAIN, 5 * MS, [[BATCH, 64], [64, 64]], [FLOAT, FLOAT])
        dims = [[BATCH, 1, WIDTH], [BATCH, 1], [], [], []]
        program.op("aten::embedding_dense_backward", PLAIN, 1 * MS, dims, [FLOAT], **more)
        program.op("aten::fill_", PLAIN, 2 * MS, [table, []], [FLOAT, "Scalar"])
        start = program.now
        program.python(2 * US)
        lists = [table, [2 * rows, WIDTH // 2]]
        program.op("aten::_foreach_mul_", PLAIN, 4 * MS, [lists, []], ["TensorList", "Scalar"])
        program.python(2 * US)
        program.trace.annotation("Optimizer.step#Adam.step", start, program.now)

    for _ in range(3):
        program.step(body)
    return program.case(path)


def test_whole_tables_become_the_rows_that_are_looked_up(tmp_path: Path):
    case = step_with(tmp_path, 1_000_000)
    fix = only(sparse_gradients, case)
    saved = case.step_ns - case.step_of(fix.change(case.graph))
    assert saved == pytest.approx((2 + 4 / 2) * MS, rel=0.03), "the fill, and half of the optimizer's work"
    assert fix.changes


@pytest.mark.parametrize("rows", [20_000, 620_000])
def test_neither_small_tables_nor_those_whose_rows_all_come(tmp_path: Path, rows: int):
    assert not list(sparse_gradients.find(step_with(tmp_path, rows)))

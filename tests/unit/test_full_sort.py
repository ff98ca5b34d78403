"""Sorts of whole rows of which the next op sees the first few values."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import FLOAT, US, Program

from gpuprof.calibration import slow
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import full_sort

ROWS, WIDTH, USED = 4_096, 32_000, 64
SORT = 10_000 * US


def sorting(folder: Path, seen: int, gpu: int = SORT) -> Analysis:
    """A GPU-bound step that sorts rows, and whose next op sees `seen` values of each."""
    program = Program()

    def body():
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)
        program.plain("sort", [ROWS, WIDTH], gpu=gpu, type=FLOAT)
        program.op("aten::slice", dims=[[ROWS, WIDTH], [], []], types=[FLOAT, "Scalar", "Scalar"])
        program.plain("log_softmax", [ROWS, seen], gpu=5 * US, type=FLOAT)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_a_selection_reads_its_input_some_times(tmp_path: Path):
    case = sorting(tmp_path, USED)
    proposal = only(full_sort, case)
    rate = present(case.roofline).ceilings.memory_bytes_per_s
    reads = slow.TOPK_PASSES.value * ROWS * WIDTH * 4 / rate * 1e9
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(SORT - reads, rel=0.01)
    assert "rows of 32,000 values are sorted, of which 64 are used" in proposal.evidence[0].text


@pytest.mark.parametrize(("seen", "gpu"), [(WIDTH, SORT), (WIDTH // 2, SORT), (USED, 20 * US)])
def test_not_where_the_row_is_used_or_the_sort_is_short(tmp_path: Path, seen: int, gpu: int):
    assert not list(full_sort.find(sorting(tmp_path, seen, gpu)))

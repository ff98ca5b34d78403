"""Sums of rows by index become sums over segments, where there are many rows for each sum."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import FLOAT, MS, PLAIN, US, Program

from gpuprof.calibration import kernels
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import scattered_sums

ROWS, SUMS, WIDTH = 200_000, 20_000, 128
EACH, CALLS = 1 * MS, 3


def step_with(folder: Path, name: str, rows: int, sums: int, gpu: int = EACH) -> Analysis:
    """Sums by index in the forward pass, and other work."""
    program = Program()
    index = [rows, WIDTH] if "scatter" in name else [rows]

    def body() -> None:
        for _ in range(CALLS):
            shapes = [[sums, WIDTH], [], index, [rows, WIDTH], []]
            program.op(f"aten::{name}", PLAIN, gpu, shapes, [FLOAT, "Scalar", "long int", FLOAT, ""])
            program.small_mm(20 * US, 1 * MS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize("name", ["index_add", "scatter_add_"])
def test_rows_are_read_once(tmp_path: Path, name: str):
    case = step_with(tmp_path, name, ROWS, SUMS)
    proposal = only(scattered_sums, case)
    bandwidth = present(case.roofline).ceilings.memory_bytes_per_s
    wanted = 4 * WIDTH * (ROWS + SUMS) / bandwidth / kernels.SEGMENT_MEMORY.value * 1e9
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(CALLS * (EACH - wanted), rel=0.02)
    assert "3 sums by index a step, the largest of 200,000 × 128 to 20,000 × 128" in proposal.evidence[0].text


@pytest.mark.parametrize(
    ("name", "rows", "sums", "gpu"),
    [("index_add", ROWS, ROWS, EACH), ("index_add", 2_000, 200, EACH), ("index_add", ROWS, SUMS, 20 * US),
     ("index_select", ROWS, SUMS, EACH)],
    ids=["a row for each sum", "few rows", "little of the step", "no sum"],
)  # fmt: skip
def test_nothing_to_gain(tmp_path: Path, name: str, rows: int, sums: int, gpu: int):
    assert not list(scattered_sums.find(step_with(tmp_path, name, rows, sums, gpu)))

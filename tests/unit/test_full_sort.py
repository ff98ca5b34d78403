"""Sorts of whole rows of which the next op uses the first few values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import BF16, FLOAT, US, Program

from gpuprof.calibration import slow
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import full_sort

ROWS, WIDTH, USED = 4_096, 32_000, 64
SORT, CAST = 10_000 * US, 500 * US


def sorting(folder: Path, seen: int, gpu: int = SORT) -> Analysis:
    """A GPU-bound step that sorts rows, and whose next op uses `seen` values of each."""
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


def sliced(folder: Path, shape: list[int], seen: int, end: int) -> Analysis:
    """A sort of `shape` whose slice up to `end` is read after an op on another tensor, next to rows of `seen`."""
    program = Program()

    def body():
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)
        program.plain("sort", shape, gpu=SORT, type=FLOAT)
        numbers: dict[str, Any] = {"Concrete Inputs": ["", str(len(shape) - 1), "0", str(end), "1"]}
        program.op("aten::slice", dims=[shape, [], [], [], []], types=[FLOAT], **numbers)
        program.plain("repeat", [7, 3], gpu=2 * US, type=FLOAT)
        program.plain("index", [*shape[:-1], seen], gpu=2 * US, type=FLOAT)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize("shape", [[ROWS, WIDTH], [ROWS * WIDTH]])
def test_a_recorded_slice_says_what_is_used(tmp_path: Path, shape: list[int]):
    proposal = only(full_sort, sliced(tmp_path, shape, USED, USED))
    assert f"rows of {shape[-1]:,} values are sorted, of which 64 are used" in proposal.evidence[0].text


@pytest.mark.parametrize(("seen", "end"), [(WIDTH, USED), (WIDTH // 2, WIDTH // 2), (USED, WIDTH)])
def test_not_where_more_is_read_than_a_slice(tmp_path: Path, seen: int, end: int):
    assert not list(full_sort.find(sliced(tmp_path, [ROWS, WIDTH], seen, end)))


RADIX = "void at_cuda_detail::cub::detail::radix_sort::DeviceSegmentedRadixSortKernel<>"


def cast_and_sorted(folder: Path, source: str, kernel: str = RADIX) -> Analysis:
    """A GPU-bound step that sorts whole rows of fp32, which were `source` before the op before."""
    program = Program()

    def body():
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)
        program.cast([ROWS, WIDTH], source, FLOAT, CAST)
        program.op("aten::sort", kernel, SORT, [[ROWS, WIDTH], [], []], [FLOAT, "Scalar", "Scalar"])
        program.plain("cumsum", [ROWS, WIDTH], gpu=5 * US, type=FLOAT)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_a_sort_of_what_was_cast_has_half_the_passes_without_the_cast(tmp_path: Path):
    case = cast_and_sorted(tmp_path, BF16)
    proposal = only(full_sort, case, "cast")
    wanted = SORT * (1 - slow.SORT_16_BITS.value) + CAST
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(wanted, rel=0.01)
    assert "bf16 values are cast to fp32" in proposal.evidence[0].text


@pytest.mark.parametrize(("source", "kernel"), [("double", RADIX), (BF16, "void at::native::bitonicSortKVInPlace")])
def test_not_where_nothing_was_narrower_or_the_sort_has_no_passes(tmp_path: Path, source: str, kernel: str):
    assert not list(full_sort.find(cast_and_sorted(tmp_path, source, kernel)))

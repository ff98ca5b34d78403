"""A DataLoader whose data set's tensors are on the GPU takes their rows one by one, and joins them by a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import MS, US, Program

from gpuprof.calibration import loader as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batches.rows_on_gpu import rows_on_gpu
from gpuprof.diagnosis.findings import host_preprocessing, input_workers
from gpuprof.tracefile.trace import KERNEL

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
ROWS = 64
ROW = 20 * US


def fed(folder: Path, rows: int = ROWS, on_gpu: bool = True, also: str = "") -> Analysis:
    """A small model, and batches of rows that are taken one by one. also: an op on each row."""
    made = Program()

    def body() -> None:
        start = made.now
        for _ in range(rows):
            made.op("aten::select", dims=[[1000, 16]], host=ROW)
            if also:
                made.op(f"aten::{also}", dims=[[16]], host=ROW)
        made.op("aten::stack", "CatArrayBatchedCopy" if on_gpu else "", dims=[[rows, 16]], host=ROW)
        made.trace.annotation(LOADER, start, made.now)
        made.python(200 * US)
        made.small_mm()
        made.backward(made.small_mm, 1)

    for _ in range(3):
        made.step(body)
    return made.case(folder)


def test_all_rows_at_once_cost_a_few(tmp_path):
    case = fed(tmp_path)
    found = only(host_preprocessing, case, "whole_batches")
    assert f"{ROWS} rows" in found.evidence[0].text
    saved = case.step_ns - case.step_of(found.change(case.graph))
    took = (ROWS + 1) * ROW
    assert saved == pytest.approx(took * (1 - calibrated.ROWS_AT_ONCE.value / ROWS), rel=0.05)
    assert took < MS * 2
    assert not list(input_workers.find(case)), "a forked worker has no GPU"
    why = input_workers.ABSENT.why(case)
    assert why is not None and "GPU" in why


def test_what_is_computed_for_each_row_needs_more_than_an_index(tmp_path):
    case = fed(tmp_path, also="sin")
    found = rows_on_gpu(case)
    assert found is not None and not found.is_all
    assert [one.key for one in host_preprocessing.find(case)] == ["once"]
    assert not list(input_workers.find(case))


@pytest.mark.parametrize("other", [{"rows": 4}, {"on_gpu": False}], ids=["few rows", "host memory"])
def test_not_for_few_rows_or_host_memory(tmp_path, other):
    case = fed(tmp_path, **other)
    assert rows_on_gpu(case) is None
    assert (case.trace.gpu.kind == KERNEL).any()

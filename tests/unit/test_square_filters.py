"""Fixed square filters of each channel: blurs, and the windows of SSIM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import FLOAT, MS, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import square_filters
from gpuprof.diagnosis.reach.ledger import above_reach

PICTURE = [1, 3, 1024, 1024]
KERNEL = "void at::native::conv_depthwise2d_forward_kernel_generic<float, int>"
ASKS = {False: "[True, False, False]", True: "[True, True, False]", None: ""}


def filtered(folder: Path, sides: list[int], learns: bool | None = False, groups: int = 1, gpu=2 * MS) -> Analysis:
    """Two windows of a loss with their backward passes; the rest of a step takes 10 ms. learns: whether the filter gets
    a gradient; None: not recorded."""
    made = Program()
    weight = [3, groups, *sides]

    def body():
        made.mm(4096, 4096, 4096, gpu=10 * MS)
        for _ in range(2):
            made.op("aten::conv2d", KERNEL, gpu, [PICTURE, weight], [FLOAT] * 2, ("aten::convolution",))
        made.tid = AUTOGRAD
        for _ in range(2):
            asked: dict[str, Any] = {"Concrete Inputs": [""] * 10 + [ASKS[learns]]}
            dims = [PICTURE, PICTURE, weight, *[[]] * 8]
            types = [FLOAT] * 3 + ["ScalarList"] * 8
            made.op("aten::convolution_backward", KERNEL, gpu, dims, types, **asked)
        made.tid = MAIN

    for _ in range(3):
        made.step(body)
    return made.case(folder)


def test_one_axis_after_another(tmp_path):
    case = filtered(tmp_path, [11, 11])
    found = only(square_filters, case)
    assert found.best is not None and found.worst is not None
    best, usual, worst = (case.step_of(change(case.graph)) / MS for change in (found.best, found.change, found.worst))
    assert case.step_ns / MS == pytest.approx(18, rel=0.01)
    assert usual == pytest.approx(10 + 8 * 22 / 121 * 1.5, rel=0.01)
    assert best == pytest.approx(10 + 8 * 22 / 121, rel=0.01) and usual < worst < 17
    assert "11 × 11" in found.evidence[0].text and "8.0 ms" in found.evidence[0].text
    assert "a column times a row" in found.needs and found.odds < 1
    ledger = above_reach(case, None, ("square_filters",))
    assert ledger is not None and any("square filters" in item.what for item in ledger.largest)


def test_a_short_filter_cannot_be_quicker_than_its_bytes(tmp_path):
    """Two passes that each read and write 12.6 MB take longer than 126 of 3,969 parts of a quick kernel."""
    case = filtered(tmp_path, [11, 11], gpu=300_000)
    found = only(square_filters, case)
    quick = filtered(tmp_path / "quick", [63, 63], gpu=300_000)
    assert quick.step_of(only(square_filters, quick).change(quick.graph)) < case.step_of(found.change(case.graph))
    best = only(square_filters, quick).best
    assert best is not None
    left = (quick.step_of(best(quick.graph)) - 10 * MS) / (4 * 300_000)
    assert left > 126 / 3969


@pytest.mark.parametrize(
    ("sides", "learns", "groups"),
    [([11, 11], True, 1), ([11, 11], None, 1), ([7, 7], False, 1), ([1, 11], False, 1), ([11, 11], False, 3)],
    ids=["a trained layer", "not recorded", "small", "split already", "all channels"],
)
def test_not_where_it_learns_or_would_gain_nothing(tmp_path, sides, learns, groups):
    assert not list(square_filters.find(filtered(tmp_path, sides, learns, groups)))

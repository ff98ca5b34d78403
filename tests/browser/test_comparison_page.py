"""The page of `gpuprof compare` in a real browser: it fits windows of any width."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.compared import compared

from gpuprof.report.page.file import write_comparison

pytest_plugins = ["helpers.browser"]

KERNEL = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0"
OP, MODULE = "aten::_scaled_dot_product_cudnn_attention_backward", "nn.Module: FullyShardedDataParallel"
SCROLLS = """() => [...document.querySelectorAll(".tabled")]
    .filter(e => e.scrollWidth > e.clientWidth).map(e => [e.className, e.scrollWidth - e.clientWidth])"""
"""Tables that are wider than their panels."""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two recordings whose kernels, ops and modules have names as long as real ones."""
    found = compared("tiny", "tiny.compile")
    rows = tuple(replace(row, name=f"{KERNEL}{i}", op=OP, module=MODULE) for i, row in enumerate(found.kernels.rows))
    ops = tuple(replace(op, name=f"autograd::engine::evaluate_function: {OP}") for op in found.ops)
    path = tmp_path_factory.mktemp("comparison") / "page.html"
    write_comparison(replace(found, kernels=replace(found.kernels, rows=rows), ops=ops), path)
    return path


@pytest.mark.parametrize("width", [320, 601, 768, 900, 1100, 1280])
def test_no_table_scrolls_sideways(page_file: Path, visit, width: int):
    with visit(page_file, width=width) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.page.locator(".tabled").count() >= 4
        assert seen.page.evaluate(SCROLLS) == []


def test_a_kernel_is_named_in_full_with_what_launches_it(page_file: Path, visit):
    with visit(page_file, width=700) as seen:
        first = seen.page.locator(".kernels-table tbody tr").first.locator("td").first
        assert f"{KERNEL}0" in first.inner_text()
        assert f"{OP} ← FullyShardedDataParallel" in first.inner_text()


def test_both_names_stand_in_the_heading_of_a_phone(page_file: Path, visit):
    with visit(page_file, width=320) as seen:
        boxes = [name.bounding_box() for name in seen.page.locator(".top .file bdi").all()]
        assert len(boxes) == 2
        assert all(box["width"] > 20 and box["x"] + box["width"] <= 320 for box in boxes)


def test_the_button_changes_the_theme(page_file: Path, visit):
    with visit(page_file) as seen:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = seen.page.evaluate(ground)
        seen.page.get_by_role("button", name="Switch between light and dark").click()
        assert seen.page.evaluate(ground) != light
        assert seen.complaints == []

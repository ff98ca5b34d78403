"""What a notebook shows for each object, in a real browser: it fits the cells of any window, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.compared import compared
from helpers.diagnosed import each_diagnosed_once
from helpers.paths import ROOT

import gpuprof
from gpuprof.report.notebook import comparison_html, diagnosis_html, finding_html, projection_html

pytest_plugins = ["helpers.browser"]

RECORDING = ROOT / "scenarios" / "programs" / "clip_and_log" / "recording"
CELLS = ("diagnosis", "fix", "comparison", "projection")
WIDER = """width => [...document.querySelectorAll(".gpuprof *")]
    .filter(e => e.getBoundingClientRect().right > width).map(e => e.tagName + " " + e.textContent.slice(0, 60))"""
UNREADABLE = """() => [...document.querySelectorAll(".gpuprof p, .gpuprof td, .gpuprof h3")]
    .filter(e => getComputedStyle(e).color !== getComputedStyle(document.body).color).map(e => e.textContent)"""
"""Texts in another colour than the page's, whose background it is made for."""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of four cells, as a notebook arranges them."""
    with each_diagnosed_once():
        found = gpuprof.diagnose(RECORDING)
        projection = gpuprof.project(found, ["H100 SXM", "RTX 4090"])
    outputs = (
        diagnosis_html(found), finding_html(found.findings[0]), comparison_html(compared("tiny", "tiny.compile")),
        projection_html(projection),
    )  # fmt: skip
    cells = "".join(f'<div id="{name}">{html}</div>' for name, html in zip(CELLS, outputs, strict=True))
    style = (
        "body{margin:8px;background:#fff;color:#111}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
    )
    path = tmp_path_factory.mktemp("notebook") / "page.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><style>{style}</style>{cells}')
    return path


@pytest.mark.parametrize("width", [480, 700, 1280])
def test_nothing_is_wider_than_its_cell(page_file: Path, visit, width: int):
    with visit(page_file, width=width) as seen:
        assert seen.page.evaluate(WIDER, width) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_colour_of_the_notebook(page_file: Path, visit, theme: str):
    with visit(page_file, color_scheme=theme) as seen:
        assert seen.page.evaluate(UNREADABLE) == []
        assert [seen.page.locator(f"#{name} h3").count() for name in CELLS] == [1] * len(CELLS)
        bar = seen.page.locator("#diagnosis .bar").first
        parts = [part.bounding_box()["width"] for part in bar.locator("span").all()]
        assert sum(parts) == pytest.approx(bar.bounding_box()["width"], rel=0.01)

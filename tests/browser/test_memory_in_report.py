"""Memory in the report of a run that has a snapshot, in a real browser: drawn, zoomable, and no wider than a phone."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.report.page.file import write_report

pytest_plugins = ["helpers.browser"]

RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"
SNAPSHOT = ROOT / "tests" / "data" / "snapshots" / "llama.pickle.gz"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    shutil.copytree(RUN, folder / "run")
    (folder / "run" / "memory.rank0.pickle").write_bytes(gzip.decompress(SNAPSHOT.read_bytes()))
    write_report(gpuprof.diagnose(folder / "run"), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def opened(chromium, report: Path) -> Iterator[Callable[[int, str], tuple[Any, list[str]]]]:
    """The report in a window of this width and with this colour scheme, opened once, and what it complained of."""
    pages = []

    @cache
    def window(width: int, scheme: str) -> tuple[Any, list[str]]:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(report.as_uri())
        page.locator("#memory").scroll_into_view_if_needed()
        page.wait_for_selector("[data-chart=memory_owners] .scatterlayer path.js-fill")
        page.wait_for_selector("html[data-charts=drawn]")  # all of them, where the browser itself says when it is idle
        return page, said

    yield window
    for page in pages:
        page.close()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (320, "light"),
        pytest.param(390, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_areas_strip_tiles_and_tables(opened, width: int, scheme: str):
    page, said = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    areas = page.evaluate("[...document.querySelectorAll('[data-chart=memory_owners] path.js-fill')]"
                          ".map(p => getComputedStyle(p).fill)")  # fmt: skip
    assert len(areas) >= 6 and len(set(areas)) == len(areas)
    assert page.evaluate("document.querySelectorAll('[data-chart=memory_owners] .barlayer .point').length") > 3
    tiles = page.evaluate("[...document.querySelectorAll('#memory .treemap > span')]"
                          ".map(t => t.getBoundingClientRect()).map(b => [b.width, b.height])")  # fmt: skip
    assert len(tiles) >= 6 and all(w > 0 and h > 0 for w, h in tiles)
    tables = page.evaluate("[...document.querySelectorAll('#memory .memory-tables')]"
                           ".map(t => t.scrollWidth - t.clientWidth)")  # fmt: skip
    assert len(tables) == 3 and max(tables) <= 0
    names = page.locator("#memory .memory-changes td:first-child").evaluate_all("all => all.map(e => e.clientHeight)")
    assert len(names) > 3 and max(names) < 50, "no name is broken into letters"
    text = page.inner_text("#memory")
    assert "logits and loss" in text and "checkpoint all layers" in text and "GiB" in text
    assert said == []


def test_dragging_zooms_areas_and_phases_together(opened):
    page, said = opened(1280, "light")
    page.locator("[data-chart=memory_owners]").scroll_into_view_if_needed()
    axis = "document.querySelector('[data-chart=memory_owners] .js-plotly-plot')._fullLayout.xaxis.range"
    before = page.evaluate(axis)
    box = page.locator("[data-chart=memory_owners] .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=5)
    page.mouse.up()
    page.wait_for_function(f"{axis}[1] - {axis}[0] < {0.5 * (before[1] - before[0])}")
    assert said == []

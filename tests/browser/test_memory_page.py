"""The page of `gpuprof memory` in a real browser: everything drawn, nothing wider than a phone, names only names."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from benchmarks.memory_snapshot import MIB, Allocator, Program, train
from gpuprof.memory.analyse import analyse
from gpuprof.memory.snapshot import from_data
from gpuprof.report.page.file import is_report, write_memory

pytest_plugins = ["helpers.browser"]

HOSTILE = "<script>document.title='pwned'</script>"


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    allocator, program = Allocator(), Program(2)
    train(allocator, program, 6, leak=3 * MIB)
    allocator.alloc(400 * MIB, program.mine(9, HOSTILE))
    path = tmp_path / "memory.html"
    write_memory(analyse(from_data(pickle.loads(pickle.dumps(allocator.snapshot())), "a.pickle")), path)
    return path


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_chart_is_drawn_and_fits(chromium, page_file: Path, width: int):
    assert is_report(page_file)
    page = chromium.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.memory-tables')].map(t => t.scrollWidth - t.clientWidth)"
                         ".every(beyond => beyond <= 0)")  # fmt: skip
    boxes = page.evaluate("[...document.querySelectorAll('.memory-chart path')].map(p => p.getBoundingClientRect())"
                          ".map(b => [b.width, b.height])")  # fmt: skip
    assert len(boxes) >= 6 and all(w > 0 and h > 0 for w, h in boxes)
    fills = page.evaluate("[...document.querySelectorAll('.memory-chart path')].map(p => getComputedStyle(p).fill)")
    assert len(set(fills)) == len(fills) and "none" not in fills and "rgb(0, 0, 0)" not in fills
    assert page.evaluate("document.querySelectorAll('.strip rect').length") > 10
    assert "pwned" not in page.title() and HOSTILE in page.inner_text("#lines")
    assert said == []
    page.close()

"""What a notebook shows: small, self-contained HTML in which names are never markup."""

from __future__ import annotations

from html.parser import HTMLParser
from operator import methodcaller

import pytest
from helpers.make_diagnosis import ALL, host_bound, hostile, two_devices, unusable
from helpers.make_trace import TraceBuilder

import gpuprof
from gpuprof.report.notebook import diagnosis_html

ALLOWED = {"div", "style", "h3", "h4", "p", "b", "i", "span", "table", "tr", "td", "code"}


class Page(HTMLParser):
    """The tags, attributes and text of a page; unbalanced tags fail."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self.words += data


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_pages_hold_only_what_we_wrote(make):
    html = diagnosis_html(make())
    page = Page(html)
    assert page.tags <= ALLOWED
    assert page.attributes <= {"class", "style", "title", "role", "aria-label"}
    assert len(html) < 40_000
    assert "http" not in html, "nothing is fetched"
    assert all(char.isprintable() or char == "\n" for char in html)


def test_names_are_text():
    page = Page(diagnosis_html(hostile()))
    assert r"\x1b[31m[bold red]\x07\u202ekernel\u200b<script>alert('x')</script>&\ud800" in page.words


def test_the_verdict_and_its_reasons():
    words = Page(diagnosis_html(host_bound())).words
    for text in (
        "HOST-BOUND · launch",
        "168 ms a step",
        "idle: launch 73 %",
        "MulBackward0",
        "MulFunctor, bf16",
    ):
        assert text in words


def test_devices_and_problems():
    assert "GPU 1, idle 10 %" in Page(diagnosis_html(two_devices())).words
    assert "no kernel" in Page(diagnosis_html(unusable())).words


in_notebook = methodcaller("_repr_html_")
"""What a notebook shows for the value at the end of a cell."""


def test_notebooks_find_both(tmp_path):
    builder = TraceBuilder()
    for i in range(3):
        at = i * 10_000_000
        builder.step(i, at, at + 10_000_000)
        builder.launch("kernel<\x1b>", (at + 1_000, at + 5_000), (at + 9_000, at + 6_000_000))
    path = builder.write(tmp_path / "<b>.json")
    trace = gpuprof.load(path)
    page = Page(in_notebook(trace))
    assert "<b>.json" in page.words and "3 GPU events" in page.words
    page = Page(in_notebook(gpuprof.diagnose(trace)))
    assert "10 ms a step" in page.words

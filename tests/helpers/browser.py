"""Reports in a real browser: what the tests of the page share. A module takes it as a plugin: `pytest_plugins`.

PYTEST_DONT_REWRITE: a module imports it before it is a plugin.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

import gpuprof
from helpers.paths import ROOT
from helpers.unpack import Event, events, of_page

WIDTH, HEIGHT = 1280, 900
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))

T = TypeVar("T")


@dataclass
class Report:
    """A diagnosis, the page that was written of it, and what that page carries."""

    diagnosis: Any
    path: Path

    @cached_property
    def _unpacked(self) -> tuple[dict[str, Any], dict[str, list[int]]]:
        return of_page(self.path.read_text(encoding="utf-8"))

    @property
    def header(self) -> dict[str, Any]:
        return self._unpacked[0]

    @property
    def columns(self) -> dict[str, list[int]]:
        return self._unpacked[1]

    @cached_property
    def events(self) -> list[Event]:
        return events(*self._unpacked)


@dataclass
class Visit:
    """An open page, and all that it asked for or complained of."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ready(self) -> Visit:
        self.page.wait_for_selector("html[data-ready=yes]")
        return self

    def drawn(self) -> Visit:
        """Ready, and its charts too."""
        self.ready().page.wait_for_selector("html[data-charts=drawn]")
        return self

    def timeline(self, call: str) -> Any:
        """What a hook of the timeline says, `view()` say."""
        return self.page.evaluate(f"() => window.gpuprofTimeline.{call}")

    @property
    def view(self) -> tuple[float, float]:
        """The range of time in view, ns."""
        seen = self.timeline("view()")
        return seen["start"], seen["end"]


Open = Callable[..., contextlib.AbstractContextManager[Visit]]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Of one module, not of the session: while it is there nobody else in this process may start one."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium to open a report in")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visit(chromium) -> Open:
    """Opens a report, from its file, in a browser of its own; nothing glides unless asked for."""

    @contextlib.contextmanager
    def opened(report: Report | Path, **options: Any) -> Iterator[Visit]:
        path = report if isinstance(report, Path) else report.path
        options = {"viewport": {"width": WIDTH, "height": HEIGHT}, "reduced_motion": "reduce", **options}
        context = chromium.new_context(**options)
        context.set_default_timeout(10_000)
        seen = Visit(context.new_page())
        listen(seen)
        seen.page.goto(path.as_uri())
        try:
            yield seen
        finally:
            context.close()

    return opened


def listen(seen: Visit) -> None:
    page, said = seen.page, seen.complaints

    def dialog(shown) -> None:
        said.append(f"dialog: {shown.message}")
        shown.dismiss()

    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", dialog)
    page.on("popup", lambda other: said.append(f"popup: {other.url}"))
    page.on("crash", lambda: said.append("crash"))


def write(diagnosis: Any, path: Path) -> Report:
    gpuprof.write_report(diagnosis, path)
    return Report(diagnosis, path)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Report:
    """Of a bare trace, with findings that have places in it."""
    return write(gpuprof.diagnose(DEMO), tmp_path_factory.mktemp("demo") / "demo.html")


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Report:
    """Of the folder of a run."""
    return write(gpuprof.diagnose(RUN), tmp_path_factory.mktemp("run") / "run.html")


def told(ns: float) -> str:
    """A duration as the views tell it: three digits, the unit that needs no zeros."""
    scale, unit = next(((s, u) for s, u in UNITS if ns >= s * 0.9995), UNITS[-1])
    value = ns / scale
    if value == int(value) and value < 1000:
        return f"{value:.0f} {unit}"
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def until(asked: Callable[[], T], holds: Callable[[T], Any], seconds: float = 5, or_else: bool = False) -> T:
    """What is asked, once it holds: the page's policy lets no test wait inside of it. `or_else`: or once it is late."""
    deadline = time.monotonic() + seconds
    while True:
        found = asked()
        if holds(found):
            return found
        if time.monotonic() > deadline:
            assert or_else, str(found)[:300]
            return found
        time.sleep(0.02)


def words(text: str) -> str:
    """Text with its white space as one space each."""
    return re.sub(r"\s+", " ", text).strip()

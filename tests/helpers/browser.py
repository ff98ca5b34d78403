"""Reports in a real browser, started once per process. A test module takes this as a plugin: `pytest_plugins`.

PYTEST_DONT_REWRITE: a module imports it before it is a plugin.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
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
from helpers.diagnosed import diagnosed
from helpers.once import once
from helpers.paths import ROOT
from helpers.unpack import Event, events, of_page

WIDTH, HEIGHT = 1280, 900
DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"
IDLE_AT_ONCE = "window.requestIdleCallback = then => setTimeout(then, 0)"
"""Charts are drawn when the browser has nothing else to do, which it notices late: half of the time until all are."""
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))

T = TypeVar("T")


@dataclass
class Report:
    """A diagnosis, its page, and the data in that page."""

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
    """An open page, with its requests and errors."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ready(self) -> Visit:
        self.page.wait_for_selector("html[data-ready=yes]")
        return self

    def drawn(self) -> Visit:
        """Waits until the page and its charts are drawn."""
        self.ready().page.wait_for_selector("html[data-charts=drawn]")
        return self

    def timeline(self, call: str) -> Any:
        """The result of one of the timeline's hooks, such as `view()`."""
        return self.page.evaluate(f"() => window.gpuprofTimeline.{call}")

    @property
    def view(self) -> tuple[float, float]:
        """The range of time in view, ns."""
        seen = self.timeline("view()")
        return seen["start"], seen["end"]


Open = Callable[..., contextlib.AbstractContextManager[Visit]]


# -- Chromium, and an event loop that would be in the way

_loop: asyncio.AbstractEventLoop | None = None
"""Playwright's, between the tests that use it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Shows Playwright's event loop to the tests of the browser only.

    From the first call of the synchronous API on, this thread has a running loop; other tests must find none, or
    `asyncio.run` and a second Playwright would fail in them.
    """
    if "helpers.browser" not in getattr(getattr(item, "module", None), "pytest_plugins", ()):
        return (yield)
    global _loop
    asyncio._set_running_loop(_loop)
    try:
        return (yield)
    finally:
        _loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium to open a report in")
    playwright = sync_api.sync_playwright().start()
    loop = asyncio._get_running_loop()
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
    yield browser
    asyncio._set_running_loop(loop)  # the last test of all may be one without a browser
    browser.close()
    playwright.stop()


# -- tabs


class Tabs:
    """Reused tabs: a new one costs two processes. Each has its own context, and so its own window: a page behind
    another tab is rarely drawn."""

    def __init__(self, chromium: Any, scripts: bool) -> None:
        self._chromium, self._scripts = chromium, scripts
        self._free: list[Tab] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[Tab]:
        """A tab with nothing in it; one whose test has failed is not used again."""
        tab = self._free.pop() if self._free else self._new()
        try:
            yield tab
        except BaseException:
            tab.page.context.close()
            raise
        tab.empty()
        self._free.append(tab)

    def _new(self) -> Tab:
        context = self._chromium.new_context(java_script_enabled=self._scripts)
        context.add_init_script(IDLE_AT_ONCE)
        return Tab(context.new_page())


class Tab:
    """A page of the browser, and its current visit."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.visit = Visit(page)
        page.set_default_timeout(10_000)
        page.on("request", lambda request: self.visit.requests.append(request.url))
        page.on("console", lambda message: message.type in ("error", "warning") and self._complain(message.text))
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("dialog", self._dismiss)
        page.on("popup", lambda other: self._complain(f"popup: {other.url}"))
        page.on("crash", lambda: self._complain("crash"))

    def _complain(self, text: str) -> None:
        self.visit.complaints.append(text)

    def _dismiss(self, dialog: Any) -> None:
        self._complain(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, url: str, viewport: dict[str, int], **media: str) -> Visit:
        self.page.set_viewport_size(viewport)
        self.page.emulate_media(media="screen", **media)
        self.visit = Visit(self.page)
        self.page.goto(url)
        return self.visit

    def empty(self) -> None:
        """Forgets what the page stored and was allowed, and leaves it."""
        self.page.context.clear_permissions()
        self.page.evaluate("() => localStorage.clear()")
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)


@pytest.fixture(scope="session")
def visit(chromium) -> Open:
    """Opens a report from its file in its own tab, without animations unless requested."""
    tabs = {scripts: Tabs(chromium, scripts) for scripts in (True, False)}

    @contextlib.contextmanager
    def opened(
        report: Report | Path, *, scripts: bool = True, width: int = WIDTH, color_scheme: str = "light",
        reduced_motion: str = "reduce",
    ) -> Iterator[Visit]:  # fmt: skip
        path = report if isinstance(report, Path) else report.path
        with tabs[scripts].one() as tab:
            size = {"width": width, "height": HEIGHT}
            yield tab.open(path.as_uri(), size, color_scheme=color_scheme, reduced_motion=reduced_motion)

    return opened


# -- reports


def write(diagnosis: Any, path: Path) -> Report:
    gpuprof.write_report(diagnosis, path)
    return Report(diagnosis, path)


def written_once(tmp_path_factory: pytest.TempPathFactory, name: str, diagnose: Callable[[Path], Any]) -> Report:
    """The report of what `diagnose(folder)` returns, the same in every worker."""

    def make(folder: Path) -> None:
        report = write(diagnose(folder), folder / "page.html")
        (folder / "diagnosis.pickle").write_bytes(pickle.dumps(report.diagnosis))

    folder = once(tmp_path_factory, f"report-{name}", make)
    return Report(pickle.loads((folder / "diagnosis.pickle").read_bytes()), folder / "page.html")


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Report:
    """The report of a bare trace, with findings that have places in it."""
    return written_once(tmp_path_factory, "demo", lambda _: diagnosed(DEMO))


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Report:
    """The report of a run's folder."""
    return written_once(tmp_path_factory, "run", lambda _: diagnosed(RUN))


def shown_time(ns: float) -> str:
    """A duration as the views show it: three digits, the unit that needs no zeros."""
    scale, unit = next(((s, u) for s, u in UNITS if ns >= s * 0.9995), UNITS[-1])
    value = ns / scale
    if value == int(value) and value < 1000:
        return f"{value:.0f} {unit}"
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def until(asked: Callable[[], T], holds: Callable[[T], Any], seconds: float = 5, or_else: bool = False) -> T:
    """Waits until a question to the page has a truthy answer, and returns it: the page's policy forbids waiting inside
    the page. `or_else`: returned on timeout."""
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

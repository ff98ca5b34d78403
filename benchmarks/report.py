"""How fast a large report opens and moves in Chromium, compared with its targets.

    python -m benchmarks.report                  # a million events on the timeline; exit 1 if a bar is missed
    python -m benchmarks.report --more 3e6       # and one of three million, which shows whole steps and says so

Opening counts from the start of the navigation to the first frame that shows the timeline, in a new browser context
each time. A frame is what lies between two of the browser's animation frames while every one of them gets a wheel event
that moves the view: script, drawing, layout and handing over; the browser's own limit of 60 a second is lifted, or no
frame would ever seem shorter. Figures are medians over the repeats: what else a machine does makes frames longer, never
shorter. Needs Chromium, and playwright (extra `dev`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuprof
from benchmarks.generate import generate
from benchmarks.load import processor

BYTES_PER_EVENT = 415
"""Bytes of a generated trace per event that a timeline shows (arrows and the like are not counted)."""
OPEN_S, FRAME_MS, SLOW_FRAME_MS, FILE_MB = 1.5, 16.0, 33.0, 12.0
"""Targets: a page opens before a reader loses patience; 60 and 30 frames a second; a file small enough for mail."""
FRAMES = 200
SETTLING = 10
"""Frames at the start of a movement that are not counted: code that runs for the first time."""
SCENES = {"nearly all": 0.8, "a step": None, "kernels": 2e-5}
"""What is seen while the view moves, as a share of the recording; None: one step."""
WINDOW, LARGE_WINDOW = (1280, 900), (2560, 1300)
FLAGS = ("--no-sandbox", "--disable-gpu")
UNLIMITED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
"""For frames alone: opening takes longer with them, since the browser then draws all the time."""

SHOWN = """
new MutationObserver(() => {
  if (document.documentElement?.dataset.ready !== "yes" || window.shownAt !== undefined) return;
  window.shownAt = null;
  requestAnimationFrame(() => requestAnimationFrame(() => { window.shownAt = performance.now(); }));
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] });
"""
MOVE = """
([start, end, kind, frames]) => new Promise((done) => {
  const timeline = window.gpuprofTimeline;
  const canvas = document.querySelector(".tl-tracks");
  canvas.focus({ preventScroll: true });
  timeline.setView(start, end);
  const box = canvas.getBoundingClientRect();
  const times = [];
  let still = 0;
  const frame = () => {
    times.push(performance.now());
    if (times.length > frames) return done([times.slice(1).map((t, i) => t - times[i]), still]);
    const there = Math.floor(times.length / 20) % 2 === 0 ? 1 : -1;
    const turn = kind === "pan" ? { shiftKey: true, deltaX: 5 * there } : { ctrlKey: true, deltaY: -5 * there };
    const before = timeline.view();
    canvas.dispatchEvent(new WheelEvent("wheel", {
      bubbles: true, cancelable: true, clientX: box.left + box.width / 2, clientY: box.top + 100, ...turn,
    }));
    const now = timeline.view();
    if (now.start === before.start && now.end === before.end) still++;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})
"""
COLOURS = """
() => {
  const canvas = document.querySelector(".tl-tracks");
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels).size;
}
"""
BLANK = 20
"""Colours of a timeline that shows nothing: grounds, lines and names of tracks have fewer."""


@dataclass(frozen=True, slots=True)
class Written:
    """A report."""

    path: Path
    diagnose_s: float
    report_s: float
    step_ns: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Frames of one movement, in ms."""

    name: str
    median: float
    p95: float


def written(folder: Path, events: float) -> Written:
    """A generated trace of about this many events on the timeline, diagnosed, and its report."""
    trace = folder / "trace.json"
    generate(trace, int(events * BYTES_PER_EVENT))
    begin = time.perf_counter()
    diagnosis = gpuprof.diagnose(trace)
    diagnosed = time.perf_counter()
    path = folder / f"{events:.0f}.html"
    gpuprof.write_report(diagnosis, path)
    done = time.perf_counter()
    trace.unlink()
    assert diagnosis.steps is not None
    return Written(path, diagnosed - begin, done - diagnosed, diagnosis.steps.recorded_ns)


def opened(browser: Any, path: Path, size: tuple[int, int]) -> tuple[Any, float]:
    """A page in a context of its own, and the seconds until it was seen."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(SHOWN)
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-ready=yes]")
    while page.evaluate("window.shownAt ?? null") is None:
        page.wait_for_timeout(10)
    return page, page.evaluate("window.shownAt") / 1e3


def moves(page: Any, step_ns: int) -> list[Moved]:
    """Every scene, panned and zoomed."""
    page.wait_for_selector("html[data-charts=drawn]")
    page.locator(".tl-tracks").scroll_into_view_if_needed()
    page.evaluate("window.gpuprofTimeline.setView(-1e15, 1e15)")
    whole = page.evaluate("window.gpuprofTimeline.view()")
    length = whole["end"] - whole["start"]
    middle = whole["start"] + length / 2
    found = []
    for scene, share in SCENES.items():
        half = (length * share if share is not None else step_ns) / 2
        for kind in ("pan", "zoom"):
            times, still = page.evaluate(MOVE, [middle - half, middle + half, kind, FRAMES + SETTLING])
            assert still == 0, f"{kind}, {scene}: the view did not move in {still} frames"
            some = times[SETTLING:]
            found.append(Moved(f"{kind}, {scene}", statistics.median(some), statistics.quantiles(some, n=20)[-1]))
        assert page.evaluate(COLOURS) > BLANK, f"{scene}: the timeline is blank"
    return found


def typical(repeated: Sequence[Sequence[Moved]]) -> list[Moved]:
    """Of each movement the medians over its repeats."""
    return [
        Moved(same[0].name, statistics.median(m.median for m in same), statistics.median(m.p95 for m in same))
        for same in zip(*repeated, strict=True)
    ]


def judged(rows: Sequence[tuple[str, float, float | None, str]]) -> bool:
    """Prints (what, value, bar, unit) as a table; whether all are within their bars."""
    print("| | measured | bar |\n|---|---:|---:|")
    for what, value, bar, unit in rows:
        limit = "" if bar is None else f"< {bar:g} {unit}" + (" **missed**" if value >= bar else "")
        print(f"| {what} | {value:.3g} {unit} | {limit} |")
    return all(bar is None or value < bar for _, value, bar, _ in rows)


def openings(browser: Any, report: Written, repeats: int) -> list[float]:
    """Seconds until the report was seen, each in a context of its own."""
    found = []
    for _ in range(repeats):
        page, seconds = opened(browser, report.path, WINDOW)
        found.append(seconds)
        page.context.close()
    return found


def movements(browser: Any, report: Written, repeats: int, size: tuple[int, int]) -> tuple[list[Moved], int, str]:
    """The movements in a window of a size; how many events the timeline has, and what it says of them."""
    each, events, note = [], 0, ""
    for _ in range(repeats):
        page, _ = opened(browser, report.path, size)
        each.append(moves(page, report.step_ns))
        events = page.evaluate("window.gpuprofTimeline.events")
        note = page.locator("#timeline .about").inner_text()
        page.context.close()
    return typical(each), events, note


def measured(chromium: Any, report: Written, repeats: int) -> bool:
    """One report, opened and moved several times; whether it is as fast as it should be."""
    usual = chromium(())
    opens = openings(usual, report, repeats)
    usual.close()
    unlimited = chromium(UNLIMITED)
    small, events, note = movements(unlimited, report, repeats, WINDOW)
    large, *_ = movements(unlimited, report, repeats, LARGE_WINDOW)
    unlimited.close()
    print(f"\n**{events:,} events on the timeline.** {note}\n")
    rows: list[tuple[str, float, float | None, str]] = [
        ("gpuprof.diagnose", report.diagnose_s, None, "s"),
        ("gpuprof.write_report", report.report_s, None, "s"),
        ("the file", report.path.stat().st_size / 1e6, FILE_MB, "MB"),
        ("opens, median", statistics.median(opens), OPEN_S, "s"),
        ("opens, worst", max(opens), None, "s"),
    ]
    for size, each in ((WINDOW, small), (LARGE_WINDOW, large)):
        where = f" ({size[0]} × {size[1]})"
        for m in each:
            rows.append((f"{m.name}{where}: median frame", m.median, FRAME_MS if size == WINDOW else None, "ms"))
            rows.append((f"{m.name}{where}: 95 % of frames", m.p95, SLOW_FRAME_MS if size == WINDOW else None, "ms"))
    return judged(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=float, default=1e6, help="approximate number that the timeline shows (1e6)")
    parser.add_argument("--more", type=float, help="also a recording of this many, of which it shows a part")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("this needs playwright: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("this needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        reports = [written(Path(folder), events) for events in (options.events, options.more) if events]

        def launched(flags: Sequence[str]) -> Any:
            return p.chromium.launch(executable_path=chromium, args=[*FLAGS, *flags])

        print(f"{os.cpu_count()} cores, {processor()}, load {os.getloadavg()[0]:.1f} before")
        good = [measured(launched, report, options.repeats) for report in reports]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

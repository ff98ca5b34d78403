"""Screenshots of the pages that people open, at three widths, light and dark: to be looked at before a release.

    python -m benchmarks.screenshots FOLDER                          # eight pages, 48 pictures
    python -m benchmarks.screenshots FOLDER --pages demo --widths 390 --themes dark
    python -m benchmarks.screenshots FOLDER --slices 1400            # long pages in pieces that can be read

Each picture is a page from top to bottom, `demo.390.dark.png`, and the pages that they are of lie next to them. The
pages are made of recordings of this repository, and of two small runs that are recorded on the spot: a training on the
CPU, and one that generates what it trains on. Needs Chromium, and playwright and torch (extras `dev`, `trace`).
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuprof

ROOT = Path(__file__).parents[1]
SCENARIOS, DATA = ROOT / "scenarios", ROOT / "tests" / "data"
WIDTHS, THEMES, HEIGHT = (390, 1024, 1440), ("light", "dark"), 900

ON_CPU = """
import torch
from torch.utils.data import DataLoader, Dataset

class Prepared(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        sum(k * k for k in range(20_000))
        return torch.randn(128), i % 4

model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters())
for inputs, labels in DataLoader(Prepared(), batch_size=16):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""
GENERATING = """
import time, torch, gpuprof

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(120):
    with gpuprof.phase("generation"), torch.no_grad():
        drawn = torch.randn(64, 256)
        for _ in range(24):
            drawn = model(drawn)
    with gpuprof.phase("reward"):
        time.sleep(0.004)
    with gpuprof.phase("log-probabilities"), torch.no_grad():
        model(drawn)
    model(drawn).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", help="of: " + ", ".join(PAGES))
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--themes", default=",".join(THEMES))
    parser.add_argument("--slices", type=int, metavar="PX", help="cut each picture into pieces of this height, too")
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = given.pages.split(",") if given.pages else list(PAGES)
    for name in names:
        PAGES[name](folder / f"{name}.html")
    too_wide = taken(folder, names, [int(w) for w in given.widths.split(",")], given.themes.split(","), given.slices)
    for line in too_wide:
        print(line)
    return 1 if too_wide else 0


def taken(folder: Path, names: list[str], widths: list[int], themes: list[str], slice_px: int | None) -> list[str]:
    """Takes the pictures; returns a line for each page that scrolls sideways or complains."""
    from playwright.sync_api import sync_playwright

    wrong = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox", "--disable-gpu"])
        for theme in themes:
            page = browser.new_page(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            complaints: list[str] = []
            page.on("console", lambda message, to=complaints: to.append(message.text))
            page.on("pageerror", lambda error, to=complaints: to.append(str(error)))
            for name in names:
                for width in widths:
                    picture = folder / f"{name}.{width}.{theme}.png"
                    wrong += [f"{picture.name}: {line}" for line in _picture(page, folder, name, width, picture)]
                    wrong += [f"{picture.name}: {line}" for line in complaints]
                    complaints.clear()
                    if slice_px:
                        _cut(picture, slice_px)
            page.close()
        browser.close()
    return wrong


def _picture(page: Any, folder: Path, name: str, width: int, picture: Path) -> list[str]:
    page.set_viewport_size({"width": width, "height": HEIGHT})
    page.goto((folder / f"{name}.html").as_uri())
    if page.locator("script#data, script#plotly").count():
        page.wait_for_selector("html[data-ready=yes]")
    # Charts are drawn when they come into view.
    for top in range(0, page.evaluate("document.documentElement.scrollHeight"), HEIGHT):
        page.evaluate(f"window.scrollTo(0, {top})")
        page.wait_for_timeout(60)
    if page.locator("script#plotly").count():
        page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=picture, full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth")
    return [f"is {wide} px wide in a window of {width} px"] if wide > width else []


def _cut(picture: Path, height: int) -> None:
    from PIL import Image

    with Image.open(picture) as whole:
        for number, top in enumerate(range(0, whole.height, height)):
            box = (0, top, whole.width, min(top + height, whole.height))
            whole.crop(box).save(picture.with_suffix(f".{number}.png"))


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        sys.exit("no Chromium to take pictures with")
    return found


def _report(recording: Path) -> Callable[[Path], None]:
    return lambda path: gpuprof.write_report(gpuprof.diagnose(recording), path)


def _demo(path: Path) -> None:
    _gpuprof("demo", cwd=path.parent)
    (path.parent / "gpuprof-demo.html").replace(path)


def _ranks(path: Path) -> None:
    gpuprof.write_report(gpuprof.diagnose(SCENARIOS / "ddp_scaling" / "recording"), path)


def _comparison(path: Path) -> None:
    pair = [DATA / "pairs" / name for name in ("tiny.json.gz", "tiny.compile.json.gz")]
    gpuprof.write_comparison(gpuprof.compare(*pair), path)


def _memory(path: Path) -> None:
    snapshot = path.with_suffix(".pickle")
    snapshot.write_bytes(gzip.decompress((DATA / "snapshots" / "llama.pickle.gz").read_bytes()))
    path.unlink(missing_ok=True)
    _gpuprof("memory", str(snapshot), "--html", str(path))


def _recorded(program: str) -> Callable[[Path], None]:
    def page(path: Path) -> None:
        folder = path.with_suffix("")
        folder.mkdir(exist_ok=True)
        script, run = folder / "train.py", folder / "run"
        script.write_text(program, encoding="utf-8")
        if not run.exists():
            _gpuprof("trace", "--out", str(run), str(script), cwd=folder)
        gpuprof.write_report(gpuprof.diagnose(run), path)

    return page


def _gpuprof(*arguments: str, cwd: Path = ROOT) -> None:
    subprocess.run([sys.executable, "-m", "gpuprof", *arguments], cwd=cwd, check=True, capture_output=True)


PAGES: dict[str, Callable[[Path], None]] = {
    "demo": _demo,
    "moe": _report(SCENARIOS / "programs" / "moe_lengths" / "recording"),
    "cpu": _recorded(ON_CPU),
    "ranks": _ranks,
    "memory": _memory,
    "comparison": _comparison,
    "rl": _recorded(GENERATING),
    "nsys": _report(DATA / "nsys" / "moe"),
}
"""Name → what writes the page."""


if __name__ == "__main__":
    sys.exit(main())

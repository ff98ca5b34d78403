"""Draws docs/report.png, the README's picture: the first screen of the report of a run that the tests hold.

    python docs/picture.py

Needs Debian's chromium and playwright (extra `dev`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import gpuprof

HERE = Path(__file__).parent
RUN = HERE.parent / "tests" / "data" / "runs" / "trainer_lora"
WIDTH, HEIGHT, SCALE = 1280, 880, 1.5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        page_file = Path(folder) / "report.html"
        gpuprof.write_report(gpuprof.diagnose(RUN), page_file)
        browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.screenshot(path=HERE / "report.png")
        browser.close()


if __name__ == "__main__":
    main()

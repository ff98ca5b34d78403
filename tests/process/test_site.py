"""The site, built from docs/ as CI builds it: no warnings, every page reachable, no dead links, real reports."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from helpers.command import variables
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished

pytestmark = pytest.mark.slow

SHOWN = ("small_batch", "expert_loop", "input_starved")
"""The gallery's scenarios in this test; CI draws all of them."""
_ADDRESS = re.compile(r'(?:href|src)="([^"#]+)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("mkdocs", "material", "mkdocstrings")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = finished(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder], cwd=ROOT, text=True, timeout=280,
        env=variables(GPUPROF_GALLERY=",".join(SHOWN), NO_MKDOCS_2_WARNING="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def addresses(page: Path, own: str) -> set[str]:
    """Paths of the site that a page links to or shows."""
    found = (
        urlsplit(urljoin(f"http://site{own}", url.replace("&amp;", "&"))) for url in _ADDRESS.findall(page.read_text())
    )
    return {url.path for url in found if url.netloc == "site"}


def file_of(site: Path, address: str) -> Path:
    path = site / address.lstrip("/")
    return path / "index.html" if address.endswith("/") else path


def test_every_page_is_reachable_and_no_link_is_dead(site: Path):
    seen: set[str] = set()
    ahead = ["/"]
    while ahead:
        address = ahead.pop()
        if address in seen:
            continue
        seen.add(address)
        path = file_of(site, address)
        assert path.is_file(), f"{address} is linked and does not exist"
        if path.name == "index.html":
            ahead += addresses(path, address)
    pages = {f"/{path.relative_to(site)}".replace("index.html", "") for path in site.rglob("*.html")}
    assert pages - seen == {"/404.html"}
    assert len(seen & pages) > 60, "the findings have a page each"


def test_the_gallery_shows_reports_made_from_recordings(site: Path):
    gallery = (site / "gallery" / "index.html").read_text()
    assert '<iframe class="gp-report" src="small_batch.html"' in gallery
    for name in SHOWN:
        report = (site / "gallery" / f"{name}.html").read_text()
        assert len(report) > 500_000 and f'href="{name}.html"' in gallery
    assert "HOST-BOUND" in gallery and "INPUT-BOUND" in gallery
    assert (site / "gallery" / "expert_loop.comparison.html").is_file()


def test_the_reference_has_signatures_and_docstrings(site: Path):
    text = (site / "api" / "index.html").read_text()
    for name in ("gpuprof.diagnose", "gpuprof.Recorder", "gpuprof.Recorder.step"):
        assert f'id="{name}"' in text
    assert "Why a step of this recording" in text

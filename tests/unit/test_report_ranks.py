"""`gpuprof report` of several ranks: reports of single ranks next to that of all, linked to each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.command import one_line
from helpers.command import run as command
from helpers.rank_program import MS, RankProgram, write

SLOW = 1
PROGRAMS = [RankProgram(), RankProgram(extra_ns=40 * MS), RankProgram(extra_ns=2 * MS), RankProgram(extra_ns=6 * MS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, PROGRAMS)
    return tmp_path


def links(page: Path) -> list[tuple[str, str]]:
    """(text, target without fragment) of the links to other ranks' timelines."""
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<p class="about" id="other-ranks">(.*?)</p>', text)
    return re.findall(r'<a href="([^"#]+)#timeline">([^<]+)</a>', found[1]) if found else []


def test_the_report_links_to_a_usual_rank_and_back(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = command(capsys, "report", folder)
    assert code == 0, err
    assert links(folder / "report.html") == [("report.rank2.html", "rank 2")], "the median of those that are not slow"
    assert links(folder / "report.rank2.html") == [("report.html", "all ranks")]
    assert f"This is rank {SLOW}." in (folder / "report.html").read_text()
    assert "This is rank 2." in (folder / "report.rank2.html").read_text()
    assert [line.rsplit("/", 1)[-1] for line in err.splitlines() if "report" in line] == [
        "report.html",
        "report.rank2.html",
    ]


@pytest.mark.slow
def test_ranks_that_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = command(capsys, "report", folder, "--ranks", "all", "-o", folder / "a page.html")
    assert code == 0, err
    targets = [target for target, _ in links(folder / "a page.html")]
    assert targets == [f"a%20page.rank{rank}.html" for rank in (0, 2, 3)], "the slow one is on the page itself"
    assert all((folder / target.replace("%20", " ")).is_file() for target in targets)
    assert command(capsys, "report", folder)[0] == 0, "which may replace its own reports"


@pytest.mark.parametrize(("ranks", "says"), [("7", "has no rank 7"), ("x", "neither a list of ranks")])
def test_ranks_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str], ranks: str, says: str):
    code, out, err = command(capsys, "report", folder, "--ranks", ranks)
    assert (code, out) == (2, "")
    assert says in one_line(err)
    assert not list(folder.glob("*.html"))


def test_a_file_of_someone_else_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "report.rank2.html").write_text("mine")
    code, _, err = command(capsys, "report", folder)
    assert code == 2
    assert "report.rank2.html exists and is not a report" in one_line(err)
    assert (folder / "report.rank2.html").read_text() == "mine"

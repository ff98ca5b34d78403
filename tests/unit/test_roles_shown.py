"""Roles as a page and as a Perfetto trace: each wait leads to the span that it waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.phase_marks import MS
from helpers.phase_marks import write_marks as run
from helpers.role_runs import diagnosed
from helpers.trace_event_rules import check, nanoseconds, read
from helpers.unpack import events, of_page

from gpuprof.cli import main
from gpuprof.report.page.roles import _bar


@pytest.fixture
def job(tmp_path: Path) -> tuple[str, str]:
    """Generation takes 100 ms, training 40: the trainer waits for 60 of every 100."""
    generator = [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)]
    trainer = [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)]
    return run(tmp_path / "g", generator, 1), run(tmp_path / "t", trainer, 2)


def test_a_wait_on_the_page_leads_to_what_it_is_for(job: tuple[str, str], tmp_path: Path, capsys):
    page = tmp_path / "roles.html"
    assert main(["report", *job, "-o", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert "The generator limits the job" in html and "waits for the generator&#39;s generation" in html
    header, columns = of_page(html)
    assert [group["name"] for group in header["groups"]] == ["generator · p1.py", "trainer · p2.py"]
    found = events(header, columns)
    waits = [one for one in found if header["tracks"][one.track] == header["tracks"][3]]
    assert len(waits) == 10 and all(one.paint == "wait-generation" for one in waits)
    for one in waits:
        its = found[one.link]
        assert header["tracks"][its.track]["group"] == 0 and its.name == "generation"
        assert abs(its.start_ns + its.ns - one.start_ns - one.ns) <= MS  # it ends when the wait does
    trained = sum(one.ns for one in found if one.name == "training")
    assert trained == 10 * 40 * MS


def test_a_page_of_more_than_three_days_has_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The viewer holds times of 48 bits."""
    day = 86_400_000.0
    paths = [run(tmp_path / name, [(phase, 0, day), (phase, 3 * day, 4 * day)], pid)
             for pid, (name, phase) in enumerate((("g", "generation"), ("t", "training")), 1)]  # fmt: skip
    assert main(["report", *paths, "-o", str(tmp_path / "roles.html")]) == 0
    html = (tmp_path / "roles.html").read_text()
    assert "2 processes on one timeline" in html and 'id="data"' not in html


def test_the_bars_of_roles_are_whole(job: tuple[str, str]):
    found = diagnosed(*job)
    for role in found.roles:
        assert sum(part.percent for part in _bar(found, role).parts) == pytest.approx(100)


def test_perfetto_has_an_arrow_to_each_wait(job: tuple[str, str], tmp_path: Path, capsys):
    target = tmp_path / "roles.perfetto.json.gz"
    for _ in range(2):  # an earlier export is replaced
        assert main(["export", "--perfetto", *job, "-o", str(target)]) == 0
    document = read(target)
    check(document)
    names = {one["pid"]: one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"}
    assert names == {1: "generator · p1.py", 2: "trainer · p2.py"}
    arrows = [one for one in document["traceEvents"] if one["ph"] in "sf"]
    assert len(arrows) == 20 and {one["pid"] for one in arrows if one["ph"] == "s"} == {1}
    waits = [one for one in document["traceEvents"] if one.get("cat") == "wait"]
    assert sum(nanoseconds(one["dur"]) for one in waits if one["pid"] == 2) == (999 - 400) * MS


def test_bad_words_are_one_line(job: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.html").write_text("mine")
    for words in (
        ["report", *job, "--ranks", "0"],
        ["report", *job, "-o", str(tmp_path / "mine.html")],
        ["export", "--speedscope", *job],
        ["export", "--perfetto", *job, "-o", str(tmp_path / "mine.html")],
    ):
        assert main(words) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) <= 3
    assert (tmp_path / "mine.html").read_text() == "mine"

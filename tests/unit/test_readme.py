"""README: its figures are those of docs/accuracy.md, and the screen shown is the command's."""

from __future__ import annotations

import re

import pytest
from helpers.command import in_process
from helpers.make_run import RECORDING, UNPROFILED_MS
from helpers.paths import ROOT

from benchmarks import readme_cases, recall_pairs
from benchmarks.recall_page import section, summary

README = (ROOT / "README.md").read_text(encoding="utf-8")
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def row(title: str) -> str:
    """The cell of README's accuracy table in the row that begins so."""
    (found,) = re.findall(rf"^\| {re.escape(title)}[^|]*\| (.*) \|$", README, re.MULTILINE)
    return found


def figures(pattern: str, text: str = ACCURACY) -> tuple[str, ...]:
    """The groups of the only match."""
    (found,) = re.findall(pattern, text)
    return found if isinstance(found, tuple) else (found,)


def rounded(number: str) -> str:
    return f"{float(number):.0f}"


def test_the_replay_and_the_unprofiled_step():
    assert figures(r"replayed step +median ([\d.]+) %, worst ([\d.]+) %") == figures(
        r"([\d.]+) % error, worst ([\d.]+) %", row("replay of the unchanged step")
    )
    worst, held = figures(r"unprofiled step +median 0\.0 %, worst ([\d.]+) %; the interval meets (\d+) %")
    said = row("unprofiled step")
    assert "median inside the measured range" in said
    assert f"worst {rounded(worst)} %" in said and f"{held} % lie in the 80 % interval" in said


def test_verdicts():
    right = [tuple(map(int, pair)) for pair in re.findall(r"^verdicts:? +(\d+) of (\d+) right", ACCURACY, re.MULTILINE)]
    assert len(right) == 2
    assert (row("verdicts") == "all correct") is all(good == count for good, count in right)
    assert sum(count for _, count in right) == int(figures(r"(\d+) recordings on H200s", README)[0])


@pytest.mark.parametrize(
    ("title", "programs"), [("steps, programs that no number", 19), ("fixes, programs that numbers", 41)]
)
def test_fixes(title, programs):
    tested, count = ACCURACY.index(f"predicted steps of {programs} programs"), row(title)
    block = ACCURACY[tested - 60 : ACCURACY.index("```", tested)]
    middle, worst = figures(r"from the middle of what was measured +median ([\d.]+) %, worst ([\d.]+) %", block)
    within = figures(r"0 within what was measured +median ([\d.]+) %", block)[0]
    share, held, steps = figures(r"intervals that hold +(\d+) % \((\d+) of (\d+);", block)
    assert f"median {rounded(middle)} % from the middle" in count
    if programs == 19:
        assert f"worst {rounded(worst)} %" in count and f"{held} of {steps} lie in the 80 % interval" in count
        assert f"({steps} predicted steps of 19 programs)" in README
    else:
        width = figures(r"fixes +\d+ predicted:.* high/low ([\d.]+) at the median")[0]
        assert f"({rounded(within)} % from their range)" in count and f"({steps} timed fixes)" in README
        assert f"{share} % lie in the 80 % interval" in count and f"high/low {width} at the median" in count


def test_the_screen_is_what_the_command_prints():
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    printed = in_process("diagnose", RECORDING, "--step-ms", UNPROFILED_MS, COLUMNS="80").stdout
    assert printed.replace("\N{NO-BREAK SPACE}", " ").startswith(shown)


def test_recall():
    """Only pairs with the role `test`; the section of docs/accuracy.md is that of the stored pairs."""
    assert section(recall_pairs.kept()) in ACCURACY
    found = summary([pair for pair in recall_pairs.kept() if pair.role == "test"])
    said = row("fixes that gain 10 % or more")
    shown, first = found["shown"], found["in the first three"]
    gained, lost = found["Fixes that gained"], found["Fixes that failed or lost"]
    assert f"{shown.hits} of {shown.of} are shown, {first.hits} among the first three" in said
    assert f"{gained.hits} of {gained.of} *Fixes* gained, {lost.hits} lost" in said
    first_contact = [pair for pair in recall_pairs.kept(recall_pairs.FIRST_CONTACT) if pair.role == "test"]
    met = summary(first_contact)
    shown, first, held = met["shown"], met["in the first three"], met["gain in the interval"]
    programs = len({pair.program for pair in first_contact})
    assert (
        f"Of {programs} programs before their truth was known: {shown.hits} of {shown.of} shown, {first.hits} among"
        f" the first three, {held.hits} of {held.of} gains in the interval"
    ) in said


def test_published_fixes():
    """Where docs/cases.md has changed: python -m benchmarks.readme_cases."""
    page = readme_cases.PAGE.read_text(encoding="utf-8")
    assert readme_cases.row(page) in README.splitlines()

"""What docs/alternatives.md and README say of accuracy in a few words is what the pages with the figures say."""

from __future__ import annotations

import re

import pytest
from helpers.paths import ROOT

DOCS = ROOT / "docs"


def text(path: str) -> str:
    """A page on one line."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def first_contact(row: str) -> str:
    """`12 of 14` of a row of the first table in docs/other_programs.md."""
    found = re.search(rf"^{row} +(\d+ of \d+)$", (DOCS / "other_programs.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, row
    return found[1]


@pytest.mark.parametrize("page", ["docs/alternatives.md", "README.md"])
def test_verdicts_on_first_contact_and_in_sample(page: str):
    said = text(page)
    assert f"{first_contact('verdicts right')} verdicts were right" in said
    right = re.findall(r"^verdicts:? +(\d+) of (\d+) right", (DOCS / "accuracy.md").read_text(), re.MULTILINE)
    assert len(right) == 2
    assert all(good == count for good, count in right), f"{page} says that all verdicts in sample are right"
    assert "in-sample" in said


def test_steps_and_fixes_on_first_contact():
    said = text("docs/alternatives.md")
    assert f"{first_contact('mean steps within 10 %')} mean steps were within 10 %" in said
    assert f"{first_contact('fixes in their 80 % intervals')} fixes within their 80 % interval" in said


@pytest.mark.parametrize("page", ["docs/alternatives.md", "README.md"])
def test_published_ratios(page: str):
    section = (DOCS / "gpus.md").read_text(encoding="utf-8").split("### The same findings")[0]
    assert re.findall(r"^- .*: \*\*(.+?)\*\*", section, re.MULTILINE) == ["missed by all"] * 4
    assert "miss all four ratios of a" in text(page)

"""What the terminal says first of every recorded scenario: on any width the first fifteen lines answer."""

from __future__ import annotations

import re

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from rich.cells import cell_len

from gpuprof.report.code_lines import without_alternatives, without_comments
from gpuprof.report.terminal import ANSWER_LINES, plain

RECORDINGS = sorted(path.parent.name for path in (ROOT / "scenarios").glob("*/recording"))
CLOSING = re.compile(r"^  (reach|trust|next|more) ", re.M)
"""Where the answer is over: what lies above the reach, how sure it is, and what to type."""
WARNINGS = re.compile(r"(?s)(  fixes .*?)\n\n  quality .*")
"""Those for which there was no room above the fixes."""
FIX = re.compile(r"^(?:  fixes      |             )(\d)  (\S.*)", re.M)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_first_fifteen_lines_answer(name):
    diagnosis = diagnosed(ROOT / "scenarios" / name / "recording")
    for width in (60, 80, 100):
        text = plain(diagnosis, width, verbose=False)
        assert all(cell_len(line) <= width for line in text.splitlines())
        answer = text[: found.start()] if (found := CLOSING.search(text)) else text
        lines = WARNINGS.sub(r"\1", answer).rstrip().splitlines()
        assert len(lines) <= ANSWER_LINES, f"{width} columns:\n{answer}"
        assert "compute" in answer, "the step as a bar, with its legend"
        shown = [int(number) for number, _ in FIX.findall(answer)]
        assert shown == list(range(1, len(shown) + 1)) and bool(shown) == bool(diagnosis.findings)
        for number in shown:
            words = set(re.findall(r"\w+", without_alternatives(without_comments(diagnosis.findings[number - 1].fix))))
            assert words <= set(re.findall(r"\w+", answer)), f"{width} columns, fix {number}:\n{answer}"

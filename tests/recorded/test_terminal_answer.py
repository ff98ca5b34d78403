"""The first lines that the terminal shows for every recorded scenario: at any width they answer, with one step time."""

from __future__ import annotations

import re

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.quick import OF_EACH_KIND, few
from rich.cells import cell_len

from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.report.code_lines import without_alternatives, without_comments
from gpuprof.report.page import content, step_bars
from gpuprof.report.terminal.terminal import ANSWER_LINES, plain

RECORDINGS = few(sorted(path.parent.name for path in (ROOT / "scenarios").glob("*/recording")), OF_EACH_KIND)
CLOSING = re.compile(r"^  (reach|trust|next|more) ", re.M)
"""Where the answer ends: what lies above the reach, how sure it is, and what to type."""
WARNINGS = re.compile(r"(?s)(  fixes .*?)\n\n  quality .*")
"""The warnings that had no room above the fixes."""
FIX = re.compile(r"^(?:  fixes      |             )(\d)  (\S.*)", re.M)
IN_BRIEF = re.compile(r"-v shows the code of (\d(?:, \d)*(?: and \d)?)")
"""Numbers of the fixes that are shown with title and gain only."""


def kept(finding: Finding) -> str:
    """What the shortest answer shows of a fix."""
    return " ".join(one.text for one in without_alternatives(without_comments(finding.shown_lines)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_first_lines_answer(name):
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
        brief = found[1] if (found := IN_BRIEF.search(answer)) else ""
        written = [number for number in shown if str(number) not in re.findall(r"\d", brief)]
        assert written[:1] == shown[:1], "the first is written out"
        for number in written:
            words = set(re.findall(r"\w+", kept(diagnosis.findings[number - 1])))
            assert words <= set(re.findall(r"\w+", answer)), f"{width} columns, fix {number}:\n{answer}"


_STEP = re.compile(r"([\d.,]+ (?:s|ms|µs)) an? (?:step|iteration|request|token)\b(?! more)")
_USUAL = re.compile(r"usually ([\d.,]+ (?:s|ms|µs))")
_GAIN = re.compile(
    r"([\d.,]+) (s|ms|µs) → ([\d.,]+)(?: (s|ms|µs))?(?: ?– ?([\d.,]+))? (s|ms|µs)(?: for ([\d.]+)× the work)?"
    r"\s+([\d.,]+)(?:–([\d.,]+))?×"
)
_NS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "": 0.0}


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("name", RECORDINGS)
def test_one_step_time_and_gains_that_agree_with_it(name):
    """The headline's step is the only one; one line says how the usual step differs; ms and × agree; a fix that another
    line refers to has its number."""
    diagnosis = diagnosed(ROOT / "scenarios" / name / "recording")
    text = plain(diagnosis, 160, verbose=False)
    step, *others = _STEP.findall(text)
    assert not others, f"{others} next to {step}"
    assert len(_USUAL.findall(text)) <= 1
    gains = _GAIN.findall(text)
    assert len(gains) >= min(len(diagnosis.findings), 1)
    for now, unit, low, low_unit, high, then_unit, work, least, most in gains:
        assert f"{now} {unit}" == step
        now_ns = number(now) * _NS[unit] * (float(work) if work else 1.0)
        fast, slow = number(low) * _NS[low_unit or then_unit], number(high or low) * _NS[then_unit]
        for after_ns, times in ((slow, number(least)), (fast, number(most or least))):
            assert now_ns / after_ns == pytest.approx(times, rel=0.08), "as far as two digits say"
    for together in re.findall(r"^ {13}(\d(?: \+ \d)+) together", text, re.M):
        for one in together.split(" + "):
            assert re.search(rf"(?:  |^){one}(?:  |: )\S", text, re.M), f"what fix {one} is"


@pytest.mark.parametrize("width", (40, 80, 120))
@pytest.mark.parametrize("name", RECORDINGS)
def test_code_of_fixes_is_whole_at_any_width(name, width):
    """None of it is cut, no string or name that fits is broken, and prose is on separate lines."""
    diagnosis = diagnosed(ROOT / "scenarios" / name / "recording")
    lines = plain(diagnosis, width, verbose=True).splitlines()
    text = re.sub(r"\s|#", "", "".join(lines))
    for finding in (*diagnosis.findings, *diagnosis.worth_trying):
        assert finding.fix_lines
        for one in finding.fix_lines:
            if not one.code:
                continue
            assert re.sub(r"\s|#", "", one.text) in text, one.text
            for literal in re.findall(r'"[^"]*"', one.text.split("  #")[0]):
                assert any(literal in line for line in lines), literal
            for name in re.findall(r"[A-Za-z_]\w*", one.text.split("  #")[0]):
                assert any(name in line for line in lines) or len(name) + len("    1  ") >= width, name


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_amount_is_broken_across_lines(name):
    diagnosis = diagnosed(ROOT / "scenarios" / name / "recording")
    for width in (40, 60, 80, 100):
        text = plain(diagnosis, width, verbose=False)
        assert not re.search(r"\d\n +(?:ns|µs|ms|s|%|×|[MG]iB)(?!\w)", text), f"{width} columns:\n{text}"


_WORKS = re.compile(r"GPU works ([<>]?\d+ %) of the (?:step|iteration)\b")
_PADDING = re.compile(r"(?:padding, )?(\d+ %) (?:padding|of the tokens are padding|of the tokens \()")


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_is_said_in_two_places_is_the_same_text(name):
    """One number, one rounding: terminal and page, sentences, bars, tiles and evidence."""
    diagnosis = diagnosed(ROOT / "scenarios" / name / "recording")
    text = " ".join(plain(diagnosis, 160, verbose=True).split())
    tiles = {tile.label.split(",")[0]: tile.value for tile in content.tiles(diagnosis)}
    assert f"confidence {tiles['confidence in the verdict']}" in text
    step = next((value for label, value in tiles.items() if label in ("a step", "an iteration")), "")
    assert {step.removeprefix("≈ ")} == set(_STEP.findall(text)[:1])
    assert set(_WORKS.findall(text)) <= {tiles["GPU busy"]}
    if len(bars := step_bars.step_bars(diagnosis)) == 1:
        legend = text[text.index(" step █") :]
        for part in bars[0].parts:
            said = re.search(rf"[^\w ] {re.escape(part.label)} ([<>]?\d+ %)", legend) if part.named else None
            assert said is None or part.text.endswith(f", {said[1]}"), part
    evidence = " ".join(one.text for finding in diagnosis.findings for one in finding.evidence)
    assert len(set(_PADDING.findall(f"{text} {evidence}"))) <= 1
    assert not re.search(r"\d{2,}\.\d+ (?:ms|µs)\b", f"{text} {evidence}"), "two or three digits, everywhere"

"""The calibration table: every number says where it comes from, code and prose take it from there, and no recording
reserved for tests was used."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from helpers.finding_pages import PAGES
from helpers.paths import ROOT

from benchmarks import calibrate, fit_or_test, quoted_numbers
from gpuprof.calibration import batch, kernels, latency
from gpuprof.calibration.table import numbers, subjects

NUMBERS = numbers()

BOUNDED = {"allocator.PINNED_RATE": "a share that cannot exceed 1, and at worst 0.7"}
"""Assumed numbers whose interval is narrower than 1.5 times, with the reason."""


def test_a_number_lies_in_its_interval_and_says_what_it_is():
    for name, one in NUMBERS.items():
        assert one.low <= one.value <= one.high and one.low < one.high, name
        assert len(one.what) > 30 and one.what.endswith("."), name
        assert re.fullmatch(r"[a-z]+\.[A-Z][A-Z0-9_]*", name)


def test_a_number_has_what_its_source_asks_for():
    for name, one in NUMBERS.items():
        if one.source == "fitted":
            assert one.recordings and one.command, f"{name}: what is fitted names its recordings and the command"
        if one.source == "assumed" and name not in BOUNDED:
            assert one.low == 0 or one.high / one.low >= 1.5, f"{name} is a guess: it has a wide interval"


@pytest.mark.parametrize("command", sorted({one.command for one in NUMBERS.values() if one.command}))
def test_a_command_of_the_table_exists(command):
    python, option, module, *subject = command.split()
    assert (python, option) == ("python", "-m") and module.startswith("benchmarks.")
    assert importlib.util.find_spec(module) is not None
    if module == "benchmarks.calibrate":
        assert len(subject) == 1 and subject[0] in calibrate.SUBJECTS
        assert any(name.startswith(f"{subject[0]}.") for name, one in NUMBERS.items() if one.command == command)
    else:
        assert not subject


def test_a_recording_of_the_table_exists_and_may_be_fitted_to():
    for place in sorted({place for one in NUMBERS.values() for place in one.recordings}):
        if not place.startswith("shared/"):
            assert (ROOT / place).exists(), place
        assert place in fit_or_test.WHOLE or fit_or_test.role_of(place) == "fit", place


def test_every_recording_has_a_role():
    found = list(fit_or_test.recordings())
    assert len(found) > 60
    assert {fit_or_test.role_of(place) for place in found} <= {"fit", "test"}
    assert fit_or_test.role_of("shared/traces/wild/any/trace.json.gz") == "test"
    with pytest.raises(KeyError, match=r"tests/data/new\.json\.gz has no role"):
        fit_or_test.role_of("tests/data/new.json.gz")


def test_every_scenario_says_its_role_itself():
    for path in ROOT.glob("scenarios/*/scenario.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["role"] in ("fit", "test"), path


def test_a_fitting_command_cannot_read_a_test_recording(tmp_path, monkeypatch):
    """Whichever code opens it, in any way; but only while numbers are fitted."""
    place = tmp_path / "shared" / "traces" / "wild" / "one.json.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    with fit_or_test.only_fit():
        (tmp_path / "other.json").write_text("{}")
        with pytest.raises(fit_or_test.TestRecordingRead, match=r"shared/traces/wild/one\.json\.gz"):
            place.read_bytes()
        with pytest.raises(fit_or_test.TestRecordingRead):
            open(bytes(place), "rb")  # noqa: PTH123, SIM115
    assert place.read_bytes() == b""


def test_a_scenario_that_only_tests_is_not_fitted_to(monkeypatch):
    monkeypatch.setitem(fit_or_test.PLACES, "scenarios/padding", "test")
    fit_or_test.roles.cache_clear()
    try:
        truth = ROOT / "scenarios" / "padding" / "truth.json"
        with fit_or_test.only_fit(), pytest.raises(fit_or_test.TestRecordingRead):
            truth.read_text()
        with fit_or_test.only_fit():
            (ROOT / "scenarios" / "padding" / "scenario.json").read_text()
    finally:
        monkeypatch.undo()
        fit_or_test.roles.cache_clear()


def test_fitting_is_guarded(monkeypatch, capsys):
    """The command refuses whichever subject would read such a recording."""
    truth = ROOT / "scenarios" / "padding" / "truth.json"
    monkeypatch.setitem(fit_or_test.PLACES, "scenarios/padding", "test")
    monkeypatch.setitem(calibrate.SUBJECTS, "noise", lambda: iter([truth.read_text()]))
    monkeypatch.setattr("sys.argv", ["calibrate", "noise"])
    fit_or_test.roles.cache_clear()
    try:
        with pytest.raises(fit_or_test.TestRecordingRead):
            calibrate.main()
    finally:
        monkeypatch.undo()
        fit_or_test.roles.cache_clear()


def test_every_number_is_used():
    """Used somewhere outside the table and prose, under its name in the table."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "gpuprof").rglob("*.py")
        if path.parent.name != "calibration"
    )
    used = set(re.findall(r"calibrated\.(\w+)", re.sub(r'=f"""\n.*?"""', "", code, flags=re.DOTALL)))
    assert [name for name in NUMBERS if name.partition(".")[2] not in used] == []


def test_the_page_is_that_of_the_table():
    """`python -m benchmarks.calibrate --page` writes it again."""
    assert calibrate.PAGE.read_text(encoding="utf-8") == calibrate.page()


def test_the_table_has_all_subjects():
    assert {name.partition(".")[0] for name in NUMBERS} == set(subjects())


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_documents_quote_the_table(path):
    """`python -m benchmarks.quoted_numbers` writes them again."""
    text = path.read_text(encoding="utf-8")
    assert quoted_numbers.filled(text) == text
    assert text.count("](calibration.md#") - text.count('"](calibration.md#') == len(quoted_numbers.LINK.findall(text))


def test_quoted_numbers_are_filled():
    stale = '[9](calibration.md#latency "LAUNCH_NS, low, µs") µs, [0.5](calibration.md#batch "ROUND")'
    low, value = f"{latency.LAUNCH_NS.low / 1000:g}", f"{batch.ROUND.value:g}"
    assert [one[0] for one in quoted_numbers.LINK.findall(quoted_numbers.filled(stale))] == [low, value]
    for unknown in ('[1](calibration.md#latency "NO_NUMBER")', '[1](calibration.md#latency "LAUNCH_NS, furlongs")'):
        with pytest.raises(KeyError):
            quoted_numbers.filled(unknown)
    said = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("diagnosis.md", "projection.md"))
    assert len(quoted_numbers.LINK.findall(said)) > 30


def test_pages_of_findings_quote_the_table():
    """They name its numbers: if a page says how sure it is, the ends of the interval come from the table."""
    gains = {page.id: page.gain for page in PAGES}
    assert f"{kernels.OPTIMIZER_GPU.low:g} to {kernels.OPTIMIZER_GPU.high:g} of their" in gains["optimizer"]
    copied = re.compile(r"\d+(?:\.\d+)?(?: %)?[^().]*\(\d[\d.]* to \d[\d.]*(?: %)?(?:, assumed)?\)")
    findings = ROOT / "gpuprof" / "diagnosis" / "findings"
    typed = {
        path.stem: copied.findall(" ".join(path.read_text(encoding="utf-8").split())) for path in findings.glob("*.py")
    }
    assert {name: found for name, found in typed.items() if found} == {}

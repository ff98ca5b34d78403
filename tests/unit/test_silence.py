"""A stretch without recorded events is unknown, not Python code, and lowers the confidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.paths import SHARED
from helpers.present import present
from helpers.program import MS, Program
from helpers.valid_json import document

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis

HOLE = 30 * MS


def program(hole: int, at: tuple[int, ...], steps: int = 3) -> Program:
    """Steps of 4 ms of launches; in the middle of some, nothing is recorded."""
    made = Program()

    def body():
        for k in range(200):
            if k == 100 and made.steps in at:
                made.python(hole)
            made.small_mm()

    for _ in range(steps):
        made.step(body)
    return made


def diagnosed(made: Program, folder: Path) -> Diagnosis:
    found = gpuprof.diagnose(made.trace.write(folder / "trace.json"))
    document(found)
    return found


def causes(found: Diagnosis) -> dict[str, int]:
    assert found.gaps is not None
    return {one.cause: one.ns for one in found.gaps.by_cause}


@pytest.mark.parametrize(("at", "steps"), [((1,), 3), ((0,), 2), ((0,), 1)])
def test_a_hole_is_unknown(tmp_path, at, steps):
    found = diagnosed(program(HOLE, at, steps), tmp_path)
    assert causes(found)["unknown"] == pytest.approx(HOLE, rel=0.01)
    assert causes(found).get("python", 0) < 1 * MS
    (tmp_path / "whole").mkdir()
    whole = diagnosed(program(0, at, steps), tmp_path / "whole")
    assert present(whole.verdict.confidence) > 0.8
    assert "unknown" not in causes(whole)


def test_it_lowers_the_confidence_and_names_no_cause(tmp_path):
    found = diagnosed(program(HOLE, (0,), 1), tmp_path)
    assert present(found.verdict.confidence) < 0.2
    assert found.verdict.cause is None
    assert any("nothing was recorded for 30" in text for text in found.verdict.doubts)
    assert "Python code" not in found.verdict.summary.split("What leaves it unclear")[0]


def test_what_comes_in_every_step_is_the_programs(tmp_path):
    found = diagnosed(program(HOLE, (0, 1, 2)), tmp_path)
    assert causes(found)["python"] > 2.9 * HOLE
    assert "unknown" not in causes(found)
    assert found.verdict.bound == "host" and found.verdict.cause == "python"
    assert present(found.verdict.confidence) > 0.8


def test_a_short_silence_is_python(tmp_path):
    found = diagnosed(program(1 * MS, (1,)), tmp_path)
    assert causes(found)["python"] >= 1 * MS


def test_a_range_or_a_frame_says_what_is_done(tmp_path):
    for k, kind in enumerate(("range", "frame")):
        made, folder = program(HOLE, (0,), 1), tmp_path / str(k)
        folder.mkdir()
        start, end = 2 * MS, 30 * MS
        if kind == "range":
            made.trace.annotation("save checkpoint", start, end)
        else:
            made.trace.frame("train.py(10): tokenize", start, end)
        assert "unknown" not in causes(diagnosed(made, folder))


@pytest.mark.skipif(not (SHARED / "traces" / "public").exists(), reason="shared traces are absent")
def test_a_public_recording_of_mostly_nothing(tmp_path):
    """Six ops in 20 ms, of which 18 ms hold no event at all."""
    found = gpuprof.diagnose(SHARED / "traces" / "public" / "hta_a100_event_sync_3streams.json.gz")
    assert causes(found)["unknown"] > 15 * MS
    assert present(found.verdict.confidence) < 0.2

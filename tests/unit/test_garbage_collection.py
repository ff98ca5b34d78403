"""Garbage that is collected in every step: found through the recorder's measurements, placed where the CPU recorded
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.make_run import RunBuilder
from helpers.present import present
from helpers.program import MS, US, Program

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict.headline import headline

COLLECTS_MS = 60
WORK = 200


def recorded(folder: Path, collects: list[int], silent_ms: float = COLLECTS_MS) -> Diagnosis:
    """A launch-bound run in which every recorded step has a stretch without events; `collects`: ms of each timed
    step."""
    folder.mkdir(parents=True)
    program = Program()

    def body():
        program.python(round(silent_ms * MS))
        for _ in range(WORK):
            program.small_mm(20 * US)

    for _ in range(3):
        program.step(body, sync=True)
    took = silent_ms + WORK * 20e-3
    run = RunBuilder()
    for ms in collects:
        run.stage("baseline_free", [took], garbage_collection_ns=ms * MS)
    run.rank["stages"] = [run.rank["stages"][0] | {"steps": len(collects), "ns": round(len(collects) * took * MS)}]
    run.stage("trace", [took] * 3, garbage_collection_ns=collects[0] * MS)
    return gpuprof.diagnose(run.write(folder / "run", program.trace.write(folder / "trace.json")))


def test_what_is_collected_in_every_step_is_a_fix(tmp_path: Path):
    found = recorded(tmp_path / "a", [COLLECTS_MS] * 12)
    fix = next(one for one in found.findings if one.id == "garbage_collection")
    assert fix.step_ns.expected == pytest.approx(WORK * 20 * US, rel=0.1)
    assert "60 ms" in fix.evidence[0].text and "gc.collect()" in fix.fix


def test_the_headline_and_the_verdict_name_it(tmp_path: Path):
    found = recorded(tmp_path / "a", [COLLECTS_MS] * 12)
    assert headline(found).startswith("PYTHON'S GARBAGE COLLECTION 9")
    assert (found.verdict.bound, found.verdict.cause, found.verdict.second) == ("host", "garbage_collection", None)


def test_no_more_of_a_long_stretch_of_python_is_collecting_than_that_takes(tmp_path: Path):
    found = recorded(tmp_path / "a", [5] * 12)
    (device,) = present(found.devices_estimated)
    idle = {one.cause: one.ns for one in device.idle_by_cause}
    assert idle["garbage_collection"] == pytest.approx(5 * MS, rel=0.01)
    assert sum(idle.values()) == device.idle_ns
    assert idle["python"] > 50 * MS
    assert headline(found).startswith("WAITING FOR THE CPU, which runs Python code")
    assert found.verdict.cause == "python"


@pytest.mark.parametrize(
    ("collects", "silent_ms"), [([COLLECTS_MS, 0, 0] * 4, 60), ([0] * 12, 60), ([COLLECTS_MS] * 12, 2)]
)
def test_it_is_not_where_it_is_rare_or_has_no_place(tmp_path: Path, collects: list[int], silent_ms: float):
    found = recorded(tmp_path / "a", collects, silent_ms)
    assert "garbage_collection" not in {one.id for one in (*found.findings, *found.worth_trying)}
    considered = {one.id: one.reason for one in present(found.considered)}
    assert ("garbage_collection" in considered) == (silent_ms == 2)

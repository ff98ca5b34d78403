"""What the process that reads a recording does before it is complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.cli.shared import after_recording, read_ahead

RUN = ROOT / "tests" / "data" / "runs" / "tiny_lora"


def stages(*names: str, total: int | None = None) -> dict:
    return {"steps_total": total, "stages": [{"stage": name} for name in names]}


@pytest.mark.parametrize(
    ("ranks", "follow"),
    [
        ([], False),
        ([stages("settle", "baseline_free", "trace")], True),
        ([stages("trace", "sampling")], True),
        ([stages("trace", "sampling", "after")], False),
        ([stages("trace", total=200)], False),
    ],
)
def test_samples_follow_where_the_length_of_the_training_is_unknown(ranks: list[dict], follow: bool):
    assert read_ahead.samples_follow(ranks) is follow


def test_nothing_is_waited_for_once_the_training_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_ahead, "PATIENCE_S", float("inf"))
    (tmp_path / "rank0.json").write_text(json.dumps(stages("trace", "sampling")))
    (tmp_path / "manifest.json").write_text(json.dumps({"ended": 1}))
    read_ahead.wait_for_samples(tmp_path)


@pytest.mark.parametrize("is_there", [True, False])
def test_samples_that_a_process_still_writes_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
):
    monkeypatch.setattr(read_ahead, "WRITTEN_S", float("inf"))
    (tmp_path / "rank0.json").write_text(json.dumps({"rank": 0} | stages("sampling", total=9)))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    partial = tmp_path / f".samples.rank0.json.{os.getpid() if is_there else ended.pid}.partial"
    partial.touch()
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            partial.rename(tmp_path / "samples.rank0.json")

    monkeypatch.setattr(read_ahead.time, "sleep", look)
    read_ahead.wait_for_samples(tmp_path)
    assert len(looks) == (3 if is_there else 0), "the file is complete, or nobody writes it"


def test_a_trace_read_ahead_gives_the_same_diagnosis(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_ahead, "FEWEST_CORES", 1)
    monkeypatch.setattr(read_ahead, "wait_for_samples", lambda folder: None)
    assert read_ahead.is_worth_showing_early(RUN) is False, "its training has ended"
    ahead = read_ahead.read(RUN, running=True)
    assert ahead.loaded is not None
    found, usual = gpuprof.diagnose(ahead), gpuprof.diagnose(RUN)
    assert (found.verdict, found.steps, found.budget) == (usual.verdict, usual.steps, usual.budget)
    assert [one.id for one in found.findings] == [one.id for one in usual.findings]


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_verdict_does_not_wait_for_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: bool
):
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    waited = tmp_path / "waited"
    monkeypatch.setattr(read_ahead, "is_worth_showing_early", lambda folder: True)

    def wait(folder: Path) -> None:
        for _ in range(600):
            if fails or (folder / after_recording.VERDICT).exists():
                break
            time.sleep(0.1)
        waited.touch()

    monkeypatch.setattr(read_ahead, "wait_for_samples", wait)
    if fails:
        parent, page = os.getpid(), after_recording._page
        monkeypatch.setattr(after_recording, "_page", lambda one: page(one) if os.getpid() == parent else 1 // 0)
    diagnosis = after_recording.show_verdict(run, running=True)
    shown = capfd.readouterr().err
    assert waited.exists() and shown.count("replay error") == 1
    assert ("the recording took" in shown) is not fails
    assert diagnosis.verdict.bound and (run / after_recording.VERDICT).exists()

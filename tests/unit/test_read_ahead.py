"""What the process that reads a recording does before all of it is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.cli.shared import read_ahead

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


def test_a_trace_read_ahead_gives_the_same_diagnosis(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_ahead, "FEWEST_CORES", 1)
    monkeypatch.setattr(read_ahead, "wait_for_samples", lambda folder: None)
    ahead = read_ahead.read(RUN, running=True)
    assert ahead.loaded is not None
    found, usual = gpuprof.diagnose(ahead), gpuprof.diagnose(RUN)
    assert (found.verdict, found.steps, found.budget) == (usual.verdict, usual.steps, usual.budget)
    assert [one.id for one in found.findings] == [one.id for one in usual.findings]

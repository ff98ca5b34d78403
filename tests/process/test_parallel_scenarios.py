"""Training on four GPUs: recordings are packed, and gpuprof's predictions are compared with what was timed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.make_run import RunBuilder
from helpers.make_trace import TraceBuilder
from helpers.parallel_jobs import MS, Job, run, step_ns
from helpers.paths import ROOT

from benchmarks.parallel_jobs import FAR, Outcome, lines, outcome, summary
from scenarios import catalogue
from scenarios.catalogue import Scenario, scenario
from scenarios.parallel import PROGRAMS, pack

PROGRAM = "tensor_pipeline"


@pytest.fixture
def entry() -> Scenario:
    """The entry with only one of its changes."""
    whole = scenario(PROGRAM)
    return replace(whole, fixes=tuple(fix for fix in whole.fixes if fix.name == "long_stage"))


def as_torch_writes(trace: TraceBuilder) -> str:
    """The document with one event per line, between lines of braces."""
    head = json.dumps(trace.top_level)[1:-1]
    events = ",".join("\n  {\n    " + trace._event_text(event)[1:-1] + "\n  }" for event in trace.events)
    return f'{{\n  {head},\n  "traceEvents": [{events}\n  ],\n  "traceName": "trace.json"\n}}'


def recorded(folder: Path, job: Job) -> float:
    """A run of four ranks, as `gpuprof trace` leaves it; returns its step in ms."""
    ranks = run(job)
    step = step_ns(ranks) / MS
    for one in ranks:
        made = RunBuilder(one.rank, len(ranks)).stage("baseline_free", [step] * 10).stage("trace", [step] * job.steps)
        made.write(folder, None)
        (folder / f"trace.rank{one.rank}.json.gz").write_bytes(gzip.compress(as_torch_writes(one.trace).encode()))
        path = folder / f"rank{one.rank}.json"
        window = {"window": "trace", "file": f"trace.rank{one.rank}.json.gz", "first_step": 11, "steps": job.steps}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"windows": [window]}))
    return step


@pytest.mark.slow
def test_what_is_packed_says_what_was_recorded(entry: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From the runs of two variants to rows of the table; sends and receives are kept when ops are left out."""
    out, kept = tmp_path / "out", tmp_path / "scenarios"
    steps = {
        "": recorded(out / PROGRAM, Job(PROGRAM)),
        "long_stage": recorded(out / f"{PROGRAM}.long_stage", Job(PROGRAM, "long_stage")),
    }
    timed = [{"fix": fix, "free_ms": ms, "synchronised_ms": [ms, ms]} for fix, ms in steps.items()]
    (out / f"{PROGRAM}.json").write_text(json.dumps({"processes": timed}))
    assert pack(entry, out, kept / PROGRAM) == 0
    assert len(list(kept.glob("*/recording*/trace.*"))) == 8
    monkeypatch.setattr(catalogue, "ROOT", kept)
    found = [outcome(entry, fix) for fix in steps]
    assert [one.right for one in found] == [True, True], found
    assert found[1].said == ("stage_imbalance", (2, 3))
    assert found[1].error == pytest.approx(0, abs=FAR)
    assert found[1].step_ms == pytest.approx(steps["long_stage"], rel=0.02)
    table = "".join(lines(found))
    assert table.count("✓") == 2
    assert "| stage imbalance (2, 3) | ✓ |" in table
    assert summary(found) == (
        "2 of 2 recorded; 2 reproduced to 2 % with the right one named; 1 of 1 predicted steps within 5 %"
    )


def test_what_was_not_recorded_is_named(
    entry: Scenario, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    assert pack(entry, tmp_path, tmp_path / "packed" / PROGRAM) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" was not packed: ")[0] for line in said] == [PROGRAM, f"{PROGRAM}.long_stage"]
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    found = [outcome(entry, fix) for fix in entry.variants()]
    assert found == [Outcome(PROGRAM, ""), Outcome(PROGRAM, "long_stage")]
    assert (summary(found), "".join(lines(found))) == (
        "0 of 2 recorded",
        "Not recorded: tensor_pipeline as it is, long_stage.\n",
    )


def test_the_programs_are_those_of_four_gpus():
    found = [entry for entry in catalogue.scenarios() if entry.gpus == 4]
    assert sorted(entry.name for entry in found) == sorted(PROGRAMS)
    assert all(entry.role == "test" and entry.trace == ("--steps", "4") for entry in found)


@pytest.mark.slow  # a dozen processes import torch
def test_the_command_on_a_machine_without_gpus(tmp_path: Path):
    need("torch")
    words = ["parallel", "fsdp_ranks", "--out", str(tmp_path), "--rounds", "1", "--processes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "scenarios", *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    packed = tmp_path / "packed" / "fsdp_ranks"
    assert sorted(path.name for path in packed.iterdir()) == [
        "recording",
        "recording.slow_rank",
        "recording.uneven",
        "truth.json",
    ]
    assert [process["fix"] for process in json.loads((packed / "truth.json").read_text())["processes"]] == [
        "",
        "slow_rank",
        "uneven",
    ]
    for folder in packed.glob("recording*"):
        assert {path.name for path in folder.glob("trace.*")} == {"trace.rank0.json.gz", "trace.rank1.json.gz"}


@pytest.mark.parametrize("words", [["--rounds", "0"], pytest.param(["--processes", "1"], marks=pytest.mark.slow)])
def test_options_that_cannot_be_meant(words: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", "scenarios", "parallel", "--out", "x", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert words[0] in done.stderr.splitlines()[-1]

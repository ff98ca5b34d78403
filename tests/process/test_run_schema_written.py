"""Run folders are written as the schema says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.run_schema import SCHEMA, errors, errors_in
from helpers.trainings import LOOP, MODEL, trace
from helpers.warm_torch import warm_python

from gpuprof import runfile
from gpuprof.record.launcher import telemetry

TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
LOADER = """
import time
from torch.utils.data import DataLoader
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i, batch in enumerate(DataLoader(list(batches(110)), batch_size=None)):
    if i > 40:
        time.sleep(0.08)  # sampling takes 4 s
    loss_of(model, batch).backward()
    opt.step()
    opt.zero_grad()
"""
UNTIL_SAMPLED = f"""
import time
while not os.path.exists(os.path.join(os.environ["GPUPROF_RUN"], "{runfile.TELEMETRY}")):
    time.sleep(0.01)
"""
"""Waits for the first line of the sampling process; otherwise the training would be over before it."""


def test_the_sampler(tmp_path: Path):
    process = telemetry.start(tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / runfile.TELEMETRY).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    telemetry.stop(process)
    lines = list(runfile.read_lines(tmp_path / runfile.TELEMETRY))
    assert lines
    assert [error for line in lines for error in errors("telemetry", line)] == []


@pytest.mark.slow
@TORCH
def test_a_whole_run(tmp_path: Path):
    run = trace(tmp_path, f"{LOADER}\n{UNTIL_SAMPLED}", "--stacks", "--memory", "1", settle=("--settle", "5"))
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    rank = run.rank()
    assert [window["window"] for window in rank["windows"]] == ["trace", "stacks", "memory"]
    assert set(SCHEMA["$defs"]["rank"]["properties"]) == set(rank), "every key was seen"
    assert set(SCHEMA["$defs"]["manifest"]["properties"]) == set(run.manifest)
    assert set(run.stages()) == set(runfile.STAGES) - {runfile.NSYS}, run.log()
    assert (run.folder / runfile.TELEMETRY).exists(), run.log()


@TORCH
def test_a_run_that_is_killed_in_its_baseline(tmp_path: Path):
    run = trace(tmp_path, "train(9); os.kill(os.getpid(), 9)")
    assert run.code == -9
    assert run.manifest["status"] == "killed"
    assert errors_in(run.folder) == []


@TORCH
def test_a_run_that_is_killed_before_its_baseline(tmp_path: Path):
    run = trace(tmp_path, "train(2); os.kill(os.getpid(), 9)")
    assert run.rank()["model"] is None
    assert errors_in(run.folder) == []


def test_a_run_in_which_nothing_is_trained(tmp_path: Path):
    folder = tmp_path / "run"
    code = "import sys; sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "trace", "--out", str(folder), sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert errors_in(folder) == []
    assert json.loads((folder / runfile.MANIFEST).read_text())["status"] == "failed"


@TORCH
def test_a_recorders_run(tmp_path: Path):
    code = """
    import time
    import gpuprof
    with gpuprof.Recorder("run", settle=2, baseline=2, steps=1):
        train(20)
        deadline = time.monotonic() + 30
        while not os.path.exists("run/telemetry.jsonl") and time.monotonic() < deadline:
            time.sleep(0.02)
    """
    script = tmp_path / "own.py"
    script.write_text("".join(map(textwrap.dedent, (MODEL, LOOP, code))))
    done = subprocess.run(
        [warm_python(), str(script)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / runfile.TELEMETRY).exists()
    assert errors_in(tmp_path / "run") == []

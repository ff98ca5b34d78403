"""A process whose recording is over, as a kernel after a recorded cell: its children, and its next recording."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.installed import need
from helpers.run_schema import errors_in
from helpers.started import environment

need("torch")
TRAINS = """
import gc, json, os, sys, time
import torch
from gpuprof.record.entry.cell import CellRecorder

torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def record(folder):
    recorder = CellRecorder(out=folder, sampling=False, settle=1, baseline=2)
    recorder.begin([])
    for _ in range(12):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    recorder.end(False)


def exit_code_of_child():
    child = os.fork()
    if not child:
        sys.exit(3)
    patience = time.monotonic() + 20
    while time.monotonic() < patience:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)


record("first")
gc.collect()
after_one = exit_code_of_child()
record("second")
print(json.dumps([after_one, exit_code_of_child()]))
"""
BEFORE = "this process was recorded before"


def test_children_end_and_a_later_recording_says_that_it_is_one(tmp_path: Path):
    """torch's profiler leaves behind what a forked child waits for forever when it exits."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [3, 3]
    notes = {name: json.loads((tmp_path / name / "rank0.json").read_text())["notes"] for name in ("first", "second")}
    assert not any(BEFORE in note for note in notes["first"]) and any(BEFORE in note for note in notes["second"])
    assert done.stderr.count(BEFORE) == 1
    assert errors_in(tmp_path / "second") == []

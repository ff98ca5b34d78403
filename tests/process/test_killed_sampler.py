"""A sampler or a training that is killed, and what becomes of the other."""

from __future__ import annotations

import json
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.samplers import samplers
from helpers.started import environment
from helpers.trainings import trace
from helpers.warm_torch import warm_python

TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


SAMPLER_IS_KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
from gpuprof.record.attach import holder

when, folder = sys.argv[1], Path(sys.argv[2])
torch.set_num_threads(1)
folder.mkdir()
options = {"settle": 3, "baseline": 2, "steps": 1, "report": False}
(folder / "manifest.json").write_text(json.dumps({"schema": "gpuprof.run/1", "status": "running", "options": options}))


def end_sampler():
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"_gpuprof_sampler" in words and os.fsencode(folder) in words:
            os.kill(int(entry.name), signal.SIGKILL)
            while entry.exists() and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                pass


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
holder.record_into(folder)
holder.attach_optimizers(sys.modules["torch.optim.optimizer"])
session = holder.session("trainer")
session.on_training("trainer", 30, model, optimizer)
is_gone = False
for step in range(30):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    session.step_ended()
    if not is_gone and session.progress()["stage"] == when:
        is_gone = True
        end_sampler()
holder.end()
"""


@TORCH
@pytest.mark.parametrize("when", ["baseline_sync", "sampling"])
def test_a_sampler_that_is_killed_costs_only_the_samples(tmp_path: Path, when: str):
    """Before it is asked to sample, and while it does."""
    (tmp_path / "train.py").write_text(SAMPLER_IS_KILLED)
    done = subprocess.run(
        [warm_python(), "train.py", when, str(tmp_path / "run")],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rank = json.loads((tmp_path / "run" / "rank0.json").read_text())
    assert [one["window"] for one in rank["windows"]] == ["trace"]
    assert rank["notes"] == ["the CPU's functions are not sampled: the process that samples has ended"]
    stages = [one["stage"] for one in rank["stages"]]
    assert stages == ["settle", "baseline_free", "baseline_sync", "sampling", "warmup", "trace", "after"]


@TORCH
def test_a_training_that_is_killed_takes_the_sampler_with_it(tmp_path: Path):
    code = """
    import signal
    class Killed(torch.optim.SGD):
        count = 0
        def step(self, closure=None):
            Killed.count += 1
            if Killed.count == 28:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(closure)
    train(45, optimizer=Killed)
    """
    run = trace(tmp_path, code, settle=("--settle", "5"))
    assert run.code == -9
    assert run.stages()["baseline_sync"] == 10
    deadline = time.monotonic() + 10
    while (alive := samplers(run.folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive

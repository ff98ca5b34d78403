"""What a step of an armed training executes, and that its steps are counted whatever its optimizers do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import environment
from helpers.warm_torch import warm_python

need("torch")
MOST_FUNCTIONS = 1
"""Python functions: what counts."""
STEPS = 90
TRAINS = f"""
import json, os, sys
import torch
import gpuprof

how, folder = sys.argv[1:]
torch.set_num_threads(1)
gpuprof.on_demand()
parameter = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([parameter], lr=0.1)
called, recorded, counted = [], [], []
for step in range({STEPS}):
    count = [0]
    if step % 8 == 7:
        sys.setprofile(lambda _, what, __: count.__setitem__(0, count[0] + (what == "call")))
    (parameter * 1.0).sum().backward()
    optimizer.step()
    if how == "twice":
        optimizer.step()
    sys.setprofile(None)
    called.append(count[0])
    armed = sys.modules["gpuprof.record.entry.armed"].armed
    if how in ("twice", "early") and step == 4 or how == "once" and step == 40:
        os.mkdir(folder)
        options = {{"settle": 1, "baseline": 2, "steps": 1, "sampling": False, "report": False}}
        with open(folder + "/manifest.json", "w") as file:
            json.dump({{"schema": "gpuprof.run/1", "status": "running", "options": options}}, file)
        answer = armed._answer({{"do": "record", "folder": folder, "at_step": 0, "by": 1}})
        assert answer.get("ok"), answer
    counted.append(armed._answer({{"do": "status"}})["step"])
recorded = armed._answer({{"do": "steps", "after": 0}})
hooks = sys.modules["torch.optim.optimizer"]
for one in hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks:
    one.clear()
count = [0]
sys.setprofile(lambda _, what, __: count.__setitem__(0, count[0] + (what == "call")))
(parameter * 1.0).sum().backward()
optimizer.step()
sys.setprofile(None)
json.dump([called, counted, recorded, count[0]], sys.stdout)
"""


@pytest.mark.parametrize("how", ["once", "early", "twice"])
def test_steps_are_counted_and_a_recording_ends(how: str, tmp_path: Path):
    """once: a recording in the middle; early: in the first steps; twice: two optimizer steps after a backward pass."""
    (tmp_path / "train.py").write_text(TRAINS)
    done = subprocess.run(
        [warm_python(), "train.py", how, str(tmp_path / "run")],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    called, counted, recorded, bare = json.loads(done.stdout[done.stdout.index("[[") :])
    extra = counted[0] - 1  # before the first backward pass is seen, "twice" looks like two steps
    assert counted == list(range(1 + extra, STEPS + 1 + extra)) and extra <= (how == "twice"), done.stderr
    ((first, last),) = recorded["recorded"]
    assert 0 < first < last < STEPS, done.stderr
    assert len(recorded["ns"]) == STEPS + extra - 1 and min(recorded["ns"]) > 0
    if how != "twice":  # whose backward passes are followed
        settled = [count for step, count in enumerate(called) if count and (20 < step < first or step > last + 20)]
        assert settled and max(settled) <= bare + MOST_FUNCTIONS

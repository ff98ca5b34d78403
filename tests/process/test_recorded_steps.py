"""How many more Python functions a step executes while gpuprof times it, and after the recording. They are counted
because times vary from machine to machine (`python -m benchmarks.in_turns` measures those)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from helpers.installed import need
from helpers.started import environment
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.record.recording.session import Session

need("torch")
MOST_TIMED, MOST_AFTER = 2, 2
"""Additional Python functions per step, of gpuprof and of what it calls. Timed: for a batch, and for the step's end.
After: for the end, and for a look at the clock."""
LATE_STEPS = 30
"""Steps with two optimizers, once the recording is over."""
TRAINS = f"""
import json, sys
from pathlib import Path
import torch
from gpuprof.record.entry.attach import holder
from gpuprof.record.model.loader_meter import meter

torch.set_num_threads(1)
folder = Path(sys.argv[1])
folder.mkdir()
options = {{"settle": 5, "baseline": 20, "steps": 1, "sampling": False}}
manifest = {{"schema": "gpuprof.run/1", "status": "running", "options": options}}
(folder / "manifest.json").write_text(json.dumps(manifest))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(20)])

    def forward(self, input_ids, attention_mask, labels):
        x = input_ids.float()
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {{name: torch.ones(8, dtype=torch.long) for name in ("input_ids", "attention_mask", "labels")}}


model = Model()
optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6)]
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4))
count = [0]


def note(_, what, __):
    count[0] += what == "call"


def step(counted):
    count[0] = 0
    if counted:
        sys.setprofile(note)
    model(**next(batches)).backward()
    for one in optimizers:
        one.step()
        one.zero_grad()
    sys.setprofile(None)
    return count[0]


bare = [step(True) for _ in range(9)]
meter.watch(sys.modules["torch.utils.data._utils.fetch"])
holder.record_into(folder)
holder.attach_optimizers(sys.modules["torch.optim.optimizer"])
step(False)
session = holder._session
found = {{"baseline_free": [], "after": []}}
for _ in range(120):
    stage = "after" if session.is_over else session.progress()["stage"]
    counted = session.is_over or stage == "baseline_free"
    called = step(counted)
    if counted:
        found[stage].append(called)
taken = session.progress()["step"]
optimizers.append(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
optimizers[1].param_groups[0]["params"][0].grad = torch.ones(1)
for _ in range({LATE_STEPS}):
    step(False)
late = session.progress()["step"] - taken
holder.end()
print(json.dumps([bare, found, taken, late]))
"""


def test_a_step_executes_few_functions_more_while_it_is_timed_and_hardly_any_after(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAINS)
    done = subprocess.run(
        [warm_python(), "train.py", str(tmp_path / "run")],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bare, found, taken, late = json.loads(done.stdout.splitlines()[-1])
    usual = statistics.median(bare)
    assert 0 < statistics.median(found["baseline_free"]) - usual <= MOST_TIMED
    assert 0 < statistics.median(found["after"]) - usual <= MOST_AFTER
    assert taken == 121, "no step is lost when they are only counted"
    assert abs(late - LATE_STEPS) <= 1, "two optimizers end one step, also where the second comes late"
    lines = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    timed = [line for line in lines if line["stage"] == "baseline_free"]
    assert len(timed) == 20 and [line["step"] for line in timed] == list(range(6, 26))
    assert all(line["data_ns"] > 0 and line["ns"] > line["data_ns"] for line in timed)
    work = {(line["micro_steps"], line["samples"], line["tokens"], line["pairs"]) for line in timed}
    assert work == {(1, 4, 32, 256)}
    assert {line["labelled_tokens"] for line in timed} <= {32, None}
    facts = json.loads((tmp_path / "run" / "rank0.json").read_text())
    assert facts["steps_seen"] == taken + late and facts["loader"]["made"]["batches"] == 3 + 20


def test_a_recorders_step_only_asks_whether_a_short_step_has_ended():
    """While the session runs: `step` itself, and the function that notes the end."""
    recorder = gpuprof.Recorder()
    recorder._known = cast(Session, SimpleNamespace(ended=False, bare=SimpleNamespace(ended=lambda: True)))
    called: list[str] = []
    sys.setprofile(lambda frame, what, _: called.append(frame.f_code.co_name) if what == "call" else None)
    recorder.step()
    sys.setprofile(None)
    assert called == ["step", "<lambda>"]

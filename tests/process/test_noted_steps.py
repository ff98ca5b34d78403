"""Steps that are only noted (record/tape.py), or timed with next to no hooks (record/bare_steps.py), have the same
lines as steps that are worked out as they happen."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import environment
from helpers.warm_torch import warm_python

need("torch")
TRAINS = """
import json, sys
from pathlib import Path
import torch
from gpuprof.record.entry.attach import holder
from gpuprof.record.steps.bare_steps import BareSteps
from gpuprof.record.recording.session import Session
from gpuprof.record.steps.tape import Tape

how, fed, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(1)
folder.mkdir()
options = {"settle": 5, "baseline": 12, "steps": 1, "sampling": False, "report": False}
(folder / "manifest.json").write_text(json.dumps({"schema": "gpuprof.run/1", "status": "running", "options": options}))
noted = {Tape: 0, BareSteps: 0}
if how == "worked out":
    Session._begin_tape = lambda self: None
elif how == "noted":
    Session._begin_bare = lambda self: False


def count(kind, steps_of):
    work_out = kind.work_out

    def counted(self):
        noted[kind] += steps_of(self)
        work_out(self)

    kind.work_out = counted


count(Tape, lambda tape: sum(event[0] == 3 for event in tape._events))
count(BareSteps, lambda bare: len(bare._ends))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, input_ids):
        return self.layer(input_ids.float().mean().view(1)).sum()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {"input_ids": torch.ones(8 + index // 8 % 3, dtype=torch.long)}


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4))
if fed == "by hand":
    batches = ({"input_ids": torch.ones(4, 8 + i // 2 % 3, dtype=torch.long)} for i in range(100))
holder.record_into(folder)
holder.attach_optimizers(sys.modules["torch.optim.optimizer"])
for step in range(40):
    for _ in range(2):
        model(**next(batches)).backward()
    if step == 12:
        model.eval()
        model(**next(batches))
        model.train()
        next(batches)
    optimizer.step()
    if step == 14:
        optimizer.step()  # again without a new gradient
    optimizer.zero_grad()
holder.end()
print(*noted.values())
"""
COMPARED = ("step", "stage", "micro_steps", "samples", "tokens", "pairs", "new_shapes", "profiled")


def lines_of(tmp_path: Path, how: str, fed: str) -> tuple[list[tuple], list[int]]:
    (tmp_path / "train.py").write_text(TRAINS)
    done = subprocess.run(
        [warm_python(), "train.py", how, fed, str(tmp_path / how)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / how / "steps.jsonl").read_text().splitlines()]
    timed = [line for line in lines if line["stage"].startswith("baseline")]
    assert all(line["ns"] > line["data_ns"] >= 0 for line in timed)
    assert fed == "a loader" or not any(line["data_ns"] for line in timed)
    evaluated = [line["step"] for line in timed if line.get("evaluation_ns")]
    return [*(tuple(line[name] for name in COMPARED) for line in timed), tuple(evaluated)], [
        int(word) for word in done.stdout.split()
    ]


@pytest.mark.parametrize("fed", ["a loader", "by hand"])
def test_noted_steps_have_the_lines_of_those_that_are_worked_out(tmp_path: Path, fed: str):
    usual, none = lines_of(tmp_path, "worked out", fed)
    noted, counts = lines_of(tmp_path, "noted", fed)
    bare, bare_counts = lines_of(tmp_path, "bare", fed)
    assert usual == noted == bare and len(usual) == 12 + 12 + 1
    assert none == [0, 0]
    assert counts[0] > 15 and counts[1] == 0, "most of the baseline's steps are only noted"
    assert bare_counts[1] >= 7, "the first of the baseline's steps are bare, until one evaluates"


SAMPLED = """
import json, sys, time
from pathlib import Path
import torch
from gpuprof.record.entry.attach import holder
from gpuprof.record.steps.bare_steps import BareSteps
from gpuprof.record.recording.session import Session

how, fed, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(1)
folder.mkdir()
options = {"settle": 5, "baseline": 6, "steps": 1, "report": False}
(folder / "manifest.json").write_text(json.dumps({"schema": "gpuprof.run/1", "status": "running", "options": options}))
if how == "worked out":
    Session._begin_bare = lambda self: False
noted, work_out = [0], BareSteps.work_out


def count(self):
    noted[0] += len(self._ends) if self._marks is not None else 0
    work_out(self)


BareSteps.work_out = count


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, input_ids):
        return self.layer(input_ids.float().mean().view(1)).sum()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {"input_ids": torch.ones(8, dtype=torch.long)}


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4))
if fed == "by hand":
    batches = ({"input_ids": torch.ones(4, 8, dtype=torch.long)} for _ in range(1000))
holder.record_into(folder)
holder.attach_optimizers(sys.modules["torch.optim.optimizer"])
for step in range(60):
    for _ in range(2):
        model(**next(batches)).backward()
    if step == 48:
        model.eval()
        model(**next(batches))
        model.train()
    optimizer.step()
    optimizer.zero_grad()
holder.end()
until = time.monotonic() + 60
while not (folder / "samples.rank0.json").exists() and time.monotonic() < until:
    time.sleep(0.01)
print(*noted)
"""


def sampled(tmp_path: Path, how: str, fed: str) -> tuple[list[list[str]], list[tuple], int]:
    """The marks of each sampled step, its line, and how many steps had next to no hooks."""
    (tmp_path / "train.py").write_text(SAMPLED)
    done = subprocess.run(
        [warm_python(), "train.py", how, fed, str(tmp_path / how)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / how / "samples.rank0.json").read_text())
    assert found["marks"] == sorted(found["marks"], key=lambda mark: mark[1])
    ends = found["steps_ns"]
    marks = [[name for name, ns in found["marks"] if a < ns <= b] for a, b in pairwise(ends)]
    lines = [json.loads(line) for line in (tmp_path / how / "steps.jsonl").read_text().splitlines()]
    return (
        marks,
        [tuple(one[name] for name in COMPARED) for one in lines if one["stage"] == "sampling"],
        int(done.stdout),
    )


@pytest.mark.parametrize("fed", ["a loader", pytest.param("by hand", marks=pytest.mark.slow)])
def test_sampled_steps_with_few_hooks_have_the_marks_of_those_that_are_worked_out(tmp_path: Path, fed: str):
    marks, lines, none = sampled(tmp_path, "worked out", fed)
    bare_marks, bare_lines, bare = sampled(tmp_path, "bare", fed)
    assert none == 0 and 30 <= bare < 40, "three are watched at first, and after an evaluation"
    assert len(marks) == len(lines) == 40
    assert bare_marks == marks and bare_lines == lines
    each = ["forward", "backward", "backward_end"]
    each = each if fed == "by hand" else ["data", "data_end", *each]
    assert marks[0] == [*each, *each, "optimizer"]

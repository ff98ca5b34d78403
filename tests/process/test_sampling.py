"""Sampling of a process: what its stacks say, and how much the training notices."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.quick import few
from helpers.run_schema import errors, errors_in
from helpers.samplers import samplers
from helpers.trainings import Run, trace
from jsonschema import Draft202012Validator

import gpuprof
from gpuprof.diagnosis.written.diagnosis_json import schema, to_json
from gpuprof.record.stacks.sampling import START, TAKEN_S, Sampling
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words.explained import explanation
from gpuprof.runfile import is_being_written, samples_file

TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-3]*/bin/python")) or [Path(sys.executable)]
"""Each installed version is tried, as the layout of a stack in memory differs between versions."""
OLDEST_AND_NEWEST = {PYTHONS[i].parent.parent.name for i in (0, -1)}

SAMPLED = """
import json, os, sys, time, types
from pathlib import Path
package = types.ModuleType("_gpuprof")
package.__path__ = [sys.argv[1]]
sys.modules["_gpuprof"] = package
from _gpuprof.record.stacks.sampling import Sampling

def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

def largest(): spin(0.06)
def generated(): yield from (spin(0.003) for _ in range(10))
class Some:
    def method(self): spin(0.01)
def step():
    times = [time.perf_counter()]
    largest()
    times.append(time.perf_counter())
    list(generated())
    times.append(time.perf_counter())
    Some().method()
    times.append(time.perf_counter())
    for name, begun, ended in zip(("largest", "generated", "method"), times, times[1:]):
        took[name] = took.get(name, 0.0) + ended - begun

took = {}
sampling = Sampling(Path(sys.argv[2]), 0, 0.1)
sampling.begin(20, extends=False)
for _ in range(20):
    step()
    sampling.step()
sampling.end(7)
try:
    os.waitpid(-1, 0)
except ChildProcessError:  # none is left
    print(json.dumps(took))
"""


def samples(folder: Path) -> dict[str, Any]:
    file, patience = folder / "samples.rank0.json", time.monotonic() + 20
    while not file.exists() and time.monotonic() < patience:
        time.sleep(0.05)
    return json.loads(file.read_text())


def shares(found: dict[str, Any]) -> dict[str, float]:
    """Share of the samples with a function in their stack, by its name."""
    counts: Counter[str] = Counter()
    for _, node, _ in found["samples"]:
        names = set()
        while node >= 0:
            caller, function, _ = found["nodes"][node]
            names.add(found["functions"][function][2].rpartition(".")[2])
            node = caller
        counts.update(names)
    return {name: count / len(found["samples"]) for name, count in counts.items()}


@pytest.mark.measures_time
@pytest.mark.parametrize(
    "python", few([pytest.param(path, id=path.parent.parent.name) for path in PYTHONS], OLDEST_AND_NEWEST)
)
def test_functions_have_the_shares_that_they_take(tmp_path: Path, python: Path):
    script = tmp_path / "sampled.py"
    script.write_text(SAMPLED)
    done = subprocess.run(
        [str(python), str(script), str(ROOT / "gpuprof"), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    truth = json.loads(done.stdout)
    found = samples(tmp_path)
    assert errors("samples", found) == []
    assert (found["first_step"], len(found["steps_ns"])) == (7, 21)
    assert len(found["samples"]) > 300
    assert found["unread"] < 0.05 * len(found["samples"])
    took = shares(found)
    assert took["step"] > 0.97
    for name, seconds in truth.items():  # some four standard deviations of 500 samples
        assert took[name] == pytest.approx(seconds / sum(truth.values()), abs=0.08), name
    places = {(kind, file) for kind, file, _, _ in found["functions"]}
    assert ("own", "sampled.py") in places
    assert not any(file.startswith("/") for _, file in places)
    lines = {line for _, function, line in found["nodes"] if found["functions"][function][2] == "step"}
    body = textwrap.dedent(SAMPLED).splitlines()
    assert {body[line - 1].strip() for line in lines} >= {"largest()", "list(generated())", "Some().method()"}


ENDS_EARLY = """
import ctypes, json, os, sys, types
state = ctypes.pythonapi.PyThreadState_Get
state.restype = ctypes.c_void_p
code = sys._getframe().f_code
stack = [[code.co_filename, getattr(code, "co_qualname", code.co_name), 7]]
target = {"pid": os.getpid(), "thread": state(), "code_type": id(types.CodeType), "stack": stack, "roots": []}
print(json.dumps(target), flush=True), sys.stdin.read()
"""


def test_samples_of_a_training_that_ended_are_written(tmp_path: Path):
    """A training may be over, or no longer readable, before the sampler has seen the end of the stretch."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS_EARLY.strip())
    pipe = subprocess.PIPE
    line, theirs = socket.socketpair()
    line.settimeout(20)
    with subprocess.Popen([sys.executable, str(script)], text=True, stdin=pipe, stdout=pipe) as target, line:
        assert target.stdin is not None and target.stdout is not None
        with theirs:
            words = [str(ROOT / "gpuprof"), str(tmp_path), samples_file(0)]
            subprocess.run([sys.executable, "-I", "-S", "-c", START, *words], stdin=theirs.fileno(), check=True)

        def send(**request: object) -> None:
            line.sendall(json.dumps(request).encode() + b"\n")

        send(check=json.loads(target.stdout.readline()))
        assert json.loads(line.recv(4096))["error"] is None
        send(go={"period_ns": 1_000_000, "workers": False})
        time.sleep(0.3)
        target.stdin.close()
        target.wait()
        time.sleep(0.1)  # many periods, so that the sampler finds no process
        send(stop={"first_step": 0, "steps_ns": [0], "marks": []})
        assert len(samples(tmp_path)["samples"]) > 10


def test_a_sampler_that_gets_no_cpu_holds_up_nobody(tmp_path: Path):
    """It is stopped when the stretch ends; what it is sent waits for it, also the marks of 2,000 steps."""
    sampling = Sampling(tmp_path, 0, 0.002)
    sampling.begin(5, extends=False)
    (pid,) = map(int, samplers(tmp_path))
    now = time.monotonic_ns()
    sampling.noted([now + i * 2_000_000 for i in range(2000)], [("backward_end", now + i) for i in range(8000)])
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        sampling.end(1)
        assert time.monotonic() - begun < TAKEN_S
        assert not (tmp_path / "samples.rank0.json").exists() and is_being_written(tmp_path / "samples.rank0.json")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(samples(tmp_path)["marks"]) == 8000
    assert not is_being_written(tmp_path / "samples.rank0.json")


PLANTED = """
import json, time
import torch.utils.checkpoint

took = {}

def spin(name, seconds):
    begun = now = time.perf_counter()
    while now < begun + seconds:
        now = time.perf_counter()
    took[name] = took.get(name, 0.0) + now - begun

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        spin("__getitem__", 0.002)
        return torch.randint(0, 50, (8,))

def collate(rows):
    spin("collate", 0.008)
    return {"input_ids": torch.stack(rows)}

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)
    def forward(self, x):
        spin("forward", 0.004)  # once in the forward pass, once when it is recomputed
        return self.inner(x)

class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def forward(self, x):
        between()
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

def between():
    spin("between", 0.001)

def walk(model):
    begun = time.perf_counter()
    while time.perf_counter() < begun + 0.05:
        for module in model.modules():
            module.training
    took["walk"] = time.perf_counter() - begun

model = Model()
model.layers = torch.nn.ModuleList([Checkpointed() for _ in range(4)])
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
truth = []
for i, batch in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=collate)):
    walk(model)
    loss_of(model, batch).backward()
    opt.step()
    opt.zero_grad()
    truth.append(took)
    took = {}
    if i == 80:
        break
print(json.dumps(truth))
"""


@pytest.mark.measures_time
@TORCH
def test_planted_functions_are_sampled_and_named(tmp_path: Path):
    run = trace(tmp_path, PLANTED, settle=("--settle", "3", "--baseline", "5"))
    assert run.code == 0, run.stderr
    assert [row["stage"] for row in run.rank()["stages"]] == [
        "settle", "baseline_free", "baseline_sync", "warmup", "trace", "sampling", "after",
    ]  # fmt: skip
    assert errors_in(run.folder) == []
    found = samples(run.folder)
    stage = next(row for row in run.rank()["stages"] if row["stage"] == "sampling")
    assert (stage["first_step"], stage["steps"]) == (found["first_step"], len(found["steps_ns"]) - 1)
    assert len(found["samples"]) >= 1000, "4 s of steps, however long they are"
    step_ms = (found["steps_ns"][-1] - found["steps_ns"][0]) / 1e6 / stage["steps"]
    took = {name: share * step_ms for name, share in shares(found).items()}
    first = found["first_step"] - 1
    truth = json.loads(run.stdout)[first : first + stage["steps"]]
    for name in ("walk", "collate", "__getitem__", "between"):
        true_ms = 1e3 * fmean(step[name] for step in truth)
        scatter_ms = math.sqrt(true_ms / step_ms / len(found["samples"])) * step_ms  # binomial
        assert took[name] == pytest.approx(true_ms, abs=0.05 * true_ms + 4 * scatter_ms), name
    assert_named(run, found, truth)
    kinds = {what for what, _ in found["marks"]}
    assert kinds == {"data", "data_end", "forward", "backward", "backward_end", "optimizer"}


def assert_named(run: Run, found: dict[str, Any], truth: list[dict[str, float]]) -> None:
    """The functions that the diagnosis names are those that were planted, with their time and their line."""
    host = gpuprof.diagnose(run.folder).host
    assert host is not None
    named = {one.function.rpartition(".")[2]: one for one in host.functions if one.kind == "own"}
    body = (run.folder.parent / "train.py").read_text().splitlines()
    for name, where in (
        ("walk", "module"), ("collate", "spin"), ("__getitem__", "spin"), ("forward", "spin"), ("between", "spin"),
    ):  # fmt: skip
        true_ns = 1e9 * fmean(step[name] for step in truth)
        one = named[name]
        assert one.file == "train.py"
        assert where in body[one.line - 1], name
        half = (one.ns.high - one.ns.low) / 2
        assert abs(one.ns.expected - true_ns) < 0.1 * true_ns + 2 * half, name
        assert one.step_ns is None, "nothing is replayed without a GPU"
        assert one.why_unknown is not None


@TORCH
def test_a_training_of_unknown_length_is_recorded_before_it_is_sampled(tmp_path: Path):
    run = trace(tmp_path, "train(45)", settle=("--settle", "5"))
    assert [row["stage"] for row in run.rank()["stages"]][3:] == ["warmup", "trace", "sampling"]
    assert run.stages()["trace"] == 3
    assert run.stages()["sampling"] == 45 - 30
    assert len(samples(run.folder)["steps_ns"]) == 45 - 30 + 1


FORBIDS = """
import ctypes

prctl = ctypes.CDLL(None).prctl
prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: root may not read it either
prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
train(45)
"""


@TORCH
def test_a_training_that_may_not_be_read_is_recorded_without_samples(tmp_path: Path):
    run = trace(tmp_path, FORBIDS, settle=("--settle", "5"))
    assert run.code == 0, run.stderr
    assert run.stages()["trace"] == 3 and not (run.folder / samples_file(0)).exists()
    assert "does not let another process read its stacks" in " ".join(run.rank()["notes"])
    assert gpuprof.diagnose(run.folder).host is None


@TORCH
@pytest.mark.parametrize("steps", [8, 9, 10])
def test_sampling_costs_no_short_training_its_trace(tmp_path: Path, steps: int):
    run = trace(tmp_path, f"train({steps})", settle=("--settle", "1", "--baseline", "1"))
    assert run.stages()["trace"] == 3
    assert run.stages().get("sampling", 0) == steps - 8


WORKERS = """
import json, os, time

took = {"begun": None}

def timed(name):
    def of(function):
        def wrapper(*args):
            begun = time.perf_counter()
            took["begun"] = took["begun"] or begun
            found = function(*args)
            took[name] = took.get(name, 0.0) + time.perf_counter() - begun
            return found
        return wrapper
    return of

@timed("spin")
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

@timed("decode")
def decode():
    time.sleep(0.006)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    @timed("__getitem__")
    def __getitem__(self, i):
        spin(0.001)
        decode()
        return torch.randint(0, 50, (8,))

@timed("collate")
def make(rows):
    time.sleep(0.012)
    return {"input_ids": torch.stack(rows)}

def collate(rows):
    batch = make(rows)
    took["ended"] = time.perf_counter()
    with open(f"took.{os.getpid()}", "w") as file:
        json.dump(took, file)
    return batch

model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i, batch in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=collate, num_workers=2)):
    loss_of(model, batch).backward()
    opt.step()
    opt.zero_grad()
    if i == 90:
        break
"""


@pytest.mark.measures_time
@pytest.mark.slow
@TORCH
@pytest.mark.parametrize("options", [("--sample-workers",), ()], ids=["on request", "as the training waits for them"])
def test_the_workers_of_the_loader_are_sampled(tmp_path: Path, options: tuple[str, ...]):
    """Compared with the workers' own times, as on a busy machine everything takes longer, to different degrees."""
    run = trace(tmp_path, WORKERS, *options, settle=("--settle", "3", "--baseline", "3"))
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    assert samples(run.folder)["workers"] == 2
    diagnosis = gpuprof.diagnose(run.folder)
    assert diagnosis.host is not None and diagnosis.host.workers is not None
    found = diagnosis.host.workers
    assert found.workers == 2 and found.samples > 150
    truth = [json.loads(path.read_text()) for path in tmp_path.glob("took.*")]
    assert len(truth) == 2
    total = {name: sum(one[name] for one in truth) for name in ("spin", "decode", "__getitem__", "collate")}
    busy_s = total["__getitem__"] + total["collate"]
    assert found.busy == pytest.approx(busy_s / sum(one["ended"] - one["begun"] for one in truth), abs=0.2)
    shares = {one.function.rpartition(".")[2]: one.share.expected for one in found.functions}
    for name, ours in (("spin", "spin"), ("decode", "decode"), ("collate", "make")):
        assert shares[ours] == pytest.approx(total[name] / busy_s, abs=0.12), name
    assert shares["__getitem__"] > shares["decode"] > shares["make"] > shares["spin"]
    slowest = found.functions[0]
    explained = explanation(slowest.place, (), lambda: ("run", diagnosis)).lines
    assert f"takes {100 * slowest.share.expected:.0f} % of the time" in explained[-1]
    document = to_json(diagnosis)
    Draft202012Validator(schema()).validate(document)
    assert gpuprof.load_diagnosis(document).host == diagnosis.host
    assert "2 workers make batches" in " ".join(plain(diagnosis, 80, verbose=False).split())


@TORCH
def test_why_workers_are_not_sampled_is_said(tmp_path: Path):
    run = trace(tmp_path, "train(45)", "--sample-workers", settle=("--settle", "5"))
    assert any("workers are not sampled: there are none" in note for note in run.rank()["notes"])
    assert "workers" in samples(run.folder)


@TORCH
def test_it_can_be_switched_off(tmp_path: Path):
    run = trace(tmp_path, "train(45)", "--no-sampling", settle=("--settle", "5"))
    assert "sampling" not in run.stages()
    assert not (run.folder / "samples.rank0.json").exists()


@TORCH
def test_a_training_whose_stacks_cannot_be_read_is_recorded_without(tmp_path: Path):
    code = """
    sys.modules["_gpuprof.record.stacks.sampling"].layout = lambda: None
    train(45)
    """
    run = trace(tmp_path, code, settle=("--settle", "5"))
    assert run.code == 0, run.stderr
    assert run.stages()["trace"] == 3
    assert any("not sampled" in note for note in run.rank()["notes"])
    assert not (run.folder / "samples.rank0.json").exists()

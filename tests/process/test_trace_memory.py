"""A program that runs out of memory under `gpuprof trace --memory` ends as it does without it, and leaves a snapshot.

Torch's functions that only work on a GPU are stand-ins here: the program itself calls what would wait for CUDA, and
calls the observers as torch does before it raises.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from helpers.command import in_process
from helpers.installed import need
from helpers.started import environment, traced
from helpers.warm_torch import warm_python

PROGRAM = """
import pickle, sys, torch

observers = []

def record(enabled="all", context="all", stacks="all", max_entries=None):
    pass

def dump(filename):
    frames = [{"filename": "train.py", "line": 7, "name": "forward"}]
    block = {"address": 4096, "size": 1 << 20, "requested_size": 1 << 20, "state": "active_allocated", "frames": frames}
    trace = [
        {"action": "alloc", "addr": 4096, "size": 1 << 20, "stream": 0, "time_us": 5, "frames": frames},
        {"action": "oom", "size": 1 << 30, "device_free": 1 << 20, "stream": 0, "time_us": 9, "frames": frames},
    ]
    segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": [block]}
    with open(filename, "wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [trace]}, file)

torch.cuda.memory._record_memory_history, torch.cuda.memory._dump_snapshot = record, dump
torch._C._cuda_attach_out_of_memory_observer = observers.append
for call, _ in torch.cuda._queued_calls:
    if "gpuprof" in call.__module__:
        call()
print("observers", len(observers), file=sys.stderr)
for observer in observers:
    observer(0, 1 << 30, 1 << 20, 1 << 20)
raise torch.OutOfMemoryError("CUDA out of memory")
"""


def test_running_out_of_memory_ends_as_without(tmp_path: Path):
    need("torch")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    options = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True, "timeout": 240}
    program = (warm_python(), "train.py")
    bare = subprocess.run(program, **options)
    kept = subprocess.run(traced("--out", "run", "--memory", *program), **options)
    plain = subprocess.run(traced("--out", "plain", *program), **options)
    for done in (bare, kept, plain):
        assert done.returncode == 1
        assert done.stdout == ""
    begin = re.compile(r"Traceback.*?CUDA out of memory\n", re.DOTALL)
    assert begin.findall(kept.stderr) == begin.findall(bare.stderr) != []
    assert "observers 1" in kept.stderr
    assert "who held its memory: gpuprof memory" in kept.stderr
    assert "observers 0" in plain.stderr and "observers 0" in bare.stderr
    assert [path.name for path in (tmp_path / "run").glob("*.pickle")] == ["memory.rank0.oom.pickle"]
    assert not list((tmp_path / "plain").glob("*.pickle"))
    report = in_process("memory", tmp_path / "run", COLUMNS="100")
    assert report.returncode == 0
    assert "Out of memory: train.py:7 forward asked for 1.0 GiB" in " ".join(report.stdout.split())

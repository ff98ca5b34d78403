"""Trainings with torch on the CPU, run under `gpuprof trace`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from helpers.paths import ROOT
from helpers.started import finished
from helpers.warm_torch import warm_python

MODEL = """
    import sys, os, torch
    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 16)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])
            self.head = torch.nn.Linear(16, 50)

        def forward(self, input_ids, attention_mask=None):
            x = self.embedding(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    def batches(n):
        mask = torch.tensor([[1] * 6 + [0] * 2] * 4)
        for _ in range(n):
            yield {"input_ids": torch.randint(0, 50, (4, 8)), "attention_mask": mask}

    def loss_of(model, batch):
        return model(**batch).float().square().mean()
"""


LOOP = """
    def train(steps, accumulate=1, optimizer=torch.optim.AdamW):
        model = Model()
        opt = optimizer(model.parameters(), lr=1e-3)
        for i, batch in enumerate(batches(steps * accumulate)):
            loss_of(model, batch).backward()
            if (i + 1) % accumulate == 0:
                opt.step()
                opt.zero_grad()
        return sum(p.detach().double().sum().item() for p in model.parameters())
"""


class Run:
    """A finished `gpuprof trace`: what it printed, and its folder."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code, self.stdout, self.stderr, self.folder = done.returncode, done.stdout, done.stderr, folder
        self.manifest = json.loads((folder / "manifest.json").read_text())

    def rank(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"rank{rank}.json").read_text())

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "steps.jsonl").read_text().splitlines())
        return [line for line in lines if line["rank"] == rank]

    def stages(self, rank: int = 0) -> dict[str, int]:
        """Steps by what they were used for."""
        counts: dict[str, int] = {}
        for step in self.steps(rank):
            counts[step["stage"]] = counts.get(step["stage"], 0) + 1
        return counts

    def log(self) -> str:
        path = self.folder / "gpuprof.log"
        return path.read_text() if path.exists() else ""

    def trace(self, rank: int = 0, window: str = "trace") -> dict[str, Any]:
        path = self.folder / f"{window}.rank{rank}.json.gz"
        return json.loads(gzip.decompress(path.read_bytes()))

    def ranges(self, rank: int = 0, window: str = "trace") -> list[str]:
        events = self.trace(rank, window)["traceEvents"]
        return [event["name"] for event in events if event.get("cat") == "user_annotation"]


ONLY_COMPRESSED = """
import sys
from gpuprof.cli import main, trace
whole = trace.closing_command
trace.closing_command = lambda folder, running, diagnose: whole(folder, running, False)
sys.exit(main())
"""
"""`gpuprof`, but a recording is not diagnosed at its end."""


def trace(
    tmp_path: Path,
    code: str,
    *options: str,
    command: tuple[str, ...] | None = None,
    arguments: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    settle: tuple[str, ...] = ("--settle", "5", "--no-sampling"),
    first: str = "",
    diagnosed: bool = False,
) -> Run:
    """Traces a script of this code, with MODEL and LOOP before it.

    command: the words before the script; () is the script alone, and None a Python that has imported torch already.
    diagnosed: whether the recording is read at the end and its report drawn, which takes longer than the training.
    """
    script = write_script(tmp_path, code, first)
    target = [*((warm_python(),) if command is None else command), str(script), *arguments]
    gpuprof = ["-m", "gpuprof"] if diagnosed else ["-c", ONLY_COMPRESSED]
    done = finished(
        [sys.executable, *gpuprof, "trace", *settle, "--out", str(tmp_path / "run"), *options, *target],
        cwd=tmp_path, env=variables(**(env or {})), text=True, timeout=240,
    )  # fmt: skip
    return Run(done, tmp_path / "run")


def write_script(folder: Path, code: str, first: str = "") -> Path:
    """The script that `trace` runs."""
    script = folder / "train.py"
    script.write_text(first + textwrap.dedent(MODEL) + textwrap.dedent(LOOP) + textwrap.dedent(code))
    return script


def bare(
    tmp_path: Path, command: tuple[str, ...] | None = None, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """The script in this folder, as `trace` runs it, without gpuprof."""
    words = [*((warm_python(),) if command is None else command), str(tmp_path / "train.py"), *arguments]
    return finished(words, cwd=tmp_path, env=variables(), text=True, timeout=240)


def variables(**more: str) -> dict[str, str]:
    """The environment of a training."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUPROF")}
    return {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GPUPROF_SANDBOX": "hooks", **more}


WHOLE = {"settle": 5, "baseline_free": 10, "baseline_sync": 10, "warmup": 2, "trace": 3, "after": 10}
"""What 40 steps are used for."""


def assert_whole(run: Run, rank: int = 0) -> None:
    assert run.code == 0, run.stderr
    stages = run.stages(rank)
    assert {name: stages.get(name) for name in WHOLE if name != "after"} == {
        name: count for name, count in WHOLE.items() if name != "after"
    }, run.log()
    steps = [f"ProfilerStep#{n}" for n in (28, 29, 30)]
    assert [n for n in run.ranges(rank) if n.startswith("ProfilerStep")] == steps

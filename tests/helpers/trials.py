"""Building blocks of trials: a small training on the CPU, a fix applied to it from outside, and a run of it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path

from gpuprof.record.launcher.command import Target
from gpuprof.trial.fixes import parse
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.run_trial import RANKS_SETTLE
from gpuprof.trial.starter import Outcome, Starter
from gpuprof.trial.trial import TriedFix
from helpers.command import working_in
from helpers.warm_torch import warm_python

LIMIT_S = 240.0
"""When a process is given up: compilers take long on a machine that has other work."""

HEAD = """
    import os, sys, time
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
"""

LOADER = """
    class Data(torch.utils.data.Dataset):
        def __init__(self, n=4000, wait=0.0, width=16):
            self.n, self.wait, self.width = n, wait, width

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            time.sleep(self.wait)
            return torch.randn(self.width, generator=torch.Generator().manual_seed(i))

    def train(model, loader, optimizer=None, loss_of=lambda model, x: model(x).square().mean()):
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
        while True:
            for x in loader:
                loss_of(model, x).backward()
                optimizer.step()
                optimizer.zero_grad()

    def net(width=16, hidden=32):
        return torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1))
"""


def write_training(folder: Path, code: str, name: str = "train.py") -> Path:
    """A script of HEAD, LOADER and this code."""
    script = folder / name
    script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(LOADER) + textwrap.dedent(code))
    return script


def tried(
    folder: Path,
    code: str,
    fix: str = "",
    *,
    fresh: bool = False,
    seconds: float = 0.1,
    flags: dict[TriedFix, OwnFlags] | None = None,
    launcher: tuple[str, ...] = (),
) -> Outcome:
    """The result of one process with this fix; empty: unchanged. fresh: in a Python that has imported nothing.

    seconds: of the stretch that is timed, beyond its fewest steps. flags: the fixes that the program's own flags make.
    launcher: what a fresh Python runs to start several ranks, which are timed over a fixed number of steps.
    """
    script = write_training(folder, code)
    python = sys.executable if fresh or launcher else warm_python()
    target = Target((python, *launcher, str(script)), "train", python, True, ())
    settle, steps = (RANKS_SETTLE, 20) if launcher else (None, None)
    with working_in(folder), Starter(target, network=False) as starter:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return starter.run(parse(fix) if fix else (), settle, steps, seconds, LIMIT_S, flags)


def applied(outcome: Outcome) -> str:
    """The proof that the fix took effect."""
    assert outcome.process.error is None, outcome.process.error
    assert outcome.not_applied is None, outcome.not_applied
    return outcome.proof


def make_run(folder: Path, *, made_ms: float | None = 8.0, python: str = "") -> Path:
    """The run of `train.py` that a `gpuprof trace` would have left, with what it measured in the loader."""
    run = folder / "gpuprof-runs" / "2026-01-01_000000_train"
    run.mkdir(parents=True)
    now, step_ns = time.time_ns(), round(((made_ms or 0) + 2) * 1e6)
    manifest = {
        "schema": "gpuprof.run/1", "gpuprof": "0", "status": "finished", "started": now, "ended": now + 10**10,
        "command": [python or warm_python(), "train.py"], "cwd": str(folder), "python": None, "options": {},
        "variables": {}, "exit": {"code": 0, "signal": None},
        "host": {"cpus": 2, "memory_bytes": 1 << 30, "platform": "Linux"},
    }  # fmt: skip
    loader = {"num_workers": 0, "made": None}
    if made_ms is not None:
        ns = round(made_ms * 1e6)
        loader["made"] = {"batches": 20, "batch_ns": ns, "batch_cpu_ns": ns // 20, "spread": 0.05}  # type: ignore[assignment]
    rank = {
        "schema": "gpuprof.run/1", "rank": 0, "local_rank": 0, "world_size": 1, "pid": 1, "step_source": "optimizer",
        "steps_seen": 30, "steps_total": None, "loader": loader, "notes": [], "windows": [],
        "stages": [
            {"stage": "baseline_free", "first_step": 1, "steps": 20, "unix_ns": now + 10**9, "ns": 20 * step_ns}
        ],
    }  # fmt: skip
    lines = [
        {"rank": 0, "step": n + 1, "stage": "baseline_free", "unix_ns": now + 10**9 + n * step_ns, "ns": step_ns,
         "data_ns": round((made_ms or 0) * 1e6), "micro_steps": 1, "samples": 8, "profiled": False}
        for n in range(20)
    ]  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "rank0.json").write_text(json.dumps(rank))
    (run / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run

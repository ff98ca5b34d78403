"""A small training on the CPU that is armed, for `gpuprof attach`; it trains until it is stopped.

The first word says how it is armed: `trace` (by gpuprof trace --on-demand), `code` (gpuprof.on_demand()), `joined` (it
runs the file that gpuprof attach has a Python 3.14 run, once it trains), `plain` (not at all). At its end it prints a
line of JSON: the hooks it found in torch, the CPU time of each step, and for some steps the number of Python functions
called.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.attach.attachable import parent_of
from gpuprof.attach.jobs import armed
from gpuprof.attach.jobs_json import dumps
from helpers.paths import ROOT
from helpers.started import environment

PATIENCE_S = 120.0
COUNTED_EVERY = 30
TRAINS = "trains"
"""File in the working directory whose existence says that it trains."""


def train(how: str, ranks: int) -> None:
    """The training itself, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    untouched = _hooks()
    if how == "code":
        import gpuprof

        gpuprof.on_demand()
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(64)

    loader = torch.utils.data.DataLoader(Endless(), 16)
    ended, steps_ns = [False], []
    calls: dict[int, list[int]] = {}
    signal.signal(signal.SIGTERM, lambda *_: ended.__setitem__(0, True))
    pauses_s = [0.004]
    signal.signal(signal.SIGUSR1, lambda *_: pauses_s.__setitem__(0, 0.03))  # a new level of the step time
    joined = [how != "joined"]
    signal.signal(signal.SIGUSR2, lambda *_: joined.__setitem__(0, False))  # once more
    for batch in loader:
        counted = len(steps_ns) % COUNTED_EVERY == 0
        count = calls[len(steps_ns)] = [0] if counted else [-1]
        if counted:
            sys.setprofile(lambda _, what, __, count=count: count.__setitem__(0, count[0] + (what == "call")))
        begun = time.thread_time_ns()
        model(batch).square().mean().backward()
        if ranks > 1:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        sys.setprofile(None)
        steps_ns.append(time.thread_time_ns() - begun)
        if len(steps_ns) == 1:
            Path(TRAINS).touch()
        time.sleep(pauses_s[0])
        if not joined[0] and len(steps_ns) >= 20:
            from gpuprof.attach.joining import file_to_run

            joined[0] = True
            exec(file_to_run(), {})
        stop = torch.tensor(float(ended[0]))
        if ranks > 1:
            torch.distributed.all_reduce(stop)
        if stop:
            break
    counts = {step: count[0] for step, count in calls.items() if count[0] > 0}
    print(json.dumps({"untouched": untouched, "left": _hooks(), "steps_ns": steps_ns, "calls": counts}), flush=True)


def _hooks() -> dict[str, Any]:
    """A recording's visible hooks in torch."""
    from importlib import import_module

    import torch

    optimizer, dataloader = map(import_module, ("torch.optim.optimizer", "torch.utils.data.dataloader"))
    return {
        "backward": torch.autograd.backward.__code__.co_filename,
        "next": dataloader._BaseDataLoaderIter.__next__.__code__.co_filename,
        "index": dataloader._BaseDataLoaderIter._next_index.__code__.co_filename,
        "profile": torch.profiler.profile.__init__.__code__.co_filename,
        "optimizer": len(optimizer._global_optimizer_post_hooks),
        "module": len(torch.nn.modules.module._global_forward_hooks),
        "finders": len(sys.meta_path),
    }


@dataclass
class ArmedJob:
    """A running job. `said`: its output, once it has ended."""

    process: subprocess.Popen[str]
    folder: Path
    said: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def attach(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """`gpuprof attach` in the job's working directory."""
        return attach(self.folder, *words, **options)

    def listed(self) -> list[dict[str, Any]]:
        """Its processes, as `gpuprof attach --json` lists them, without starting a command."""
        jobs = json.loads(dumps(armed()))["jobs"]
        return [one for one in jobs if self.pid in (one["pid"], parent_of(one["pid"]))]

    def wait_for(self, count: int = 1, state: str = "armed") -> list[dict[str, Any]]:
        """Its processes, once `count` of them are in a state."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = [one for one in self.listed() if one["state"] == state]
            if len(found) == count:
                return found
            assert self.process.poll() is None, self.end()
            time.sleep(0.2)
        raise AssertionError(f"not {count} processes that are {state}: {self.listed()}")

    def end(self) -> str:
        """Ends it and returns its last output; of several processes, that of the last to end."""
        if self.process.poll() is None:
            self.process.terminate()
        out, err = self.process.communicate(timeout=PATIENCE_S)
        self.said = err.splitlines()
        return out.strip().splitlines()[-1] if out.strip() else err


@contextlib.contextmanager
def job(folder: Path, how: str = "trace", ranks: int = 1) -> Iterator[ArmedJob]:
    """Starts one, in a folder that is its working directory; its sockets are in a folder below that."""
    words = [sys.executable, "-m", "helpers.armed_job", how, str(ranks)]
    if ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        words = [sys.executable, *launch, "-m", "helpers.armed_job", how, str(ranks)]
    if how == "trace":
        words = [sys.executable, "-m", "gpuprof", "trace", "--on-demand", *words]
    process = subprocess.Popen(
        words, cwd=folder, env=variables(), start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield ArmedJob(process, folder)
    finally:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        for pid in (process.pid, *map(int, found.stdout.split())):  # ranks are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def variables() -> dict[str, str]:
    """The environment of the job and of what attaches to it."""
    return environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}", OMP_NUM_THREADS="1")


def attach(folder: Path, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`gpuprof attach`, run to its end."""
    command = [sys.executable, "-m", "gpuprof", "attach", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=variables(), capture_output=True, text=True, timeout=PATIENCE_S, **options
    )


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))

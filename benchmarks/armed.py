"""What it costs a training to be armed for `gpuprof attach`, and whether its steps are as long after a recording.

    python -m benchmarks.armed [--rounds N] [--json FILE]

`step`: an optimizer step of one tiny parameter and its backward pass, in blocks with and without the armed counter that
alternate within one process; the difference of their medians is the cost of a step. `batch`: the same of a batch from a
DataLoader without workers. `after`: of two trainings with steps of some milliseconds that run at the same time, one is
recorded by `gpuprof attach`; the CPU time of its thread, and its wall time, per step after the recording over that
before, divided by the same ratio of the other training.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gpuprof.attach.jobs import armed

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 200
AROUND = 400
"""Steps before and after a recording that are compared."""


def cost(act: Callable[[], object], arm: Callable[[bool], None], rounds: int) -> tuple[float, float]:
    """(µs that `act` takes longer while armed, µs that it takes without): medians over blocks that alternate."""
    medians: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for on in (True, False):
            arm(on)
            each = []
            for _ in range(BLOCK):
                begun = time.perf_counter_ns()
                act()
                each.append(time.perf_counter_ns() - begun)
            medians[on].append(statistics.median(each) / 1e3)
    pairs = [a - b for a, b in zip(medians[True], medians[False], strict=True)]
    return statistics.median(pairs), statistics.median(medians[False])


def step_cost(rounds: int) -> dict[str, float]:
    """µs a step and a batch, of this process, which is armed for it."""
    from importlib import import_module

    import torch

    import gpuprof
    from gpuprof.record.model.loader_meter import meter

    module = import_module("torch.optim.optimizer")
    torch.set_num_threads(1)
    gpuprof.on_demand()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    loss = (parameter * 1.0).sum()

    def step() -> None:
        loss.backward(retain_graph=True)
        optimizer.step()

    for _ in range(100):  # during the first ones backward passes are followed, too
        step()
    hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    kept = [dict(one) for one in hooks]

    def arm(on: bool) -> None:
        for one, saved in zip(hooks, kept, strict=True):
            one.clear()
            one.update(saved if on else {})

    found: dict[str, float] = dict(zip(("step_us", "step_without_us"), cost(step, arm, rounds), strict=True))
    batches = iter(torch.utils.data.DataLoader(cast("Any", range(10**9)), 1))

    def measure(on: bool) -> None:
        meter.stop()
        if on:
            meter.watch(sys.modules["torch.utils.data._utils.fetch"])
            meter.only_workers = True

    found |= dict(zip(("batch_us", "batch_without_us"), cost(lambda: next(batches), measure, rounds), strict=True))
    return found


TRAINING = """
import json, select, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
cpu, wall = [], []
end = None
while end is None or len(wall) < end:
    begun, at = time.thread_time_ns(), time.perf_counter_ns()
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    cpu.append(time.thread_time_ns() - begun)
    wall.append(time.perf_counter_ns() - at)
    if end is None and select.select([sys.stdin], [], [], 0)[0]:
        end = len(wall) + 500
json.dump([cpu, wall], sys.stdout)
"""


def after(folder: Path) -> tuple[float, float]:
    """(CPU time, wall time) of a step after a recording over that before it; medians, divided by the same ratio of a
    second training at the same time that is armed and not recorded, so that the machine is equally busy for both."""
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpuprof"]
    jobs = [
        subprocess.Popen(
            [*command, "trace", "--on-demand", "train.py"], cwd=folder, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        began = [wait_for(job.pid, AROUND + 100) for job in jobs]
        attach = [*command, "attach", str(jobs[0].pid), "--no-report", "--out", str(folder / "run")]
        subprocess.run(attach, cwd=folder, env=environment, capture_output=True, check=False)
        time.sleep(3)
        for job in jobs:
            assert job.stdin
            job.stdin.write("\n")
            job.stdin.flush()
        ratios = []
        for job, first in zip(jobs, began, strict=True):
            out, _ = job.communicate(timeout=120)
            ratios.append([_quotient(each, first) for each in json.loads(out[out.index("[[") :])])
    finally:
        for job in jobs:
            job.kill()
    return ratios[0][0] / ratios[1][0], ratios[0][1] / ratios[1][1]


def _quotient(each: list[float], first: int) -> float:
    return statistics.median(each[-AROUND:]) / statistics.median(each[first - AROUND : first])


def wait_for(pid: int, steps: int) -> int:
    """Waits until an armed process has taken at least `steps` steps; returns their number. Raises TimeoutError."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        taken = max((one.step for one in armed() if one.pid == pid), default=0)
        if taken >= steps:
            return taken
        time.sleep(0.5)
    raise TimeoutError(f"process {pid} did not take {steps} steps")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="blocks of each kind")
    parser.add_argument("--jobs", type=int, default=5, help="trainings that are recorded; 0: none")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: dict[str, object] = dict(step_cost(options.rounds))
    for name, value in found.items():
        print(f"{name:>18} {value:8.2f}")
    ratios = []
    for _ in range(options.jobs):
        with tempfile.TemporaryDirectory(prefix="armed-") as folder:
            ratios.append(after(Path(folder)))
            print(f"after a recording: CPU {ratios[-1][0]:.3f}, wall {ratios[-1][1]:.3f} of before", flush=True)
    if ratios:
        cpu, wall = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"median of {len(ratios)}: CPU {cpu:.3f}, wall {wall:.3f}")
        found |= {"after_cpu": cpu, "after_wall": wall, "jobs": ratios}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

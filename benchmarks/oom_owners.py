"""Needs a GPU: trainings of other projects that run out of memory, what gpuprof says held it, and what really did.

    python -m benchmarks.oom_owners --out DIR [--within 190] [NAME …]
    python -m benchmarks.oom_owners --tiny --out DIR     # without a GPU: nothing fails, all commands run

Each program is a script of an installed package (TRL, Accelerate) that may take some GiB. `gpuprof trace --memory`
records it until an allocation fails, `gpuprof memory --json` names the owners. Then the same program runs with the
reason removed, and says what its weights, gradients and optimizer state take. DIR/owners.json has a line for each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.catalogue import Fix, scenario
from scenarios.support import material
from scenarios.support.program import command, variables, workplace

GIB = 1 << 30
STEPS = 3
"""Steps after which a program whose reason is removed ends."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program of a scenario, made to fail. gib: what it may take; failing, fixed: arguments of it."""

    scenario: str
    gib: float
    failing: dict[str, str | int | None]
    fixed: dict[str, str | int | None]
    holds: tuple[str, ...]
    """Owners; the largest of them is the right one to name first."""


BATCH = "--per_device_train_batch_size"
CASES = {
    "sft_batch": Case("trl_sft", 8.0, {BATCH: 64}, {BATCH: 2}, ("logits", "activations")),
    "reward_batch": Case("trl_reward", 10.0, {BATCH: 64}, {BATCH: 2}, ("activations",)),
    "dpo_state": Case("trl_dpo", 8.0, {BATCH: 1}, {BATCH: 1, "--optim": "sgd"}, ("optimizer_state", "weights")),
    "bert_state": Case("accelerate_bert", 1.6, {}, {}, ("optimizer_state", "weights")),
}


def run_here(name: str, fixed: bool) -> None:
    """Runs the program in this process until it fails, or for STEPS steps, after which it prints what it holds."""
    case = CASES[name]
    entry = scenario(case.scenario)
    assert entry.program is not None
    fix = Fix("", "", None, arguments=case.fixed if fixed else case.failing)
    os.environ |= variables(entry.program, fix)
    import torch

    if torch.cuda.is_available() and not fixed:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(case.gib * GIB / total, 1.0))
    _end_after(STEPS if fixed or not torch.cuda.is_available() else 100)
    os.chdir(workplace(entry.program, Path(tempfile.mkdtemp(prefix="program-")), fix))
    kind, *words = command(entry.program, fix, not torch.cuda.is_available())
    assert kind == "-m"
    sys.argv[1:] = words[1:]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _end_after(count: int) -> None:
    """Ends the process after that many optimizer steps, and prints what its tensors take by owner."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = 0

    def stepped(optimizer: torch.optim.Optimizer, *_) -> None:
        nonlocal done
        done += 1
        if done < count:
            return
        weights = [one for group in optimizer.param_groups for one in group["params"]]
        state = [one for held in optimizer.state.values() for one in held.values() if torch.is_tensor(one)]
        held = {
            "weights": _bytes(weights),
            "gradients": _bytes([one.grad for one in weights if one.grad is not None]),
            "optimizer_state": _bytes([one for one in state if one.device.type != "cpu" or one.ndim]),
            "peak": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        }
        print("\nholds", json.dumps(held), flush=True)
        os._exit(0)

    register_optimizer_step_post_hook(stepped)


def _bytes(tensors: list[Any]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def measured(name: str, folder: Path, end: float) -> dict[str, Any]:
    """What gpuprof says of the failed program, and what the other one holds."""
    out = folder / name
    words = ["-m", "benchmarks.oom_owners", "--run", name]
    begun = time.monotonic()
    trace = ("-m", "gpuprof", "trace", "--memory", "--no-report", "--out", str(out))
    failed = _ran([*trace, *words], folder / f"{name}.log", end)
    line: dict[str, Any] = {"program": name, "code": failed, "seconds": round(time.monotonic() - begun, 1)}
    answer = subprocess.run(
        [sys.executable, "-m", "gpuprof", "memory", str(out), "--json"], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        line["why"] = answer.stderr.strip().splitlines()[-1:]
    else:
        (folder / f"{name}.memory.json").write_text(answer.stdout)
        line |= _named(json.loads(answer.stdout), CASES[name])
    log = folder / f"{name}.fixed.log"
    line["fixed_code"] = _ran([*words, "--fixed"], log, end)
    held = [text for text in log.read_text(errors="replace").splitlines() if text.startswith("holds ")]
    line["holds"] = json.loads(held[-1].removeprefix("holds ")) if held else None
    return line


def _named(said: dict[str, Any], case: Case) -> dict[str, Any]:
    """The owners at the moment of the failure, the largest first."""
    for device in said.get("devices") or ():
        owners = {one["owner"]: one["bytes"] for one in device["peak"]["owners"]}
        owners = dict(sorted(owners.items(), key=lambda one: -one[1]))
        first = next(iter(owners), None)
        return {"owners": owners, "first": first, "right": first in case.holds, "failure": device.get("failure")}
    return {"owners": None}


def _ran(words: list[str], log: Path, end: float) -> int | None:
    """Exit code; None where it was ended because the time was over."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=subprocess.STDOUT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(max(end - time.monotonic(), 1.0))
        process.kill()
        process.wait()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--out", type=Path, help="a folder for what is found")
    parser.add_argument("--within", type=float, default=190.0, metavar="S", help="end everything after S seconds")
    parser.add_argument("--tiny", action="store_true", help="one program at a time, for a machine without a GPU")
    parser.add_argument("--run", choices=CASES, help="the program itself, in this process")
    parser.add_argument("--fixed", action="store_true", help="with --run: with the reason removed")
    asked = parser.parse_args()
    if asked.run:
        run_here(asked.run, asked.fixed)
        return 0
    if asked.out is None:
        parser.error("--out is needed")
    if unknown := [name for name in asked.names if name not in CASES]:
        parser.error(f"no program is named {unknown[0]}")
    end = time.monotonic() + asked.within
    asked.out.mkdir(parents=True, exist_ok=True)
    material.make("texts")
    with ThreadPoolExecutor(1 if asked.tiny else len(CASES)) as pool:
        lines = list(pool.map(lambda name: measured(name, asked.out.resolve(), end), asked.names or CASES))
    (asked.out / "owners.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in lines:
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())

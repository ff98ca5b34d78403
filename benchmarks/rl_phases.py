"""Phases of TRL iterations as gpuprof times them, next to wall clocks put around them by hand; and measured changes.

    python -m benchmarks.rl_phases --out DIR [--shape 0.1b] [--tokens 80] [--seconds 95]

Three processes build their models at the same time and train one after another: GRPO and RLOO under `gpuprof trace`
with clocks around the methods of the trainer, then GRPO without gpuprof, as it is and with each of CHANGES.
DIR/phases.json has the ratio of each phase, DIR/changes.jsonl the milliseconds of an iteration of each change, and
DIR/grpo and DIR/rloo are the recordings.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

TRACED = ("grpo", "rloo")
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "half the completion length": {"tokens": 0.5},
    "twice the generations": {"batch": 2, "generations": 2},
    "rewards at the same time": {"parallel": True},
    "static cache": {"static_cache": True},
    "as it is again": {},
}
"""What each change multiplies (numbers) or sets."""
SETTLE, TIMED = 1, 3
"""Iterations of each change that are not timed, and that are."""
UNPROFILED = ("settle", "baseline_free", "baseline_sync", "sampling")
TRAINING = ("forward", "backward")
"""What the clocks call training."""


def compared(lines: list[dict[str, Any]], clocks: dict[str, Any]) -> dict[str, Any]:
    """Of the unprofiled steps: share of their time outside of other and idle, and per phase the clocks' median
    milliseconds and gpuprof's over theirs, the median over the steps."""
    found: dict[str, list[tuple[int, int]]] = {}
    total = covered = count = 0
    for line in lines:
        phases, number = line.get("phases_ns"), line["step"] - 1
        if line["stage"] not in UNPROFILED or not phases or number >= len(clocks["steps"]):
            continue
        count += 1
        total += line["ns"]
        covered += line["ns"] - phases.get("other", 0) - phases.get("idle", 0)
        for name, ns in clocks["steps"][number].items():
            mine = sum(phases.get(part, 0) for part in (TRAINING if name == "training" else (name,)))
            found.setdefault(name, []).append((ns, mine))
    phases = {}
    for name, both in found.items():
        ns = statistics.median(clock for clock, _ in both)
        # Step by step: one in which the process was stopped between the two clocks says nothing of either.
        ratio = statistics.median(mine / clock for clock, mine in both if clock) if ns else None
        phases[name] = {"ms": round(ns / 1e6, 3), "ratio": None if ratio is None else round(ratio, 4)}
    return {"steps": count, "ms": total / max(count, 1) / 1e6, "covered": covered / max(total, 1), "phases": phases}


# -- the processes


def _wait(turn: Path) -> None:
    """Until it is this process's turn."""
    turn.with_suffix(".ready").touch()
    while not turn.exists():
        time.sleep(0.02)


def _traced(job: Any, folder: Path, model: Path) -> None:
    from scenarios.support import rl

    clocks = rl.Clocks()
    trainer = rl.build(replace(job, steps=200), model, folder / "trainer", [clocks.callback()])
    clocks.put_around(trainer)
    _wait(folder / f"{job.trainer}.turn")
    try:
        trainer.train()
    finally:
        text = json.dumps({"steps": clocks.steps, "ns": clocks.step_ns})
        (folder / f"{job.trainer}.clocks.json").write_text(text, encoding="utf-8")
        (folder / f"{job.trainer}.done").touch()


def _changes(job: Any, folder: Path, model: Path, rounds: list[str]) -> None:
    import torch

    from scenarios.support import rl

    first = True
    for name in rounds:
        clocks = rl.Clocks()
        small = replace(rl.changed(job, CHANGES[name]), steps=SETTLE + TIMED)
        trainer = rl.build(small, model, folder / "trainer", [clocks.callback()])
        clocks.put_around(trainer)
        if first:
            _wait(folder / "changes.turn")
            first = False
        trainer.train()
        each = [ns / 1e6 for ns in clocks.step_ns[SETTLE:]]
        phases = {p: sum(s[p] for s in clocks.steps[SETTLE:]) / len(each) / 1e6 for p in rl.PHASES}
        line = {"change": name, "ms": sum(each) / len(each), "each_ms": each, "phases_ms": phases}
        with (folder / "changes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name:30} {line['ms']:8.1f} ms  {[round(ms) for ms in each]}", flush=True)
        del trainer
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    (folder / "changes.done").touch()


def _drive(out: Path, words: list[str], seconds: float) -> int:
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    model = out / "model"
    shape = words[words.index("--shape") + 1]
    root = Path(__file__).parent.parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))), "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip
    save = "from scenarios.support import rl; rl.save_model(rl.Path(sys.argv[1]), sys.argv[2])"
    subprocess.run([sys.executable, "-c", f"import sys; {save}", str(model), shape], check=True, env=environment)
    processes = {}
    for name in (*TRACED, "changes"):
        run = ["-m", "benchmarks.rl_phases", "--out", str(out), "--run", name, *words]
        trace = ["-m", "gpuprof", "trace", "--no-report", "--stop", "--out", str(out / name)]
        with (out / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(
                [sys.executable, *(trace if name in TRACED else []), *run], env=environment, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def until(name: str, path: Path) -> None:
        while not path.exists() and processes[name].poll() is None and time.monotonic() - begun < seconds:
            time.sleep(0.02)

    for name in processes:
        until(name, out / f"{name}.ready")
    print(f"built after {time.monotonic() - begun:.0f} s", flush=True)
    for name in processes:
        at = time.monotonic()
        (out / f"{name}.turn").touch()
        until(name, out / f"{name}.done")
        print(f"{name}: {time.monotonic() - at:.0f} s", flush=True)
    for name, process in processes.items():
        try:
            process.wait(max(seconds + 20 - (time.monotonic() - begun), 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)
            print(f"{name}: ended, the seconds are over", flush=True)
    found = {}
    for name in TRACED:
        clocks, steps = out / f"{name}.clocks.json", out / name / "steps.jsonl"
        if clocks.exists() and steps.exists():
            lines = [json.loads(line) for line in steps.read_text(encoding="utf-8").splitlines()]
            found[name] = compared(lines, json.loads(clocks.read_text(encoding="utf-8")))
            print(name, json.dumps(found[name]), flush=True)
        else:
            print(f"{name} FAILED", "\n".join((out / f"{name}.log").read_text().splitlines()[-12:]), flush=True)
    (out / "phases.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print((out / "changes.log").read_text(errors="replace")[-1500:])
    return 0 if len(found) == len(TRACED) else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="phases of TRL iterations, next to clocks put there by hand")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--shape", default="0.1b")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--wait", type=float, default=0.15)
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--run", default="")
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    words = ["--shape", given.shape]
    for name in ("tokens", "batch", "wait"):
        words += [f"--{name}", str(getattr(given, name))]
    if not given.run:
        return _drive(out, words, given.seconds)
    import torch

    from scenarios.support import rl

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    trainer = given.run if given.run in TRACED else "grpo"
    job = rl.Job(
        trainer=trainer, shape=given.shape, batch=given.batch, generations=given.batch // 2, tokens=given.tokens,
        wait_s=given.wait,
    )  # fmt: skip
    if given.run in TRACED:
        _traced(job, out, out / "model")
    else:
        _changes(job, out, out / "model", list(CHANGES))
    return 0


if __name__ == "__main__":
    sys.exit(main())

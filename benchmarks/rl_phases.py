"""Phases of TRL iterations as gpuprof times them, next to wall clocks put around them by hand; and measured changes.

    python -m benchmarks.rl_phases --out DIR [--shape 0.1b] [--tokens 80] [--seconds 300] [--only NAME ...]
                                  [--without NAME ...]
    python -m benchmarks.rl_phases --out DIR --predict
    python -m benchmarks.rl_phases --out DIR --compare [--recording RUN]
    python -m benchmarks.rl_phases --out DIR --truth

Each part of PARTS (rl_parts.py) is a process of its own. Those of a wave import, build and take first iterations at
the same time, and then train one after another, alone, each for one turn: GRPO, RLOO and online DPO under `gpuprof
trace` with clocks around the methods of the trainer; GRPO without gpuprof, as it is and with each of CHANGES; the
scenarios rl_*, as they are and with each fix. Further turns of all but the traced ones follow, in the opposite order
every other time, while there is time; then the next wave. A part that fails or takes too long ends alone, and most fail
before anything is timed.

DIR/results.jsonl has one line per result: of a traced part the ratio of each phase, of a change the milliseconds of its
iterations. DIR/grpo, DIR/rloo and DIR/online_dpo are the recordings, DIR/PART.log what each part printed.
--predict writes what the recording DIR/grpo predicts of each change to DIR/predicted.json, --compare prints it next to
what was measured (or what RUN predicts); --truth writes
truth.json of the scenarios.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.rl_measured import compare, predict, results, summary, truth
from benchmarks.rl_parts import (
    AT_ONCE,
    BASELINES,
    CHANGES,
    COMPILED,
    FIXED,
    PARTS,
    ROUNDS,
    SETTLE,
    TIMED,
    TRACED,
)

BEFORE = {"compiled_decode": 2}
"""Iterations that a change takes while it is built, if not one: the second one shows whether torch.compile compiles
again for a cache that was made again."""
SLOW = ("continuous_batching",)
"""Changes of which one iteration takes as long as a turn of the others: two are timed, in one turn."""
LONGEST_S = {"traced": 75.0, "change": 40.0}
"""A turn that takes longer is ended."""
BUILD_S = 120.0
"""A wave's first turn begins after this long, whatever is still being built."""
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


class Turn:
    """This process's turns: files in DIR that the driver and the process touch."""

    def __init__(self, folder: Path, name: str) -> None:
        self._at = folder / name
        self.number = 0
        self.begun = False
        """Whether there was a turn."""

    def wait(self) -> None:
        """Until it is this process's turn (again)."""
        self._at.with_suffix(f".ready{self.number}").touch()
        while not self._at.with_suffix(f".turn{self.number}").exists():
            time.sleep(0.02)
        if not self.begun:
            _priority(0)
        self.begun = True

    def done(self) -> None:
        """The turn is over."""
        self._at.with_suffix(f".done{self.number}").touch()
        self.number += 1


def _priority(nice: int) -> None:
    with contextlib.suppress(OSError):  # not every user may go back to 0; then all parts are alike
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def _traced(job: Any, folder: Path, model: Path) -> None:
    from scenarios.support import rl

    clocks, turn = rl.Clocks(), Turn(folder, job.trainer)
    trainer = rl.build(replace(job, steps=200), model, folder / "trainer" / job.trainer, [clocks.callback()])
    clocks.put_around(trainer)
    turn.wait()
    try:
        trainer.train()
    finally:
        text = json.dumps({"steps": clocks.steps, "ns": clocks.step_ns})
        (folder / f"{job.trainer}.clocks.json").write_text(text, encoding="utf-8")
        turn.done()


def _change(job: Any, name: str, folder: Path, model: Path) -> None:
    """One change: iterations that build what is built once, then turns, until the process is ended."""
    import logging

    from transformers import TrainerCallback

    from scenarios.support import rl

    if name in FIXED:
        job, model = _of_scenario(job, name, folder / "trainer" / name / "model")
    else:
        job = rl.changed(job, CHANGES[name])
    steps, timed = job.steps_per_iteration, timed_of(name)
    clocks, turn, left = rl.Clocks(), Turn(folder, name), BEFORE.get(name, 1) * steps
    collecting = Collecting()
    if job.continuous:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.INFO)  # when it warms up, starts and stops

    class Turns(TrainerCallback):
        """After the clocks: a turn's iterations are written, and the next turn is waited for."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            if turn.begun:
                _write(folder, name, turn.number, steps, clocks, collecting.ms / (SETTLE + timed))
                turn.done()
            turn.wait()
            clocks.begin()
            collecting.ms = 0.0
            left = (SETTLE + timed) * steps

    trainer = rl.build(replace(job, steps=10**6), model, folder / "trainer" / name, [clocks.callback(), Turns()])
    clocks.put_around(trainer)
    trainer.train()


def _of_scenario(usual: Any, name: str, model: Path) -> tuple[Any, Path]:
    """The job of a scenario's part, and the folder of its model. Without a GPU it is as small as the usual one."""
    import torch

    from scenarios.support import rl

    program = importlib.import_module(f"scenarios.{name.partition('-')[0]}.train")
    job = program.JOB
    if not torch.cuda.is_available():
        job = replace(job, shape=usual.shape, tokens=usual.tokens, wait_s=min(job.wait_s, usual.wait_s), bfloat16=False)
    rl.save_model(model, job.shape)
    return rl.changed(job, program.FIXES[FIXED[name]] if FIXED[name] else {}), model


def timed_of(name: str) -> int:
    """Iterations of a change that are timed in a turn."""
    return TIMED - 1 if name in SLOW else TIMED


class Collecting:
    """Milliseconds that Python collected garbage."""

    def __init__(self) -> None:
        self.ms = self._begun = 0.0
        gc.callbacks.append(self._seen)

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "stop":
            self.ms += (now - self._begun) * 1e3
        self._begun = now


def _write(folder: Path, name: str, number: int, steps: int, clocks: Any, collecting_ms: float) -> None:
    """Adds the turn's result: milliseconds of its iterations, and by phase their mean."""
    from scenarios.support import rl

    timed = timed_of(name)
    last = timed * steps
    each = clocks.step_ns[-last:]
    ms = [sum(each[i : i + steps]) / 1e6 for i in range(0, last, steps)]
    phases = {phase: sum(step[phase] for step in clocks.steps[-last:]) / timed / 1e6 for phase in rl.PHASES}
    _result(
        folder, part=name, kind="change", round=number, ms=round(sum(ms) / timed, 2),
        each_ms=[round(one, 2) for one in ms], collecting_ms=round(collecting_ms, 2),
        peak_mib=_peak_mib(), phases_ms={phase: round(value, 2) for phase, value in phases.items()},
    )  # fmt: skip


def _peak_mib() -> float | None:
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None


def _result(folder: Path, **line: Any) -> None:
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


# -- the driver


class Parts:
    """The processes of the parts, and how much time is left."""

    def __init__(self, out: Path, words: list[str], seconds: float) -> None:
        self.out, self.words, self.seconds = out, words, seconds
        self.begun = time.monotonic()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.monotonic() - self.begun)

    def start(self, names: list[str]) -> None:
        """Starts the parts of a wave, and waits until they are built. What compiles takes longest and is first."""
        at = time.monotonic()
        for name in sorted(names, key=lambda name: name not in COMPILED):
            self._start(name)
        while self.building() and self.left() > 0 and time.monotonic() - at < BUILD_S:
            time.sleep(0.1)
        print(f"built in {time.monotonic() - at:.0f} s; still building: {self.building()}", flush=True)

    def _start(self, name: str) -> None:
        run = ["-m", "benchmarks.rl_phases", "--out", str(self.out), "--run", name, *self.words]
        trace = ["-m", "gpuprof", "trace", "--no-report", "--stop", "--out", str(self.out / name)]
        compiles = {"TORCH_LOGS": "recompiles"} if name in COMPILED else {"TORCHDYNAMO_DISABLE": "1"}
        environment = _environment() | compiles
        with (self.out / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *(trace if name in TRACED else []), *run], env=environment, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def is_there(self, name: str, mark: str) -> bool:
        """Whether the part's file is there."""
        return (self.out / f"{name}.{mark}").exists()

    def ready(self, name: str, number: int = 0) -> bool:
        """Whether the part waits for this turn."""
        return self.alive(name) and self.is_there(name, f"ready{number}")

    def alive(self, name: str) -> bool:
        """Whether the part's process has been started and goes on."""
        return name in self.processes and self.processes[name].poll() is None

    def building(self) -> list[str]:
        """Parts that have been started and are not ready for their first turn."""
        return [name for name in self.processes if self.alive(name) and not self.is_there(name, "ready0")]

    def turn(self, name: str, number: int) -> float:
        """Lets the part have its turn, and returns how many seconds it took; ends it if it takes too long, or fails."""
        at, building = time.monotonic(), len(self.building())
        (self.out / f"{name}.turn{number}").touch()
        end = at + min(LONGEST_S["traced" if name in TRACED else "change"], self.left())
        while self.alive(name) and not self.is_there(name, f"done{number}") and time.monotonic() < end:
            time.sleep(0.02)
        took = time.monotonic() - at
        said = f"{took:.0f} s" + (f", {building} others were being built" if building else "")
        if self.is_there(name, f"done{number}"):
            print(f"{name}: {said}", flush=True)
            return took
        late = self.alive(name)
        self.end(name)
        self.failed(name, f"not done after {said}" if late else f"ended after {said}")
        return took

    def failed(self, name: str, why: str) -> None:
        """Says that a part failed, with the end of what it printed."""
        log = self.out / f"{name}.log"
        last = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
        _result(self.out, part=name, kind="failed", why=why, last=last)
        print(f"{name} FAILED: {why}", *last, sep="\n    ", flush=True)

    def end(self, name: str) -> None:
        """Ends the part's processes."""
        if name in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.processes[name].pid, signal.SIGKILL)
            self.processes[name].wait()


def _environment() -> dict[str, str]:
    root = Path(__file__).parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    alike = {"PYTHONHASHSEED": "0"}  # sets have the same order in all processes
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"} | alike


def _wave(parts: Parts, names: list[str], until: float) -> None:
    """Turns of the parts of a wave, and their end. until: seconds that are left for the other waves."""
    parts.start(names)
    changes = [name for name in names if name not in TRACED and name not in SLOW]
    later = [(name, number) for number in range(1, ROUNDS) for name in (changes[::-1] if number % 2 else changes)]
    waiting = [(name, 0) for name in names] + later
    took: dict[str, float] = {}
    while waiting and parts.left() > until:
        for name in {name for name, _ in waiting if not parts.alive(name)}:
            if name not in took:
                parts.failed(name, "ended before its turn")
            waiting = [one for one in waiting if one[0] != name]
        waiting = [one for one in waiting if took.get(one[0], 0.0) < parts.left() - until]
        ready = next(((name, number) for name, number in waiting if parts.ready(name, number)), None)
        if ready is None:
            time.sleep(0.1)
            continue
        waiting.remove(ready)
        name, number = ready
        took[name] = parts.turn(name, number)
        if name in TRACED:
            _phases(parts.out, name)
    for name in (name for name in names if name not in took and parts.alive(name)):
        parts.failed(name, "no time was left for its turn")
    for name in names:
        while name in TRACED and name in took and parts.alive(name) and parts.left() > 0:
            time.sleep(0.1)  # what a recording still writes
        parts.end(name)


def _drive(out: Path, words: list[str], seconds: float, only: list[str], without: list[str], at_once: int) -> int:
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in PARTS if (not only or name in only) and name not in without]
    parts = Parts(out, words, seconds)
    save = "from scenarios.support import rl; rl.save_model(rl.Path(sys.argv[1]), sys.argv[2])"
    command = [sys.executable, "-c", f"import sys; {save}", str(out / "model"), words[words.index("--shape") + 1]]
    subprocess.run(command, check=True, env=_environment())
    try:
        waves = [names[first : first + at_once] for first in range(0, len(names), at_once)]
        for i, wave in enumerate(waves):
            others = len(waves) - i - 1
            if parts.left() > 0:
                _wave(parts, wave, parts.left() * others / (others + 1))
    finally:
        for name in parts.processes:
            parts.end(name)
        for mark in (path for kind in ("ready", "turn", "done") for path in out.glob(f"*.{kind}?")):
            mark.unlink()
        for scratch in ("model", "trainer"):
            shutil.rmtree(out / scratch, ignore_errors=True)
    summary(out)
    print(f"ended after {seconds - parts.left():.0f} s", flush=True)
    there = {line["part"] for line in results(out) if line["kind"] in ("phases", "change")}
    return 0 if there >= set(names) else 1


def _phases(out: Path, name: str) -> None:
    """Writes the ratios of a traced part, if they are there."""
    clocks, steps = out / f"{name}.clocks.json", out / name / "steps.jsonl"
    if not clocks.exists() or not steps.exists():
        return
    lines = [json.loads(line) for line in steps.read_text(encoding="utf-8").splitlines()]
    found = compared(lines, json.loads(clocks.read_text(encoding="utf-8")))
    _result(out, part=name, kind="phases", **found)
    print(name, json.dumps(found), flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="phases of TRL iterations, next to clocks put there by hand")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--shape", default="0.1b")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--wait", type=float, default=0.15)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", default=[])
    parser.add_argument("--without", nargs="+", choices=PARTS, metavar="NAME", default=[])
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="processes of a wave")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--recording", type=Path, default=None, metavar="RUN")
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--run", default="")
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    words = ["--shape", given.shape]
    for name in ("tokens", "batch", "wait"):
        words += [f"--{name}", str(getattr(given, name))]
    if given.predict or given.compare or given.truth:
        return (
            predict(out)
            if given.predict
            else compare(out, given.recording or out / "grpo")
            if given.compare
            else truth(out)
        )
    if not given.run:
        return _drive(out, words, given.seconds, given.only, given.without, given.at_once)
    _priority(10)
    import torch

    from scenarios.support import rl

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    if given.run == BASELINES[0]:
        from scenarios.measure import machine, versions

        where = {"machine": machine(), "versions": versions()}
        words = {key: value for key, value in vars(given).items() if key not in ("out", "only", "without", "recording")}
        _result(out, part=given.run, kind="where", **where, **words)
    trainer = given.run if given.run in TRACED else "grpo"
    job = rl.Job(
        trainer=trainer, shape=given.shape, batch=given.batch, generations=given.batch // 2, tokens=given.tokens,
        wait_s=given.wait, bfloat16=torch.cuda.is_available() and trainer != "online_dpo",
    )  # fmt: skip
    if given.run in TRACED:
        _traced(job, out, out / "model")
    else:
        _change(job, given.run, out, out / "model")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fixes of scenarios that `gpuprof try` can apply from outside, measured as a user would, to compare with `--fix`.

The scenario's program runs unmodified, without its `--fix`. Where both were measured, they should agree.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from gpuprof.errors import GpuprofError
from gpuprof.record.launcher.command import Target
from gpuprof.record.patches import NAMES, patch_named
from gpuprof.report.terminal.trial_terminal import STATUS, gain
from gpuprof.trial.fixes import FixToTry
from gpuprof.trial.run_trial import run_trial
from gpuprof.trial.starter import Starter
from gpuprof.trial.trial import Trial, TriedFix
from gpuprof.trial.trial_json import dumps
from scenarios.catalogue import ROOT, Scenario
from scenarios.measure import launched
from scenarios.support import program

STEPS = 100_000
"""Steps of a training that is ended as soon as it is timed."""
_NUMBER = re.compile(r"workers=(\d+)")


def candidates(entry: Scenario) -> dict[str, FixToTry]:
    """The scenario's fix → the same from outside, for single fixes that `gpuprof try` has and that keep the work of a
    step."""
    found = {}
    for fix in entry.fixes:
        padded = fix.finding in ("recompiles", "planning") and "multiple" in fix.what
        name = "pad_to_multiple" if padded else fix.finding
        if name in NAMES and fix.work == 1.0 and not fix.also:
            patch = patch_named(name).PATCH
            number = _NUMBER.search(fix.what) if name == "input_workers" else None
            found[fix.name] = FixToTry(TriedFix(name, number[1] if number else patch.default), fix.finding)
    return found


def try_fixes(chosen: list[Scenario], rounds: int, out: Path, tiny: bool) -> int:
    """Tries what can be applied, one scenario after the other, and writes `out`/NAME.trial.json. Returns 1 if any
    scenario could not be timed."""
    failed = 0
    for entry in chosen:
        known = candidates(entry)
        if not known:
            print(f"{entry.name}: gpuprof try has none of its fixes", flush=True)
            continue
        try:
            trial = tried(entry, list(known.values()), rounds, tiny)
        except GpuprofError as error:
            print(f"{entry.name}: {error}", flush=True)
            failed = 1
            continue
        (out / f"{entry.name}.trial.json").write_text(dumps(trial) + "\n", encoding="utf-8")
        print(entry.name, *compared(trial, known, own_gains(out / f"{entry.name}.json")), sep="\n", flush=True)
    return failed


def tried(entry: Scenario, wanted: list[FixToTry], rounds: int, tiny: bool) -> Trial:
    """The trial of a scenario's program. Raises GpuprofError where it cannot be timed."""
    with place_of(entry, tiny) as argv, Starter(Target(argv, entry.name, argv[0], True, ()), network=False) as starter:
        return run_trial(
            starter, argv, wanted, run=None, world_size=entry.gpus if entry.launcher == "torchrun" else 1,
            budget_s=math.inf, rounds=rounds, tell=lambda _: None,
        )  # fmt: skip


@contextlib.contextmanager
def place_of(entry: Scenario, tiny: bool) -> Iterator[tuple[str, ...]]:
    """The command of a scenario's program. Within the block, this process has the program's working directory and
    environment."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))}
    if entry.program is None:
        with variables(paths):
            yield (*launched(entry), "-m", entry.module, "--steps", str(STEPS))
        return
    parts = sorted(entry.program.material)
    subprocess.run([sys.executable, "-m", "scenarios.support.material", *parts], check=True, cwd=ROOT.parent)
    with tempfile.TemporaryDirectory(prefix="programs-") as folder, contextlib.ExitStack() as back:
        back.callback(os.chdir, Path.cwd())
        os.chdir(program.workplace(entry.program, Path(folder)))
        back.enter_context(variables(paths | program.variables(entry.program, None)))
        yield (*launched(entry), *program.command(entry.program, None, tiny))


@contextlib.contextmanager
def variables(more: dict[str, str]) -> Iterator[None]:
    """Sets environment variables within the block."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def own_gains(file: Path) -> dict[str, float]:
    """Fix → the gain that `python -m scenarios measure` measured with `--fix`; empty where it did not."""
    try:
        processes = json.loads(file.read_text(encoding="utf-8"))["processes"]
    except (OSError, ValueError, KeyError):
        return {}
    steps: dict[str, list[float]] = {}
    for process in processes:
        steps.setdefault(process["fix"], []).append(process["free_ms"])
    base = steps.pop("", None)
    return {fix: mean(base) / mean(found) for fix, found in steps.items()} if base else {}


def compared(trial: Trial, known: dict[str, FixToTry], own: dict[str, float]) -> Iterator[str]:
    """A line for each fix: its gain from outside, and by the program's own `--fix`."""
    rows = {row.fixes: row for row in trial.rows}
    for name, candidate in known.items():
        row = rows[(candidate.fix,)]
        outside = gain(row.speedup) if row.speedup else row.reason
        by_hand = f"{own[name]:.2f}×" if name in own else "not measured"
        yield f"  {name:18} {candidate.fix}: {STATUS[row.status]}, {outside}   --fix {name}: {by_hand}"

"""Records scenarios with `gpuprof trace`, one after the other.

The next one starts as soon as a training has ended: gpuprof reads the recording while the next one imports its
packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scenarios.catalogue import ROOT, Fix, Scenario
from scenarios.measure import LONGEST_S, launched
from scenarios.support import program

STEPS = 400
"""Steps of a training that is recorded: more than the recording needs, which ends the training."""


def traced(entry: Scenario, fix: Fix | None, out: Path, tiny: bool) -> list[str]:
    """The command of `gpuprof trace` for a scenario, into the folder `out`."""
    python, *rest = launched(entry)
    words = [python, "-m", "gpuprof", "trace", "--no-report", "--out", str(out), *entry.trace]
    words += ["--stop"] if entry.stops else []
    if entry.program is not None:
        return [*words, *program.command(entry.program, fix, tiny)]
    switches = ["--fix", fix.name] if fix else []
    steps = [] if tiny else ["--steps", str(max(STEPS, 2 * (entry.free or 0)))]
    return [*words, *rest, "-m", entry.module, *steps, *switches]


def record(chosen: list[Scenario], out: Path, fix: str = "", within_s: float | None = None) -> int:
    """Records each into `out`/NAME, with its output in `out`/logs. Returns 1 if any failed.

    `fix`: records with it, into NAME.FIX; `within_s`: after this many seconds none is started.
    """
    begun = time.monotonic()
    tiny = is_tiny()
    logs = out.resolve() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    parts = {part for entry in chosen if entry.program for part in entry.program.material}
    if parts:
        subprocess.run(
            [sys.executable, "-m", "scenarios.support.material", *sorted(parts)], check=True, cwd=ROOT.parent
        )
    started: list[tuple[Scenario, subprocess.Popen[bytes]]] = []
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        for entry in chosen:
            if within_s is not None and time.monotonic() - begun > within_s:
                print(f"not recorded, the time is over: {entry.name}", flush=True)
                continue
            change = entry.fix(fix)
            if change is not None and change.patch:
                raise KeyError(f"{entry.name}: {fix} is made by gpuprof try in a timed process; it cannot be recorded")
            name = f"{entry.name}.{fix}" if fix else entry.name
            run = out.resolve() / name
            where = ROOT.parent
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])}
            if entry.program is not None:
                where = Path(folder) / name
                where.mkdir()
                program.workplace(entry.program, where, change)
                environment |= program.variables(entry.program, change)
            at = time.monotonic()
            with (logs / f"{name}.trace.log").open("wb") as log:
                process = subprocess.Popen(
                    traced(entry, change, run, tiny), stdout=log, stderr=subprocess.STDOUT, cwd=where, env=environment
                )
            started.append((entry, process))
            await_end_of_training(run, process)
            print(f"{time.monotonic() - begun:5.0f} s  {name}: {time.monotonic() - at:.0f} s", flush=True)
        for _, process in started:
            process.wait()
    failed = [entry.name for entry, process in started if process.returncode]
    print(f"failed: {', '.join(failed)}" if failed else "all recorded", flush=True)
    return int(bool(failed))


def await_end_of_training(run: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until the training has ended; ends it if it takes too long."""
    end = time.monotonic() + LONGEST_S
    while process.poll() is None:
        time.sleep(0.2)
        with contextlib.suppress(OSError, ValueError):
            if json.loads((run / "manifest.json").read_text(encoding="utf-8"))["status"] != "running":
                return
        if time.monotonic() > end:
            process.terminate()


def is_tiny() -> bool:
    """Whether this machine has no GPU, found without importing torch in this process."""
    code = "import sys, torch; sys.exit(torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0

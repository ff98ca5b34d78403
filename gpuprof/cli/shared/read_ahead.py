"""What the process that reads a recording does before it can begin: it loads its code while the training starts, and
reads the trace while the training's last unprofiled steps are sampled."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import runfile
from gpuprof.record.launcher.machine import usable_cores
from gpuprof.units import Assumed, Cores, Measured, Ms, Seconds

if TYPE_CHECKING:
    from gpuprof.tracefile.recording import Recording

DEMO = files("gpuprof") / "data" / "demo.json.gz"
"""The recording that comes with the package."""
DEMO_UNPROFILED_MS: Measured[Ms] = 81.0
"""Its step timed without a profiler: the middle of 70.2–91.9 ms, measured in fresh processes."""
PATIENCE_S: Assumed[Seconds] = 8.0
"""The verdict waits this long for steps that are sampled after the window: twice what sampling takes, unless steps are
long."""
WRITTEN_S: Assumed[Seconds] = 5.0
"""It waits this long at most for the sampling process to write its samples: usually 0.1 s."""
LOOK_S: Assumed[Seconds] = 0.05
FEWEST_CORES: Assumed[Cores] = 4
"""With fewer cores, reading the trace would slow down the steps that are being sampled."""


def prepare() -> None:
    """Loads everything that a diagnosis needs, and compiles what is not compiled yet, by a diagnosis of the demo
    recording. What fails here fails again where it is reported."""
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()), as_file(DEMO) as path:
        import gpuprof
        from gpuprof.cli.shared.output import drawn  # noqa: F401 (loaded for later)
        from gpuprof.report.terminal.terminal import render
        from gpuprof.tracefile.kineto.reader import read_kineto

        trace = read_kineto(path, path.stat().st_size, small_bytes=0)
        render(gpuprof.diagnose(trace, step_ms=DEMO_UNPROFILED_MS), 100)


def is_wanted() -> bool:
    """Waits until the launcher says, on standard input, that the trace is complete; False if it has ended."""
    return bool(sys.stdin.readline())


@dataclass(slots=True)
class Laps:
    """When each part of the work on a verdict ended."""

    ends: list[tuple[str, int]] = field(default_factory=list)
    """(name, unix ns), in order."""

    def end(self, name: str) -> None:
        """A part has ended."""
        self.ends.append((name, time.time_ns()))


def read(folder: Path, running: bool) -> Recording:
    """The recording in a run's folder; where it is of one process its trace has been read. running: the training still
    runs. Raises GpuprofError."""
    from gpuprof.tracefile.recording import resolve

    found = resolve(folder)
    if not running or usable_cores() < FEWEST_CORES:
        return found
    run = found.run
    if found.kind == "run" and run is not None and run.nsys is None and run.trace is not None:
        contents = found.read()
        if contents.trace is not None:
            found = replace(found, loaded=contents.trace)
    return found


def wait_for_samples(folder: Path) -> None:
    """Waits until the steps that are sampled after the window are over, or the training has ended."""
    until = time.monotonic() + PATIENCE_S
    while samples_follow(runfile.ranks_in(folder)) and time.monotonic() < until:
        if (runfile.read_json(folder / runfile.MANIFEST) or {}).get("ended") is not None:
            break
        time.sleep(LOOK_S)
    wait_for_sampler(folder)


def wait_for_sampler(folder: Path) -> None:
    """Waits until the samples of the lowest recorded rank are written, if a process is writing them: the sampled steps,
    or the training, may have ended a moment ago."""
    ranks = runfile.ranks_in(folder)
    file = folder / runfile.samples_file(ranks[0].get("rank") or 0) if ranks else None
    until = time.monotonic() + WRITTEN_S
    while file is not None and runfile.is_being_written(file) and time.monotonic() < until:
        time.sleep(LOOK_S)


def is_worth_showing_early(folder: Path) -> bool:
    """Whether the verdict would wait for samples, and a core is free to make it without them."""
    return usable_cores() >= FEWEST_CORES and samples_follow(runfile.ranks_in(folder))


def samples_follow(ranks: list[dict[str, Any]]) -> bool:
    """Whether the lowest recorded rank still samples steps after its windows, or is about to, because the length of the
    training is not known. ranks: what they have written about themselves, while the training runs."""
    if not ranks or ranks[0].get("steps_total") is not None:
        return False
    stages = [one for one in ranks[0].get("stages") or () if isinstance(one, dict)]
    return bool(stages) and stages[-1].get("stage") != "after"

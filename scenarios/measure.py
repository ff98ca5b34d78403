"""Times scenarios, unmodified and with each fix: fresh alternating processes, without a profiler.

Imports, models and first steps take longer than the timing, and disturb nothing while nothing is timed. All processes
of a round are started at once. Each waits until it may continue before it builds its model, again after its first
steps, and a last time before it ends. They are timed one at a time: unmodified, with the first fix, with the second,
unmodified again, and so on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from scenarios.catalogue import Scenario
from scenarios.support.run import FREE, GATE, PROCESS, SETTLE, SYNCHRONISED

STARTED_AT_ONCE = 64
"""Processes that wait after their imports: each takes about 0.7 GB of host memory."""
BUILT_AT_ONCE, SHARE = 16, 0.93
"""Processes of a scenario that have a model at the same time, and the share of the GPU that they may take together."""
NO_GPU_GIB = 130.0
"""Used where no GPU reports its memory, as on a machine without one, where models are tiny."""
RECORDED = 80
"""Steps of a training that is recorded, also without a GPU: about 40 pass before the window opens."""
LONGEST_S = 240.0
"""A process that takes longer between two gates is ended."""
ENDS_S = 40.0
"""Seconds from the request to end until the end: torchrun waits 30 s for its workers before it kills them."""
VERSIONS = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "unsloth")
HOW = (
    f"Each process: {SETTLE} steps to settle (more where workers prepare batches ahead), {FREE} or more timed as one"
    f" stretch (free_ms: a step of it), {SYNCHRONISED} (1 after a longer stretch) each closed by a synchronisation"
    " (synchronised_ms). Fresh processes took turns, as it is and with each fix; no profiler was in any of them."
)


@dataclass
class Timed:
    """One process: its number in the order of the turns, its output and its times."""

    entry: Scenario
    fix: str
    number: int
    log: Path
    process: subprocess.Popen | None = None
    data: str = ""
    timing: dict[str, Any] | None = None
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.entry.name}.{self.number}"

    @property
    def ranks(self) -> int:
        """Number of processes that torchrun starts for it; each waits at the gates."""
        return self.entry.gpus if self.entry.launcher == "torchrun" else 1

    @property
    def command(self) -> list[str]:
        free = ["--free", str(self.entry.free)] if self.entry.free else []
        free += ["--drained", str(self.entry.drain)] if self.entry.drain else []
        return [*launched(self.entry), *self.entry.words, "--timed", *free, *self.switches]

    @property
    def switches(self) -> list[str]:
        options = {"--fix": self.fix, "--data": self.data}
        return [word for name, value in options.items() if value for word in (name, value)]

    def start(self, gate: str) -> None:
        """Starts it as the leader of a process group, so that `end_all` also reaches its children."""
        environment = os.environ | {GATE: gate, PROCESS: self.name}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    @property
    def over(self) -> bool:
        """Whether it has ended, or was never started."""
        return self.process is None or self.process.poll() is not None

    def finish(self) -> None:
        """Waits for its end and reads its times."""
        if self.process is None:
            return
        try:
            self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            end_all([self])
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        entry = [line for line in lines if line.startswith("timing {")]
        self.timing = json.loads(entry[-1].removeprefix("timing ")) if entry else None
        if self.timing is None:
            self.why = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")


@dataclass
class Recorder(Timed):
    """`gpuprof trace`, whose training waits for its turn before it builds its model."""

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def folder(self) -> Path:
        return self.log.parent.parent / self.name.removesuffix(".trace")

    @property
    def command(self) -> list[str]:
        python, *rest = launched(self.entry)
        words = [python, "-m", "gpuprof", "trace", "--no-report", "--out", str(self.folder)]
        words += [*self.entry.trace, *(["--stop"] if self.entry.stops else [])]
        # There are enough free-running steps for their mean, and the window comes after them.
        steps = max(RECORDED, 2 * (self.entry.free or 0))
        return [*words, *rest, "-m", self.entry.module, "--steps", str(steps), *self.switches]

    def await_end_of_training(self) -> None:
        """Waits for the training's end, after which gpuprof reads the recording."""
        manifest = self.folder / "manifest.json"
        while not self.over:
            time.sleep(0.2)
            with contextlib.suppress(OSError, ValueError):
                if json.loads(manifest.read_text(encoding="utf-8"))["status"] != "running":
                    return


class Named(Protocol):
    """A process that comes to a gate."""

    @property
    def name(self) -> str: ...


class Gates:
    """Where processes wait until they may continue."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting: dict[str, list[socket.socket]] = defaultdict(list)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen(2 * STARTED_AT_ONCE)
        self.server.settimeout(0.05)

    def waits(self, process: Timed) -> bool:
        """Whether all its ranks wait here."""
        return len(self.waiting[process.name]) >= process.ranks

    def accept(self) -> None:
        """Accepts processes that arrive, for 0.05 s."""
        with contextlib.suppress(TimeoutError):
            visitor, _ = self.server.accept()
            self.waiting[visitor.recv(100).decode()].append(visitor)

    def await_all(self, processes: list[Timed]) -> None:
        """Waits until each is here or has ended, and ends those that take too long."""
        end = time.monotonic() + LONGEST_S
        while not all(self.waits(process) or process.over for process in processes):
            self.accept()
            if time.monotonic() > end:
                end_all([process for process in processes if not self.waits(process)])

    def open(self, process: Named) -> None:
        """Lets it continue, if it waits."""
        for visitor in self.waiting.pop(process.name, []):
            with visitor, contextlib.suppress(OSError):
                visitor.sendall(b".")


def measure(chosen: list[Scenario], rounds: int, out: Path | None, record: int = 0, data: str = "") -> int:
    """Times the scenarios, and writes the results of each. Returns 1 if a process of any failed.

    `out`: the folder for NAME.json and the processes' output; None: truth.json next to the scenario's program.
    `record`: number of variants that `gpuprof trace` records into `out`: NAME, unmodified, then NAME.FIX.
    `data`: which lengths, where a scenario has several.
    """
    timed: dict[str, list[Timed]] = {entry.name: [] for entry in chosen}
    reading: list[Recorder] = []
    started: list[Timed] = []
    with tempfile.TemporaryDirectory(prefix="scenarios-") as folder, contextlib.ExitStack() as whatever_happens:
        whatever_happens.callback(end_all, started)
        logs = (out or Path(folder)) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        gates = Gates(f"{folder}/gate")
        groups = [group for entry in chosen for group in grouped(entry, rounds, logs, data)]
        for wave in waves(groups):
            last = [group[0].entry for group in wave if group[-1].number + 1 == rounds * len(group[0].entry.variants())]
            recorders = {entry.name: recorders_of(entry, record, logs, data) for entry in last}
            everyone = [process for processes in (*wave, *recorders.values()) for process in processes]
            started += everyone
            for process in everyone:
                process.start(gates.path)
            gates.await_all(everyone)
            for group in wave:
                take_turns(group, gates, reading)
                entry = group[0].entry
                timed[entry.name] += group
                if len(timed[entry.name]) == rounds * len(entry.variants()):
                    write(entry, timed[entry.name], out)
                    print(f"{time.strftime('%X')} {entry.name}", flush=True)
                    print(*summary(entry, timed[entry.name]), sep="\n", flush=True)
                    for recorder in recorders[entry.name]:
                        gates.open(recorder)
                        recorder.await_end_of_training()
                        reading.append(recorder)
        for recorder in reading:
            recorder.finish()
    return int(any(process.timing is None for processes in timed.values() for process in processes))


def recorders_of(entry: Scenario, count: int, logs: Path, data: str) -> list[Recorder]:
    """One for each of the first `count` variants."""
    names = {fix: f"{entry.name}.{fix}" if fix else entry.name for fix in entry.variants()[:count]}
    return [Recorder(entry, fix, -1, logs / f"{name}.trace.log", data=data) for fix, name in names.items()]


def grouped(entry: Scenario, rounds: int, logs: Path, data: str) -> list[list[Timed]]:
    """The processes of a scenario in the order of their turns, split into those that fit the GPU together."""
    at_once = max(1, min(BUILT_AT_ONCE, int(gpu_gib() / entry.gib)))
    order = [fix for _ in range(rounds) for fix in entry.variants()]
    processes = [Timed(entry, fix, i, logs / f"{entry.name}.{i}.log", data=data) for i, fix in enumerate(order)]
    return [processes[i : i + at_once] for i in range(0, len(processes), at_once)]


def waves(groups: list[list[Timed]]) -> Iterator[list[list[Timed]]]:
    """Groups whose processes are started together."""
    wave: list[list[Timed]] = []
    for group in groups:
        if wave and sum(map(len, wave)) + len(group) > STARTED_AT_ONCE:
            yield wave
            wave = []
        wave.append(group)
    if wave:
        yield wave


def take_turns(group: list[Timed], gates: Gates, reading: list[Recorder]) -> None:
    """Builds all models, times one process after the other, and ends them all.

    Before the first is timed, it waits for recordings that are still being read.
    """
    for process in group:
        gates.open(process)
    gates.await_all(group)
    for recorder in reading:
        recorder.finish()
    for process in group:
        gates.open(process)
        gates.await_all([process])
    for process in group:
        gates.open(process)
    for process in group:
        process.finish()


def end_all(processes: list[Timed]) -> None:
    """Ends the processes that still run, with their children.

    torchrun's workers have their own sessions, which our signals to a group do not reach: so all processes are first
    asked to end, and torchrun ends its workers. An interruption meanwhile, such as a second Ctrl-C, ends the waiting.
    """
    running = [process.process for process in processes if process.process is not None and not process.over]
    for process in running:
        os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + ENDS_S
    try:
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):  # the group is empty
                os.killpg(process.pid, signal.SIGKILL)


def launched(entry: Scenario) -> list[str]:
    """How the scenario's processes are started."""
    if entry.launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={entry.gpus}"]
    return [sys.executable]


def write(entry: Scenario, processes: list[Timed], out: Path | None) -> None:
    """Writes the times, with the machine and the versions."""
    timings = [process.timing for process in processes if process.timing is not None]
    truth = {"how": HOW, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "machine": machine(), "versions": versions()}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in truth.items()]
    body = ",\n".join(f"  {json.dumps(rounded(timing))}" for timing in timings)
    target = entry.folder / "truth.json" if out is None else out / f"{entry.name}.json"
    target.write_text("\n".join(["{", *lines, f' "processes": [\n{body}\n ]', "}", ""]), encoding="utf-8")


def rounded(timing: dict[str, Any]) -> dict[str, Any]:
    """The times rounded to microseconds."""

    def short(value: Any) -> Any:
        return [short(each) for each in value] if isinstance(value, list) else round(value, 3)

    return {key: value if value is None or isinstance(value, str) else short(value) for key, value in timing.items()}


def summary(entry: Scenario, processes: list[Timed]) -> Iterator[str]:
    """The step times of each variant, by process."""
    for fix in entry.variants():
        same = [process for process in processes if process.fix == fix]
        free = " ".join(f"{p.timing['free_ms']:.1f}" if p.timing else "–" for p in same)
        peak = max((p.timing["peak_mib"] or 0 for p in same if p.timing), default=0) / 1024
        closed = [statistics.median(p.timing["synchronised_ms"]) for p in same if p.timing]
        times = f"free {free}   synchronised {' '.join(f'{ms:.1f}' for ms in closed)}"
        yield f"  {fix or 'as it is':18} {times}   {peak:.1f} GiB"
        yield from sorted({f"  failed: {process.why}" for process in same if process.why})


@functools.cache
def gpu_gib() -> float:
    """GPU memory that the processes may take together, GiB."""
    with contextlib.suppress(IndexError, ValueError):  # no line, or one that says that it cannot tell
        return float(asked_of_gpus("memory.total")[0].split()[0]) / 1024 * SHARE
    return NO_GPU_GIB


def asked_of_gpus(what: str) -> list[str]:
    """A line for each GPU; empty without nvidia-smi."""
    words = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True).stdout.splitlines() if shutil.which(words[0]) else []


def machine() -> dict[str, Any]:
    """The machine."""
    gpus = asked_of_gpus("name,driver_version")
    return {"gpus": gpus, "cpus": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found

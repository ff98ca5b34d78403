"""What `gpuprof trace` costs a training: at its start, in every step outside the window, and after the window.

    python -m benchmarks.overhead --rounds 7
    python -m benchmarks.overhead --only hooks_after --only hooks_baseline --json -
    python -m benchmarks.overhead --control
    python -m benchmarks.overhead --only baseline --together      # where there are cores to spare

Exits with 1 if a limit is missed. The figures:

start           `gpuprof trace python -c pass` less `python -c pass`, wall time of the whole command.
step            A small LoRA-like training: the time of a step once the window is closed and the recording has been
                read, over that of the same training without gpuprof. What runs next to it (telemetry, the launcher)
                runs on.
hooks after     The same difference of a step with nothing in it, in microseconds: what gpuprof itself does in a
                step once it is done. It is the same for every training, so this is the precise measure; the limit
                is 1 % of a step of a millisecond.
hooks baseline  The same while unprofiled steps are timed: the DataLoader, every backward pass and every call of the
                model are looked at, and every step is written down.
baseline        The time of a step of that small training while unprofiled steps are timed, over that of the same
                training without gpuprof.
before, after   Within one traced process: an unprofiled step after the window over one of the baseline before it.
                What a profiler leaves behind on a GPU shows here, and is judged there only. The first steps after
                the window are left out: they find the caches cold.
while read      A step while the recording is being diagnosed and compressed during the training, which takes some
                seconds, over a later one. On a machine with few cores this takes from the training.
reported        The unprofiled step of a traced training as its steps.jsonl reports it, over the same steps of a bare
                one as that times itself: how true the number is that everything else is compared with.
alongside       CPU time of the launcher and the telemetry, as a share of one core.

Noise is kept out by taking turns. Of each pair of processes, bare and traced, one runs a few dozen steps while the
other waits, then the other way round; what runs next to the traced one is stopped while the bare one's steps are
timed. A block counts by its median step, a pair by the median over its blocks, and the figure is the median over
the pairs of fresh processes, which differ by a few per cent by themselves: the quartiles say how far. With --control
nothing is traced, which shows what the figures are worth on this machine: they should be 0. `before, after`, `while
read` and `reported` compare different moments, between which nothing can take turns: they want a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asked_trainings import Training, cpu_ns, environment, stopped, trace_command
from benchmarks.load import processor

START_MS, STEP_SHARE, BASELINE_SHARE, HOOKS_US, AFTER_SHARE = 60.0, 0.01, 0.01, 10.0, 0.02
"""Limits. Hooks: 1 % of a step that takes a millisecond."""
STARTS_A_ROUND = 5
BLOCKS = 30
"""Pairs of blocks in a round."""
BLOCK = {"lora": 30, "tiny": 300}
"""Steps in a block."""
DROPPED = 5
"""Steps at the beginning of a block that wake the process up."""
WARM_UP = 130
"""Steps before anything is measured: more than the stages of WHOLE take."""
STRETCH_S = 3.0
"""Seconds for which the traced process runs by itself after the blocks."""
WHOLE = ("--settle", "20", "--baseline", "40", "--steps", "2")
ENDLESS = ("--settle", "20", "--baseline", "100000", "--steps", "2")
"""Options whose baseline has more steps than the training."""
PATIENCE_S = 120.0


# -- figures


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured: the median of some pairs, and their quartiles."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    pairs: int
    limit: float | None

    @property
    def missed(self) -> bool:
        """Whether it is judged, and too much."""
        return self.limit is not None and self.median > self.limit


def figure(name: str, unit: str, values: Sequence[float], limit: float | None = None) -> Figure:
    """Sums up one value per pair, whatever a few odd pairs say. Raises ValueError if there is no value."""
    if not values:
        raise ValueError(f"{name}: nothing was measured")
    if len(values) == 1:
        low = high = values[0]
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Figure(name, unit, statistics.median(values), low, high, len(values), limit)


def paired(
    bare: Sequence[Sequence[float]], traced: Sequence[Sequence[float]], differ: Callable[[float, float], float]
) -> float:
    """How two processes differ that took turns: by block, each by its median step, and the median of that."""
    differences = [
        differ(statistics.median(b[DROPPED:]), statistics.median(t[DROPPED:]))
        for b, t in zip(bare, traced, strict=True)
    ]
    return statistics.median(differences)


def extra_share(bare: float, traced: float) -> float:
    """What is added, as a share of what there was."""
    return traced / bare - 1


def extra_us(bare_ns: float, traced_ns: float) -> float:
    """What is added, in microseconds."""
    return (traced_ns - bare_ns) / 1e3


# -- what is measured


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of the measurements."""

    number: int
    """Number of the round; the bare and the traced process take turns in being the older one."""
    folder: Path
    """An empty one."""
    blocks: int
    control: bool
    quiet: Quiet | None = None
    """Given if other pairs are measured at the same time."""


class Quiet:
    """Lets pairs of processes start at the same time, and be measured one after the other."""

    def __init__(self, pairs: int) -> None:
        self._all_started, self._lock = threading.Barrier(pairs), threading.Lock()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Once all pairs have started, while no other is measured. Raises BrokenBarrierError if one has failed."""
        self._all_started.wait(PATIENCE_S)
        with self._lock:
            yield

    def fail(self) -> None:
        """Lets the others end."""
        self._all_started.abort()


@dataclass(slots=True)
class Measured:
    """What pairs of processes, or of starts, have shown."""

    start_ms: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    hooks_after_us: list[float] = field(default_factory=list)
    hooks_baseline_us: list[float] = field(default_factory=list)
    before_after: list[float] = field(default_factory=list)
    while_read: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    alongside: list[float] = field(default_factory=list)
    usual_ms: list[float] = field(default_factory=list)
    """Usual steps of the bare trainings that do some work, ms."""
    facts: dict[str, Any] = field(default_factory=dict)


def measure_starts(measured: Measured, turn: Turn) -> None:
    """Pairs of commands that do nothing."""
    bare, folder = (sys.executable, "-c", "pass"), _new(turn, "start")
    traced = bare if turn.control else (*trace_command(), *bare)
    if not measured.start_ms:
        for command in (bare, traced):  # compiles bytecode
            _wall_ms(command, folder)
    for _ in range(STARTS_A_ROUND):
        begin_ms = _wall_ms(bare, folder)
        measured.start_ms.append(_wall_ms(traced, folder) - begin_ms)


def _wall_ms(command: tuple[str, ...], folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment(), stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1e3


@contextlib.contextmanager
def pair(name: str, folder: Path, options: tuple[str, ...], turn: Turn) -> Iterator[tuple[Training, Training]]:
    """A bare and a traced process, both past their first steps; each of them waits while the other is started."""
    run = None if turn.control else folder / "run"
    before = () if run is None else trace_command("--out", str(run), *options)
    with contextlib.ExitStack() as stack:
        made: dict[bool, Training] = {}
        for is_traced in (turn.number % 2 == 0, turn.number % 2 == 1):
            training = Training(name, folder, before, run) if is_traced else Training(name, folder)
            made[is_traced] = stack.enter_context(training)
        assert all(training.facts for training in made.values())
        if turn.quiet is not None:
            stack.enter_context(turn.quiet.alone())
        for is_traced, training in made.items():
            training.first = training.steps(WARM_UP)
            if is_traced and options == WHOLE:
                training.read = steps_while_read(training, name)
        yield made[False], made[True]


def measure_blocks(
    bare: Training, traced: Training, name: str, blocks: int, differ: Callable[[float, float], float]
) -> float:
    """Lets the two take turns, each first as often as second."""
    times: dict[bool, list[Sequence[float]]] = {False: [], True: []}
    for i in range(blocks):
        for is_traced in (False, True) if i % 2 else (True, False):
            if is_traced:
                times[True].append(traced.steps(BLOCK[name]))
            else:
                with stopped(traced.gpuprof_processes()):
                    times[False].append(bare.steps(BLOCK[name]))
    return paired(times[False], times[True], differ)


def steps_while_read(traced: Training, name: str) -> list[int]:
    """Steps until the recording has been diagnosed and compressed, which is the last that is done to it."""
    durations: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    run = traced.run
    packed, plain = ("trace.rank0.json.gz", "trace.rank0.json")
    while run is not None and ((run / plain).exists() or not (run / packed).exists()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was recorded, or not read, in {PATIENCE_S:.0f} s: see {run}")
        durations += traced.steps(BLOCK[name])
    return durations


def measure_step(measured: Measured, turn: Turn) -> None:
    """One pair of LoRA-like trainings."""
    with pair("lora", _new(turn, "step"), WHOLE, turn) as (bare, traced):
        measured.facts = traced.facts
        measured.step.append(measure_blocks(bare, traced, "lora", turn.blocks, extra_share))
        if traced.run is None:
            return
        bare_ns = statistics.median(bare.steps(BLOCK["lora"])[DROPPED:])
        processes, begin_ns = traced.gpuprof_processes(), time.perf_counter_ns()
        used_ns = cpu_ns(processes)
        later_ns = statistics.median(traced.steps(max(WARM_UP, int(STRETCH_S * 1e9 / bare_ns)))[DROPPED:])
        if processes:
            measured.alongside.append((cpu_ns(processes) - used_ns) / (time.perf_counter_ns() - begin_ns))
        if traced.read:
            measured.while_read.append(extra_share(later_ns, statistics.median(traced.read)))
        traced.end()
        steps, reported_ns = baseline(traced.run)
        measured.before_after.append(extra_share(statistics.median(traced.first[steps]), later_ns))
        measured.reported.append(extra_share(statistics.median(bare.first[steps]), reported_ns))


def baseline(run: Path) -> tuple[slice, float]:
    """Which steps a run has timed without a profiler, and how many ns it says that they took."""
    stages = json.loads((run / "rank0.json").read_text())["stages"]
    stage = next(stage for stage in stages if stage["stage"] == "baseline_free")
    lines = map(json.loads, (run / "steps.jsonl").read_text().splitlines())
    reported = [line["ns"] for line in lines if line["stage"] == "baseline_free"]
    first = stage["first_step"] - 1
    return slice(first, first + stage["steps"]), statistics.median(reported)


def measure_baseline(measured: Measured, turn: Turn) -> None:
    """A pair of trainings, in a baseline that does not end."""
    with pair("lora", _new(turn, "lora_baseline"), ENDLESS, turn) as (bare, traced):
        measured.facts = traced.facts
        measured.baseline.append(measure_blocks(bare, traced, "lora", turn.blocks, extra_share))
        measured.usual_ms.append(statistics.median(bare.steps(BLOCK["lora"])[DROPPED:]) / 1e6)


def measure_hooks_after(measured: Measured, turn: Turn) -> None:
    """A pair of trainings with nothing in them, once the traced one is recorded."""
    with pair("tiny", _new(turn, "after"), WHOLE, turn) as (bare, traced):
        measured.facts = traced.facts
        measured.hooks_after_us.append(measure_blocks(bare, traced, "tiny", turn.blocks, extra_us))


def measure_hooks_baseline(measured: Measured, turn: Turn) -> None:
    """The same in a baseline that does not end."""
    with pair("tiny", _new(turn, "baseline"), ENDLESS, turn) as (bare, traced):
        measured.facts = traced.facts
        measured.hooks_baseline_us.append(measure_blocks(bare, traced, "tiny", turn.blocks, extra_us))


def _new(turn: Turn, name: str) -> Path:
    folder = turn.folder / name
    folder.mkdir()
    return folder


KINDS = {
    "start": measure_starts, "step": measure_step, "baseline": measure_baseline, "hooks_after": measure_hooks_after,
    "hooks_baseline": measure_hooks_baseline,
}  # fmt: skip


def measure(kinds: Iterable[str], rounds: int, blocks: int = BLOCKS, control: bool = False) -> Measured:
    """Measures some of KINDS, this many rounds of all of them."""
    measured = Measured()
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
            for kind in kinds:
                KINDS[kind](measured, Turn(number, Path(folder), blocks, control))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return measured


def measure_together(kinds: Sequence[str], rounds: int, blocks: int, control: bool) -> Measured:
    """The same, where all processes start at once, those that wait for their turn included. Raises what one raised."""
    measured, quiet = Measured(), Quiet(rounds * len(kinds))

    def one(kind: str, turn: Turn) -> None:
        try:
            KINDS[kind](measured, turn)
        except BaseException:
            quiet.fail()
            raise

    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, ThreadPoolExecutor(rounds * len(kinds)) as threads:
        started = []
        for number in range(rounds):
            own = Path(folder) / str(number)
            own.mkdir()
            turn = Turn(number, own, blocks, control, quiet)
            started += [threads.submit(one, kind, turn) for kind in kinds]
        errors = [error for future in started if (error := future.exception()) is not None]
    if errors:
        raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
    return measured


def figures(measured: Measured, slack: float = 1.0) -> list[Figure]:
    """The figures. slack: a figure may be this many times its limit."""
    on_gpu = measured.facts.get("device", "CPU") != "CPU"
    rows: list[tuple[str, str, list[float], float | None]] = [
        ("start", "ms", measured.start_ms, START_MS),
        ("step", "share", measured.step, STEP_SHARE),
        ("baseline", "share", measured.baseline, BASELINE_SHARE),
        ("hooks after", "us", measured.hooks_after_us, HOOKS_US),
        ("hooks baseline", "us", measured.hooks_baseline_us, None),
        ("before, after", "share", measured.before_after, AFTER_SHARE if on_gpu else None),
        ("while read", "share", measured.while_read, None),
        ("reported", "share", measured.reported, None),
        ("alongside", "share", measured.alongside, None),
        ("bare step", "ms", measured.usual_ms, None),
    ]
    return [
        figure(name, unit, values, None if limit is None else limit * slack)
        for name, unit, values, limit in rows
        if values
    ]


# -- what is printed

UNITS: dict[str, Callable[[float], str]] = {
    "ms": lambda value: f"{value:.1f} ms",
    "us": lambda value: f"{value:.2f} µs",
    "share": lambda value: f"{value * 100:.2f} %",
}


def table(found: Sequence[Figure]) -> str:
    """The figures for people."""
    lines = ["| figure | median | quartiles | pairs | limit | |", "|---|---:|---:|---:|---:|---|"]
    for one in found:
        show = UNITS[one.unit]
        limit = "–" if one.limit is None else show(one.limit)
        word = "missed" if one.missed else "" if one.limit is None else "kept"
        quartiles = f"{show(one.low)} … {show(one.high)}"
        lines.append(f"| {one.name} | {show(one.median)} | {quartiles} | {one.pairs} | {limit} | {word} |")
    return "\n".join(lines)


def main() -> int:
    """The command line; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of fresh processes; starts are five a round")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="how often two processes take turns in a round")
    parser.add_argument("--only", choices=list(KINDS), action="append", help="measure only this (may be repeated)")
    parser.add_argument("--control", action="store_true", help="trace nothing: what the machine alone makes of it")
    parser.add_argument("--together", action="store_true", help="start all processes at once: needs cores to spare")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - prints it, and nothing else")
    options = parser.parse_args()
    if options.rounds < 1 or options.blocks < 1:
        parser.error("at least one round of one block is needed")
    kinds = options.only or list(KINDS)
    if options.together and "start" in kinds:
        parser.error("--together: a start is measured alone; name others with --only")
    how = measure_together if options.together else measure
    measured = how(kinds, options.rounds, options.blocks, options.control)
    found = figures(measured)
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "processor": processor(), **measured.facts}
    about.pop("pid", None)
    rows = [asdict(one) | {"missed": one.missed} for one in found]
    document = json.dumps({**about, "control": options.control, "figures": rows}, indent=1)
    if options.json == "-":
        print(document)
    else:
        if options.json:
            Path(options.json).write_text(document + "\n", encoding="utf-8")
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print(f"\n{table(found)}")
    return int(any(one.missed and not options.control for one in found))


if __name__ == "__main__":
    sys.exit(main())

"""What gpuprof costs a step while it does nothing, times a baseline or samples stacks, for steps of different length.

    python -m benchmarks.in_turns [--ms 2,10,100] [--processes 2] [--within 200] [--json FILE]

A training with LoRA layers (benchmarks/timed_loop.py), with the number of layers that takes about that long, and one
with nothing in it (`tiny`), each in four processes: bare; armed for `gpuprof attach`; with an endless baseline; and
with a recording that is over. All start together, then take turns, one at a time, every other turn in the opposite
order; what gpuprof runs next to one is stopped while another is timed. Two comparisons:

within one process   gpuprof's hooks are removed and put back about every eight steps (switched_loop.py), so that
                     two processes that differ by a few per cent by themselves do not have to be compared;
fresh processes      the process with gpuprof over the bare one.

Each by the median step of a stretch in µs, and by its mean step as a share; the median over all turns with its 80 %
interval by bootstrap, and the median of each pair of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.asked_trainings import Training, trace_command
from benchmarks.load import processor
from benchmarks.overhead import PATIENCE_S

LOOP = str(Path(__file__).with_name("switched_loop.py"))
STRETCH_S = 0.15
"""Approximate seconds of a stretch of steps in one state."""
FEWEST, MOST, DROPPED = 6, 300, 2
"""Fewest and most steps of a stretch, and how many at its beginning do not count."""
SETTLED = 25
"""Steps before a process is measured."""
TINY = "tiny"
PROCESSES = {
    "bare": None,
    "armed": ("--on-demand",),
    "baseline": ("--no-report", "--settle", "20", "--baseline", "100000", "--steps", "2"),
    "after": ("--no-report", "--no-sampling", "--settle", "10", "--baseline", "10", "--steps", "1"),
}
"""Options of `gpuprof trace`; None: without it."""
STATES = (("bare", "off"), ("armed", "both"), ("baseline", "both"), ("baseline", "sampled"), ("after", "both"))
"""What is asked of each process in a turn; `both`: without the hooks and with them."""
COMPARED = (
    ("armed", ("armed", "off"), ("armed", "on")),
    ("baseline", ("baseline", "off"), ("baseline", "on")),
    ("sampled, over the baseline", ("baseline", "on"), ("baseline", "sampled")),
    ("after the recording", ("after", "off"), ("after", "on")),
    ("armed, fresh processes", ("bare", "off"), ("armed", "on")),
    ("baseline, fresh processes", ("bare", "off"), ("baseline", "on")),
    ("sampled, fresh processes", ("bare", "off"), ("baseline", "sampled")),
    ("after the recording, fresh processes", ("bare", "off"), ("after", "on")),
)
"""Name, without, with."""
State = tuple[str, str]


@dataclass(slots=True)
class Program:
    """One program in its processes."""

    name: str
    words: tuple[str, ...]
    number: int
    """Number of the fresh process."""
    trainings: dict[str, Training] = field(default_factory=dict)
    helpers: dict[str, list[int]] = field(default_factory=dict)
    """Pids of what gpuprof runs next to each process."""
    steps: int = FEWEST
    turns: list[dict[State, list[int]]] = field(default_factory=list)
    """Nanoseconds of steps, for each turn."""

    def start(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Starts all processes."""
        for kind, options in PROCESSES.items():
            own = folder / f"{self.name}-{self.number}-{kind}"
            own.mkdir()
            run = None if options is None else own / "run"
            before = () if options is None else trace_command("--out", str(run), *options)
            if kind == "armed":
                before = trace_command(*PROCESSES["armed"] or ())
            training = Training(self.name, own, before, run, (LOOP, *self.words))
            self.trainings[kind] = stack.enter_context(training)

    def settle(self) -> None:
        """Waits until each is in the state that is measured; one that does not get there is left out, with the
        reason."""
        for kind, training in list(self.trainings.items()):
            try:
                self._settle(kind, training)
            except (RuntimeError, TimeoutError) as error:
                self._leave_out(kind, error)

    def _settle(self, kind: str, training: Training) -> None:
        each = training.ask(f"on {SETTLED}")
        until = time.monotonic() + PATIENCE_S
        while not _is_there(kind, training.ask("state"), training.run):
            if time.monotonic() > until:
                raise TimeoutError(str(training.ask("state")))
            each = training.ask(f"on {FEWEST}")
        if kind == "bare":
            self.steps = min(max(round(STRETCH_S * 1e9 / statistics.median(each)), FEWEST), MOST)
        self.helpers[kind] = training.gpuprof_processes()

    def _leave_out(self, kind: str, why: object) -> None:
        print(f"{self.name} {' '.join(self.words)}, {kind}, is left out: {why}", file=sys.stderr, flush=True)
        self.trainings.pop(kind, None)

    def turn(self, backwards: bool) -> None:
        """Each state once."""
        found: dict[State, list[int]] = {}
        for kind, how in reversed(STATES) if backwards else STATES:
            if kind not in self.trainings:
                continue
            try:
                with _going(self.helpers[kind]):
                    answer = self.trainings[kind].ask(f"{how} {self.steps + DROPPED}")
            except RuntimeError as error:
                self._leave_out(kind, error)
                continue
            if how == "both" and "error" not in answer:
                found |= {(kind, state): steps for state, steps in answer.items()}
            elif isinstance(answer, dict):
                print(f"{self.name}, {kind}, {how}: {answer}", file=sys.stderr, flush=True)
            else:
                found[kind, how] = answer[DROPPED:]
        self.turns.append(found)


def _is_there(kind: str, state: dict[str, Any], run: Path | None) -> bool:
    """Whether a process is in the state that is measured."""
    if kind == "armed":
        return bool(state.get("counts"))
    if kind == "baseline":
        return state.get("stage") == "baseline_free"
    if kind == "after":
        assert run is not None
        return bool(state.get("over")) and (run / "trace.rank0.json.gz").exists()
    return True


@contextlib.contextmanager
def _going(pids: Sequence[int]) -> Iterator[None]:
    """Lets stopped processes run for a while."""
    signal_all(pids, signal.SIGCONT)
    try:
        yield
    finally:
        signal_all(pids, signal.SIGSTOP)


def signal_all(pids: Sequence[int], what: signal.Signals) -> None:
    """Sends a signal to processes that may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its 10th and 90th percentile by bootstrap. Raises ValueError where there is none."""
    if not values:
        raise ValueError("nothing was measured")
    chance = random.Random(0)
    draws = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(1000))
    return statistics.median(values), draws[100], draws[900]


def compared(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """A row for each comparison of each program; `programs` with the same name are fresh processes of one."""
    same: dict[str, list[Program]] = defaultdict(list)
    for one in programs:
        same[one.name if one.name == TINY else f"{one.name} {' '.join(one.words)}"].append(one)
    rows = []
    for name, ones in same.items():
        bare = [ns for one in ones for turn in one.turns for ns in turn.get(("bare", "off"), ())]
        for what, without, having in COMPARED:
            us, ratios, shares, each = [], [], [], []
            for one in ones:
                pairs = [(turn[without], turn[having]) for turn in one.turns if without in turn and having in turn]
                own = [statistics.median(b) / 1e3 - statistics.median(a) / 1e3 for a, b in pairs]
                us += own
                ratios += [statistics.median(b) / statistics.median(a) for a, b in pairs]
                shares += [statistics.fmean(b) / statistics.fmean(a) - 1 for a, b in pairs]
                each += [round(statistics.median(own), 2)] if own else []
            if us and bare:
                rows.append({
                    "program": name, "bare_ms": statistics.median(bare) / 1e6, "what": what, "turns": len(us),
                    "us": interval(us), "ratio": interval(ratios), "share": interval(shares),
                    "us_by_processes": each,
                })  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for people."""
    lines = ["| bare step | | more, median step | ratio of median steps | mean step | processes | turns |"]
    lines.append("|---:|---|---:|---:|---:|---|---:|")
    for row in rows:
        us, low, high = row["us"]
        share, least, most = (100 * one for one in row["share"])
        ratio, smallest, largest = row["ratio"]
        lines.append(
            f"| {row['bare_ms']:.3g} ms | {row['what']} | {us:+.1f} µs ({low:+.1f} to {high:+.1f}) "
            f"| {ratio:.4f} ({smallest:.4f} to {largest:.4f}) | {share:+.2f} % ({least:+.2f} to {most:+.2f}) "
            f"| {', '.join(f'{one:+.1f}' for one in row['us_by_processes'])} | {row['turns']} |"
        )
    return "\n".join(lines)


def measure(milliseconds: Sequence[float], processes: int, within_s: float, keep: Path | None) -> list[dict[str, Any]]:
    """Takes turns until the time is over; the rows. keep: written after each turn."""
    end = time.monotonic() + within_s
    with tempfile.TemporaryDirectory(prefix="in-turns-") as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "fit").mkdir()
        with Training("lora", Path(folder) / "fit", loop=(LOOP,)) as first:
            layers = first.ask(f"fit {' '.join(map(str, milliseconds))}") if milliseconds else []
            facts = {key: value for key, value in first.facts.items() if key != "pid"}
        programs = [Program(TINY, (), 0)]
        programs += [Program("lora", ("--layers", str(one)), i) for i in range(processes) for one in layers]
        for i, program in enumerate(programs):
            (Path(folder) / str(i)).mkdir()
            program.start(Path(folder) / str(i), stack)
        with ThreadPoolExecutor(len(programs)) as threads:
            list(threads.map(Program.settle, programs))
        everything = [pid for one in programs for pids in one.helpers.values() for pid in pids]
        stack.callback(signal_all, everything, signal.SIGCONT)
        signal_all(everything, signal.SIGSTOP)
        said = time.monotonic()
        print(f"layers {layers}; settled with {end - said:.0f} s left", file=sys.stderr, flush=True)
        longest_s, turn, rows = 0.0, 0, []
        while not turn or time.monotonic() + longest_s < end:
            begun = time.monotonic()
            for program in programs:
                program.turn(backwards=bool(turn % 2))
            longest_s, turn = max(longest_s, time.monotonic() - begun), turn + 1
            rows = compared(programs)
            if keep is not None:
                about = {
                    "python": platform.python_version(),
                    "cores": os.cpu_count(),
                    "processor": processor(),
                    **facts,
                }
                keep.write_text(json.dumps({**about, "layers": layers, "rows": rows}, indent=1) + "\n")
    return rows


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ms", default="2,10,100", help="approximate ms of a bare step; several with commas, or none")
    parser.add_argument("--processes", type=int, default=2, help="fresh processes of each kind")
    parser.add_argument("--within", type=float, default=200.0, metavar="S", help="take turns until S seconds are over")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found, after each turn")
    options = parser.parse_args()
    rows = measure(
        [float(one) for one in options.ms.split(",") if one], options.processes, options.within, options.json
    )
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

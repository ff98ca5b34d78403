"""A campaign: times many small programs and their fixes on a GPU in little time, and loses nothing if it is cut short.

    python -m scenarios campaign --out DIR [NAME …] [--seconds 560] [--each 1.5] [--rounds 2] [--alone] [--fixed FIX]
        [--plan]

A unit is one process of the unmodified program and one with each fix, once per round. Units that fit the GPU together
form a wave. The processes of a wave build their models and take their first steps at the same time, while nothing is
timed; then each is timed alone, one after the other, while the others wait at a gate and do nothing. Meanwhile a few
processes at low priority load Python and packages for the next wave; each line of the results says how many. They take
time from a program that the CPU limits: with `--alone` none does, and a campaign takes longer. A program whose rounds
are over is recorded unmodified by `gpuprof trace`, also alone.

DIR/results.jsonl has a line for each process as soon as it is timed or has failed, with the end of its output;
DIR/piece-N.tar has the recordings, each as NAME.tar.xz, in pieces of fewer than 16 MiB. Nothing is started for which
there is not enough time left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios.campaign_results import last_lines, put, spread, table, timing_of
from scenarios.catalogue import ROOT, Scenario
from scenarios.measure import (
    NO_GPU_GIB,
    Gates,
    Recorder,
    Timed,
    gpu_gib,
    launched,
    machine,
    rounded,
    versions,
)
from scenarios.support.run import GATE, PROCESS

BUILD_S, BUILD_COMPILED_S, TURN_S, RECORD_S, START_S = 15.0, 30.0, 1.2, 11.0, 25.0
"""Estimated seconds: to build a wave, to build one in which something is compiled, for a turn without its free-running
steps, for a recording, and for the imports of the first wave. Assumed until a campaign has run."""
PACE = 0.8
"""A set of programs is started if this share of its estimate is left. Measured during the campaign."""
LONGEST_BUILD_S, LONGEST_TURN_S, LONGEST_RECORD_S = 180.0, 40.0, 75.0
"""A process that takes longer is ended and counts as failed."""
IMPORTING_AT_ONCE, AT_ONCE = 4, 24
"""Processes that load packages while another is timed, and processes of a wave."""
NICE = 10
ENDS_S = 12.0
"""Seconds reserved for packing."""


@dataclass
class Member(Timed):
    """A process that is timed by seconds, and loads its packages at low priority."""

    round: int = 0
    each_s: float = 1.5
    low: bool = False
    turn_s: float | None = None
    importing: int = 0
    """Processes that were loading packages during its turn."""

    @property
    def name(self) -> str:
        return f"{self.entry.slug}.{self.number}"

    @property
    def free_s(self) -> float:
        return self.each_s if self.each_s < 1.0 else self.entry.seconds or self.each_s

    @property
    def command(self) -> list[str]:
        drained = ["--drained", str(self.entry.drained)] if self.entry.drained else []
        return [
            *launched(self.entry),
            *self.entry.words,
            "--timed",
            "--seconds",
            str(self.free_s),
            *drained,
            *self.switches,
        ]


@dataclass
class Traced(Recorder):
    """`gpuprof trace` of the program, unmodified or with a fix."""

    low: bool = False
    at: float | None = None

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def of(self) -> str:
        """The program, and the fix if it has one."""
        return f"{self.entry.name} {self.fix}".rstrip()

    @property
    def command(self) -> list[str]:
        words = [sys.executable, "-m", "gpuprof", "trace", "--no-report", "--out", str(self.folder), "--stop"]
        return [*words, *self.entry.trace, *self.entry.words, "--steps", "2000", *self.switches]


@dataclass
class Wave:
    """Processes that are built together, and the programs to record once they have been timed. Waves of the same `set`
    have the same programs, one round each."""

    set: int = 0
    members: list[Member] = field(default_factory=list)
    traced: list[Traced] = field(default_factory=list)
    gib: float = 0.0

    @property
    def everyone(self) -> list[Timed]:
        return [*self.members, *self.traced]

    @property
    def estimate_s(self) -> float:
        compiled = any("compile" in fix or "graph" in fix for fix in (member.fix for member in self.members))
        turns = sum(member.free_s + TURN_S for member in self.members)
        build = (BUILD_COMPILED_S if compiled else BUILD_S) if self.members else 0.0
        return build + turns + RECORD_S * len(self.traced)


def planned(
    chosen: list[Scenario], rounds: int, each_s: float, logs: Path, gib: float, record: bool = True, fixed: str = ""
) -> list[Wave]:
    """The waves, in the order of the programs: the first round of those that fit, then their next round.

    `fixed`: programs with a fix of this name are also recorded with it.
    """
    sets: list[list[Scenario]] = []
    taken = count = 0.0
    for entry in chosen:
        processes = len(entry.variants()) if rounds else 1
        if not sets or taken + processes * entry.gib > gib or count + processes > AT_ONCE:
            sets.append([])
            taken = count = 0.0
        sets[-1].append(entry)
        taken += processes * entry.gib
        count += processes
    found = []
    for order_of_set, together in enumerate(sets):
        for number in range(max(rounds, 1)):
            wave = Wave(order_of_set)
            for entry in together:
                for i, fix in enumerate(entry.variants() if rounds else ()):
                    order = number * len(entry.variants()) + i
                    log = logs / f"{entry.slug}.{order}.log"
                    wave.members.append(Member(entry, fix, order, log, round=number, each_s=each_s))
                    wave.gib += entry.gib
                if record and number == max(rounds, 1) - 1:
                    also = [fixed] if fixed in entry.variants()[1:] else []
                    for fix in also if fixed and not rounds else ("", *also):
                        name = f"{entry.slug}.{fix}" if fix else entry.slug
                        wave.traced.append(Traced(entry, fix, -1, logs / f"{name}.trace.log"))
            found.append(wave)
    return found


class Campaign:
    """A campaign that is running. `begun`: when its time started."""

    def __init__(self, out: Path, seconds: float, gates: Gates, alone: bool = False) -> None:
        self.out, self.seconds, self.gates = out, seconds, gates
        self.importing_at_once = 0 if alone else IMPORTING_AT_ONCE
        self.begun = time.monotonic()
        self.results = out / "results.jsonl"
        self.reading: list[Traced] = []
        self.packing: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.next: list[Timed] = []
        self.started: list[Timed] = []
        self.pieces: list[str] = []

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.begun) - ENDS_S

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.1f} s  {text}", flush=True)

    def write(self, line: dict[str, Any]) -> None:
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # -- processes

    def start(self, process: Member | Traced, low: bool) -> None:
        """Starts a process in its own process group; it loads its packages at low priority while another is timed."""
        environment = os.environ | {GATE: self.gates.path, PROCESS: process.name, "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))
        process.low = low = low and isinstance(process, Member)  # a launcher's children have their own groups
        with process.log.open("wb") as log:
            process.process = subprocess.Popen(
                process.command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
                preexec_fn=(lambda: os.nice(NICE)) if low else None,
            )  # fmt: skip
        self.started.append(process)

    def top_up(self, at_once: int, low: bool) -> int:
        """Starts processes of the next wave until `at_once` load packages. Returns how many do."""
        loading = [p for p in self.next if p.process is not None and not p.over and not self.gates.waits(p)]
        for process in self.next:
            if len(loading) >= at_once:
                break
            if process.process is None:
                self.start(process, low)  # type: ignore[arg-type]
                loading.append(process)
        return len(loading)

    def await_gate(self, processes: list[Timed], limit_s: float, at_once: int = 0) -> None:
        """Waits until each is at the gate or has ended, and ends those that take too long. Meanwhile the next wave
        loads."""
        end = time.monotonic() + min(limit_s, max(self.left_s, 1.0))
        while not all(self.gates.waits(process) or process.over for process in processes):
            self.gates.accept()
            if at_once:
                self.top_up(at_once, low=True)
            if time.monotonic() > end:
                late = [process for process in processes if not self.gates.waits(process) and not process.over]
                for process in late:
                    process.why = f"took longer than {limit_s:.0f} s or the seconds were over"
                kill(late)

    def let_in(self, process: Member) -> None:
        """Lets it build its model, with normal priority."""
        if process.low and process.process is not None:
            usual_priority(process.process.pid)
        self.gates.open(process)

    # -- a wave

    def run(self, waves: list[Wave]) -> None:
        whole = {wave.set: sum(other.estimate_s for other in waves if other.set == wave.set) for wave in waves}
        left_out: set[int] = set()
        estimated_s, pace = START_S, PACE
        for number, wave in enumerate(waves):
            first = number == 0 or waves[number - 1].set != wave.set
            if wave.set in left_out or (whole[wave.set] if first else 0.5 * wave.estimate_s) * pace > self.left_s:
                left_out.add(wave.set)
                names = dict.fromkeys(each.entry.name for each in wave.everyone)
                self.say(f"left out, too few seconds: {', '.join(names)}")
                kill([process for process in wave.everyone if process.process is not None and not process.over])
                self.next = []
                continue
            self.next = wave.everyone
            while any(process.process is None for process in self.next):
                self.top_up(AT_ONCE * 2, low=False)
            self.await_gate(wave.everyone, LONGEST_BUILD_S)
            self.say(f"wave {number + 1}/{len(waves)}: {len(wave.members)} processes loaded")
            self.next = []
            for member in wave.members:
                self.let_in(member)
            self.await_gate(list(wave.members), LONGEST_BUILD_S)
            for recorder in self.reading:
                self.read(recorder)
            self.reading = []
            self.say("built")
            self.next = waves[number + 1].everyone if number + 1 < len(waves) else []
            for member in wave.members:
                self.turn(member)
            for member in wave.members:
                self.gates.open(member)
            for member in wave.members:
                self.finish(member)
            for recorder in wave.traced:
                if self.left_s > RECORD_S * 0.6:
                    self.record(recorder)
                else:
                    kill([recorder])
                    self.say(f"{recorder.of}: not recorded, the seconds are over")
            estimated_s += wave.estimate_s
            pace = (time.monotonic() - self.begun) / estimated_s
        for recorder in self.reading:
            self.read(recorder)

    def turn(self, member: Member) -> None:
        """Times one process, alone except for those that load packages."""
        if member.over or self.left_s < 2:
            return
        at = time.monotonic()
        member.importing = self.top_up(self.importing_at_once, low=True)
        self.gates.open(member)
        self.await_gate([member], LONGEST_TURN_S, self.importing_at_once)
        member.turn_s = time.monotonic() - at
        member.timing = timing_of(member.log)
        self.report(member)

    def finish(self, member: Member) -> None:
        """Waits for its end. A process that was not timed is written as failed."""
        if member.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.process.wait(8)
        if not member.over:
            kill([member])
        if member.timing is None:
            self.report(member)

    def report(self, member: Member) -> None:
        """One line of the results."""
        line: dict[str, Any] = {"program": member.entry.name, "role": member.entry.role, "fix": member.fix}
        line |= {"round": member.round, "order": member.number, "importing": member.importing}
        if member.timing is None:
            if member.process is None or (not member.over and self.left_s < 2):
                member.why = member.why or "not timed: the seconds were over"
            elif not member.over:
                return  # it still runs, and `finish` says how it ended
            code = member.process.returncode if member.process is not None else None
            line |= {"failed": member.why or f"exit {code}", "output": last_lines(member.log)}
        else:
            each = member.timing["free_each_ms"]
            line |= rounded(member.timing) | {"steps": len(each), "turn_s": round(member.turn_s or 0.0, 2)}
            line["spread"] = round(spread(each), 4)
        self.write(line)
        done = (
            f"{line['free_ms']:8.2f} ms  ± {100 * line['spread']:.1f} %"
            if member.timing
            else f"FAILED {line['failed']}"
        )
        self.say(f"{member.entry.name:34} {member.fix or 'as it is':22} {done}")
        if member.timing is None and "output" in line:
            print("\n".join(f"          | {text[:200]}" for text in line["output"][-6:]), flush=True)

    # -- recordings

    def record(self, recorder: Traced) -> None:
        """Records a program with `gpuprof trace`, which reads the recording while the next ones are built."""
        at = time.monotonic()
        self.gates.open(recorder)
        manifest = recorder.folder / "manifest.json"
        while not recorder.over and time.monotonic() - at < LONGEST_RECORD_S and self.left_s > 0:
            self.gates.accept()
            self.top_up(self.importing_at_once, low=True)
            with contextlib.suppress(OSError, ValueError):
                if json.loads(manifest.read_text(encoding="utf-8"))["status"] != "running":
                    break
        recorder.at = time.monotonic() - at
        self.reading.append(recorder)
        self.say(f"{recorder.of}: recorded in {recorder.at:.1f} s")

    def read(self, recorder: Traced) -> None:
        """Waits until gpuprof has read the recording, and packs it."""
        at = time.monotonic()
        limit = min(45.0, max(1.0, self.left_s))
        if recorder.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                recorder.process.wait(limit)
        late = not recorder.over
        kill([recorder])
        code = recorder.process.returncode if recorder.process is not None else None
        line = {
            "program": recorder.entry.name,
            "of": recorder.fix,
            "recorded_s": round(recorder.at or 0, 2),
            "exit": code,
            "late": late,
        }
        line["waited_s"] = round(time.monotonic() - at, 2)
        said = last_lines(recorder.log, 40)
        self.write(line | {"said": said})
        if not (recorder.folder / "manifest.json").exists():
            self.say(f"{recorder.of}: NOT RECORDED")
            print("\n".join(f"          | {text[:200]}" for text in said[-6:]), flush=True)
            return
        target = recorder.folder.parent / "packed" / f"{recorder.folder.name}.tar.xz"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(recorder.log, recorder.folder / "said.txt")
        words = [sys.executable, "-m", "scenarios.campaign_results", str(recorder.folder), str(target)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))
        }
        self.packing.append((str(target), subprocess.Popen(["nice", "-n", "19", *words], env=environment)))
        self.gather()

    def gather(self, wait: bool = False) -> None:
        """Puts packed recordings into pieces."""
        for item in list(self.packing):
            target, process = item
            if wait:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(1.0, self.left_s + ENDS_S - 3))
            if process.poll() is None:
                continue
            self.packing.remove(item)
            if process.returncode == 0:
                self.say(put(Path(target), self.out))


def kill(processes: list[Any]) -> None:
    """Kills processes and their children."""
    for each in processes:
        if each.process is not None and each.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()


def usual_priority(pid: int) -> None:
    """Restores the normal priority of a process, its threads and its children, where this user may."""
    pids = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == pid:  # its process group
                pids.append(int(path.parent.name))
    for each in set(pids):
        for task in Path(f"/proc/{each}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), 0)


def campaign(
    chosen: list[Scenario],
    out: Path,
    seconds: float,
    each_s: float,
    rounds: int,
    *,
    gib: float | None = None,
    record: bool = True,
    fixed: str = "",
    alone: bool = False,
    plan: bool = False,
) -> int:
    """Runs a campaign, or with `plan` prints what it would do. Returns 1 if a process failed.

    `each_s`: seconds of free-running steps; below one second, also for programs that need more; `gib`: GPU memory to
    fill; `record`: whether programs are also recorded; `fixed`: also with the fix of this name;
    `alone`: nothing is loaded while a process is timed or recorded.
    """
    out = out.resolve()
    room = gib or (gpu_gib() - 3.0)
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        work = Path(tempfile.gettempdir()) / f"campaign-{os.getpid()}"
        logs = work / "logs"
        waves = planned(chosen, rounds, each_s, logs, min(room, NO_GPU_GIB), record, fixed)
        if plan:
            print(*listed(waves), sep="\n")
            return 0
        logs.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        gates = Gates(f"{folder}/gate")
        run = Campaign(out, seconds, gates, alone)
        run.write({"machine": machine(), "versions": versions(), "each_s": each_s, "rounds": rounds})
        try:
            run.run(waves)
        finally:
            kill(run.started)
            run.gather(wait=True)
        print(*table(run.results), sep="\n", flush=True)
    lines = [json.loads(line) for line in run.results.read_text(encoding="utf-8").splitlines()]
    return int(any("failed" in line or line.get("exit") for line in lines))


def listed(waves: list[Wave]) -> list[str]:
    """The waves, with estimates of how long each takes and when it ends."""
    at = START_S
    lines = [f"{at:6.0f} s  loading packages"]
    for number, wave in enumerate(waves, 1):
        at += wave.estimate_s
        programs = ", ".join(dict.fromkeys(each.entry.name for each in wave.everyone))
        lines.append(
            f"{at:6.0f} s  wave {number}: {wave.estimate_s:.0f} s, {len(wave.members)} processes, {wave.gib:.0f} GiB,"
            f" {len(wave.traced)} recordings: {programs}"
        )
    return lines

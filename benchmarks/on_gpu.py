"""Everything that can only be measured on a GPU, in one command with a time limit.

    python -m benchmarks.on_gpu --out DIR [--within 400] [--parts counters,memory,…]
    python -m benchmarks.on_gpu --out DIR --tiny       # the same on a machine without a GPU: what can run there

Parts in the order of their value, each with a limit of its own; the commands of a part run next to each other where
they do not disturb each other, and nothing runs next to what is timed. A command that fails or takes too long is ended
with a reason, and the rest continues.

counters   `benchmarks.ncu`: do counters confirm what limits the largest kernels
memory     `benchmarks.take_snapshots`; `benchmarks.largest_batch` of six programs: predicted peaks, largest batches;
           `benchmarks.nccl_dumps`
verdict    `benchmarks.stall`: from the last recorded step to the verdict, with gpuprof's defaults and 50,000 kernels
overhead   `benchmarks.hook_parts`, `benchmarks.in_turns`: steps of 0.3 to 20 ms that are armed, timed, sampled
sampling   `benchmarks.sampling`: steps with stacks sampled, in turns

After each command a line of DIR/results.jsonl says what came of it, and DIR/logs.tar.xz is written again, which holds
the output of each so far; after each part DIR/files.tar.xz, which holds what they made (recordings, counters,
snapshots, dumps). A command that is cut off loses only the part that ran.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 15 << 20
"""Approximate largest size of an archive; what would exceed it is left out, and named."""
ENDING_S = 3.0
"""Seconds reserved for the archives."""
LEAST_S = 5.0
"""No command is started with less time left, in seconds."""
LEFT_OUT = ("report.html", ".log.json", ".raw")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: Python's words after the interpreter. `{out}` stands for its folder."""

    name: str
    words: tuple[str, ...]
    limit_s: float
    result: str | None = None
    """A file of its folder whose JSON belongs to the results."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lanes run at the same time, the commands of one after another."""

    name: str
    lanes: tuple[tuple[Command, ...], ...]


def parts(tiny: bool) -> list[Part]:
    """All of them. tiny: sizes for a machine without a GPU."""
    room = ("--room", "1") if tiny else ()

    def batch(name: str, share: float, limit_s: float, *words: str, peak: bool = False) -> Command:
        options = ("--share", str(share), *(("--peak",) if peak or tiny else ()), *room, "--json", "{out}/batch.json")
        return Command(f"batch_{name}", ("-m", "benchmarks.largest_batch", *options, *words), limit_s, "batch.json")

    def scenario(name: str) -> tuple[str, str]:
        return ("-m", f"scenarios.{name}.train")

    backend = ("--backend", "gloo") if tiny else ()
    # With 150,000 kernels a step gpuprof records one step, though benchmarks/stall.py asks for three.
    stall = ("--kernels", "300" if tiny else "150000", "--kinds", "defaults", "--json", "{out}/stall.json")
    turns = (
        ("--ms", "", "--processes", "1", "--within", "90")
        if tiny
        else ("--ms", "0.3,1.5,2.3,20", "--processes", "1", "--within", "140")
    )

    return [
        Part("counters", ((
            Command("ncu", ("-m", "benchmarks.ncu", "--out", "{out}", "--within", "5" if tiny else "185", "--at-most",
                            "40"), 200, "agreement.json"),
        ),)),
        Part("memory", (
            (batch("fit_loop", 0.4, 150, str(ROOT / "benchmarks" / "fit_loop.py")),),
            (batch("vit", 0.2, 80, *scenario("starved_workers"), peak=True),
             batch("trainer", 0.2, 80, *scenario("programs.trainer_defaults"), peak=True)),
            (batch("lora", 0.22, 150, *scenario("input_starved")),),
            (batch("convolutions", 0.05, 100, *scenario("programs.slow_decode")),
             batch("trainer_lora", 0.05, 60, *scenario("cases.module_walk"), peak=True)),
            (Command("snapshots", ("-m", "benchmarks.take_snapshots", "--out", "{out}"), 60),
             Command("nccl", ("-m", "benchmarks.nccl_dumps", "--out", "{out}", *backend), 100, "dumps.json")),
        )),
        Part("verdict", ((Command("stall", ("-m", "benchmarks.stall", *stall), 100, "stall.json"),),)),
        Part("overhead", ((
            Command("hook_parts", ("-m", "benchmarks.hook_parts", "--steps", "100" if tiny else "1000", "--json",
                                   "{out}/parts.json"), 40, "parts.json"),
            Command("in_turns", ("-m", "benchmarks.in_turns", *turns, "--json", "{out}/turns.json"), 150, "turns.json"),
        ),)),
        Part("sampling", ((
            Command("sampling", ("-m", "benchmarks.sampling", "--rounds", "2" if tiny else "16", "--json",
                                 "{out}/sampling.json"), 70, "sampling.json"),
        ),)),
    ]  # fmt: skip


@dataclass
class Measurement:
    """Runs commands until the time is over, and keeps what came of them."""

    out: Path
    work: Path
    """Where commands write; not what is kept."""
    end: float
    """When everything must have ended, on time.monotonic."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: set[int] = field(default_factory=set)

    def part(self, part: Part) -> None:
        """All of its lanes, to their end."""
        threads = [threading.Thread(target=self._lane, args=(part.name, lane)) for lane in part.lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._archive("files.tar.xz", (self.work / "files").rglob("*"))

    def _lane(self, part: str, lane: Sequence[Command]) -> None:
        for command in lane:
            begun = time.monotonic()
            try:
                answer = self._run(command)
            except Exception as error:  # a line says so, and the others go on
                answer = {"why": f"{type(error).__name__}: {error}"}
            line = {"part": part, "command": command.name, "seconds": round(time.monotonic() - begun, 1), **answer}
            with self.lock:
                with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps({key: value for key, value in line.items() if key != "result"}), flush=True)
                self._archive("logs.tar.xz", (self.work / "logs").rglob("*"))

    def _run(self, command: Command) -> dict[str, Any]:
        left_s = self.end - ENDING_S - time.monotonic()
        if left_s < LEAST_S:
            return {"why": "no time was left"}
        limit_s = min(command.limit_s, left_s)
        folder, log = self.work / "files" / command.name, self.work / "logs" / f"{command.name}.log"
        for one in (folder, log.parent):
            one.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, *(word.replace("{out}", str(folder)) for word in command.words)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment(),
                start_new_session=True,
            )  # fmt: skip
            answer = {"limit_s": round(limit_s, 1), "why": self._ended(process, limit_s)}
        text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        answer |= {"code": process.returncode, "last": text[-3:]}
        if command.result is not None:
            with contextlib.suppress(OSError, ValueError):
                answer["result"] = json.loads((folder / command.result).read_text(encoding="utf-8"))
        return answer

    def _ended(self, process: subprocess.Popen[bytes], limit_s: float) -> str | None:
        """Waits for it for at most `limit_s`, and ends everything that it started; returns why it has no result, or
        None."""
        try:
            process.wait(limit_s)
            return None if process.returncode == 0 else f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s"
        finally:
            for one in [*session_of(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
            process.wait()

    def _archive(self, name: str, paths: Iterator[Path]) -> None:
        """Writes what is there, the small files first, up to MOST_BYTES; a reader sees the old archive or the new."""
        files = [path for path in paths if path.is_file() and not path.is_symlink() and _is_kept(path)]
        left: list[str] = []
        total = 0
        partial = self.out / f".{name}"
        with tarfile.open(partial, "w:xz", preset=1) as archive:
            for path in sorted(files, key=lambda one: one.stat().st_size):
                total += path.stat().st_size if path.suffix in (".gz", ".xz", ".png") else path.stat().st_size // 8
                inside = str(path.relative_to(self.work))
                if total > MOST_BYTES:
                    left.append(inside)
                    continue
                archive.add(path, inside)
            text = json.dumps({"left_out": left}).encode()
            about = tarfile.TarInfo("left_out.json")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text))
        partial.replace(self.out / name)


def _is_kept(path: Path) -> bool:
    return path.name not in LEFT_OUT and not path.name.endswith((".sqlite", ".nsys-rep"))


def environment() -> dict[str, str]:
    """As it is, with this checkout on the path of every process, and no look-ups of models."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def session_of(leader: int) -> list[int]:
    """Processes that descend from this one or are in its session."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = stat.read_text().rpartition(") ")[2].split()
            parents[int(stat.parent.name)] = int(words[1]), int(words[3])
    found = {pid for pid, (_, session) in parents.items() if session == leader}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {leader})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is found")
    parser.add_argument("--within", type=float, default=400.0, metavar="S", help="end everything after S seconds")
    parser.add_argument("--parts", help="only these, separated by commas, in this order")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    asked = parser.parse_args()
    known = {part.name: part for part in parts(asked.tiny)}
    names = asked.parts.split(",") if asked.parts else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no part is named {unknown[0]}: {', '.join(known)}")
    end = time.monotonic() + asked.within
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="on-gpu-") as work:
        measurement = Measurement(out, Path(work), end)
        for name in names:
            measurement.part(known[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())

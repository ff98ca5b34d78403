"""How long a training stalls while `gpuprof trace` stops the profiler and exports, by kernels in the window.

    python -m benchmarks.stall [--kernels 5000,20000,50000,100000] [--kinds plain,stacks,memory,defaults] [--json FILE]

A training of small kernels is recorded, a window of each kind in a process of its own. `stop` is what the run folder
says (stopping the profiler and the export), `longest` the longest step that the training itself measured after the
window opened, which holds the stall; `verdict` the time from the end of the window until the command ended, since the
training stops there. `defaults` is `gpuprof trace` without options: the training continues, is sampled, and a report is
written; `verdict` is then the time from the last recorded step until the verdict is printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpuprof.record.launcher.recording_cost import recorded_until

ROOT = Path(__file__).resolve().parent.parent
TARGET = str(Path(__file__).with_name("launch_heavy.py"))
KINDS = {"plain": (), "stacks": ("--stacks", "3"), "memory": ("--memory", "3")}
"""Options of `gpuprof trace` that record a second window after the usual one."""
DEFAULTS = "defaults"
MANY = 100_000
"""Steps of a training that is ended once the verdict is there."""
SAID = "the recording took"
"""A part of the line after the verdict."""
STEPS = 3
BASELINE = 5
SETTLED = 10
"""Steps after which a usual one is looked for, with defaults."""
LONGEST_S = 150.0


@dataclass(frozen=True, slots=True)
class Stall:
    """One window. `kernels` of the whole window; `raw_mb`: of its trace, decompressed; times in seconds."""

    asked: int
    kind: str
    window: str
    kernels: int
    events: int
    raw_mb: float
    stop_s: float
    longest_s: float
    usual_ms: float
    verdict_s: float
    said: str = ""
    """What gpuprof said of the parts of the recording and of the way to the verdict."""


def measure(kernels: int, kind: str, folder: Path) -> list[Stall]:
    """Records a training with about `kernels` in its window. RuntimeError with the end of the output if that failed."""
    run, said = folder / f"{kind}-{kernels}", ""
    command = [sys.executable, "-m", "gpuprof", "trace", "--out", str(run)]
    target = [TARGET, "--kernels", str(kernels // STEPS), "--steps"]
    first = SETTLED
    if kind == DEFAULTS:
        output, verdict_s, said = _until_the_verdict([*command, *target, str(MANY)], run)
        print(said, file=sys.stderr, flush=True)
    else:
        first = 3
        command += ["--no-report", "--stop", "--settle", str(first), "--baseline", str(BASELINE)]
        command += ["--steps", str(STEPS), *KINDS[kind]]
        done = subprocess.run([*command, *target, "400"], capture_output=True, text=True, timeout=LONGEST_S, cwd=ROOT)
        output, verdict_s = done.stdout + done.stderr, None
    ended = time.time()
    line = [text for text in output.splitlines() if text.startswith("steps ")]
    if not line or not (run / "rank0.json").exists():
        raise RuntimeError("\n".join(output.splitlines()[-12:]))
    each_ms = json.loads(line[-1].removeprefix("steps "))
    usual_ms = statistics.median(each_ms[first : first + BASELINE])
    verdict_s = ended - written(run) if verdict_s is None else verdict_s
    windows = json.loads((run / "rank0.json").read_text(encoding="utf-8"))["windows"]
    found = [_stall(run, window, each_ms, kernels, kind, usual_ms, verdict_s) for window in windows]
    return [replace(one, said=said) for one in found]


def _until_the_verdict(command: list[str], run: Path) -> tuple[str, float, str]:
    """Runs it until its verdict is there, then interrupts the training as a user does; all that it printed, seconds
    from the last recorded step to the verdict, and the line about their parts. RuntimeError where there was none."""
    with (run.parent / "stdout").open("w+b") as stdout:
        process = subprocess.Popen(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        assert process.stderr is not None
        timer = threading.Timer(LONGEST_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        lines, said_ns, said = [], None, ""
        for line in process.stderr:
            lines.append(line)
            if SAID in line:
                said_ns, said = time.time_ns(), line.strip()
                process.send_signal(signal.SIGINT)
        process.wait()
        timer.cancel()
        stdout.seek(0)
        output = stdout.read().decode(errors="replace") + "".join(lines)
    until = recorded_until(json.loads((run / "rank0.json").read_text(encoding="utf-8"))) if said_ns else None
    if said_ns is None or until is None:
        raise RuntimeError("no verdict: " + "".join(lines[-12:]))
    return output, (said_ns - until) / 1e9, said


def _stall(
    run: Path, window: dict, each_ms: list[float], kernels: int, kind: str, usual_ms: float, verdict_s: float
) -> Stall:
    path = next(run.glob(window["file"] + "*"), None)
    text = b"" if path is None else gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    begin = window["first_step"] - 1
    longest_ms = max(each_ms[begin : begin + window["steps"] + 2], default=0.0)
    return Stall(
        kernels, kind, window["window"], text.count(b'"cat": "kernel"'), text.count(b'"ph": "X"'), len(text) / 1e6,
        window["stop_ns"] / 1e9, longest_ms / 1e3, usual_ms, verdict_s,
    )  # fmt: skip


def written(run: Path) -> float:
    """When the description of the windows was written, which follows the last of them; seconds since the epoch."""
    return (run / "rank0.json").stat().st_mtime


def table(found: list[Stall]) -> str:
    """The figures for people, as docs/recording.md has them."""
    lines = ["| window | kernels | events | trace | stall: stop | longest step | usual step | to the verdict |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for one in found:
        name = one.window if one.kind in ("plain", DEFAULTS) else f"{one.window} (with --{one.kind})"
        lines.append(
            f"| {name} | {one.kernels:,} | {one.events:,} | {one.raw_mb:.0f} MB | {one.stop_s:.2f} s"
            f" | {one.longest_s:.2f} s | {one.usual_ms:.0f} ms | {one.verdict_s:.1f} s |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; 1 if a recording failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kernels", default="5000,20000,50000,100000", help="about how many in a window; several with commas"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"also {DEFAULTS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON, after each recording")
    options = parser.parse_args()
    found: list[Stall] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="stall-") as folder:
        for kind in options.kinds.split(","):
            for count in map(int, options.kernels.split(",")):
                begun = time.monotonic()
                try:
                    found += measure(count, kind, Path(folder))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed = 1
                    print(f"{kind} {count}: {error}", file=sys.stderr, flush=True)
                print(f"{kind} {count}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
                if options.json:
                    options.json.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    print(table(found))
    return failed


if __name__ == "__main__":
    sys.exit(main())

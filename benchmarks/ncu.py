"""Whether Nsight Compute's counters confirm gpuprof's limits of the largest kernels of five programs.

    python -m benchmarks.ncu --out DIR            # on a GPU with ncu: records, counts, compares
    python -m benchmarks.ncu --out DIR --compare  # compares what is there

Into DIR/PROGRAM goes a recording of three steps and `ncu.csv`, the counters of its ten largest items; `agreement.json`
has for each program the share of the counted kernels' time whose limit the counters confirm. Each command has its
own time limit, and a program that fails is left out with the reason. Programs start together and take turns on the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof import diagnose, runfile
from gpuprof.cli.count_kernels import TABLE
from gpuprof.diagnosis.counters.counters import with_counters
from gpuprof.errors import GpuprofError
from gpuprof.report.words import counters_words
from gpuprof.tracefile.nsight_compute import read_counters
from scenarios import catalogue
from scenarios.measure import Gates
from scenarios.support.run import GATE, PROCESS

PROGRAMS = ("fp32_wide", "large_vocabulary", "vit_checkpointed", "micro_batches", "packed_blocks")
"""Matrix multiplications in fp32, a large softmax, short kernels, attention with a mask; nothing is fitted to them."""
AT_MOST_S, START_S, WITHIN_S = 40.0, 40.0, 200.0
"""Seconds for a program's turn, for its start until then, and for all together."""
SHORT = ("--settle", "3", "--baseline", "2", "--steps", "3", "--no-sampling", "--no-report", "--stop")
"""Three steps: where the CPU runs ahead, the first begins with kernels whose launch came before the recording."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", action="store_true", help="neither record nor count")
    parser.add_argument("--within", type=float, default=WITHIN_S, metavar="S", help="end everything after S seconds")
    parser.add_argument(
        "--at-most", type=float, default=AT_MOST_S, metavar="S", help="end a program's turn after S seconds"
    )
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.within
    failed = {} if given.compare else _record_and_count(given.programs, out, end, given.at_most)
    found = {name: _agreement(out / name, failed.get(name)) for name in given.programs}
    (out / "agreement.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, one in found.items():
        print(f"\n{name}: {one['why'] or one['said']}")
        for line in one["largest"]:
            print(f"  {line}")
    whole = [one for one in found.values() if one["agreeing_share"] is not None]
    if whole:
        claimed = sum(one["claimed_ns"] for one in whole)
        agreeing = sum(one["claimed_ns"] * one["agreeing_share"] for one in whole)
        print(f"\n{len(whole)} programs: the limiter agrees for {100 * agreeing / claimed:.0f} % of the counted time")
    return 0


@dataclass
class _Job:
    """One command of a program, which imports its packages at once and then waits for its turn."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    run: Path

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def has_trained(self) -> bool:
        """Whether the training has ended; what reads its recording may go on."""
        manifest = runfile.read_json(self.run / runfile.MANIFEST) or {}
        return self.is_over or manifest.get("status", "running") != "running"

    def kill(self) -> None:
        """Kills it and everything that it started: they are one session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _record_and_count(programs: list[str], out: Path, end: float, at_most_s: float) -> dict[str, str]:
    """Program → why it was not counted. All start at once, and take the GPU one after the other."""
    failed: dict[str, str] = {}
    targets = {name: ["-m", catalogue.scenario(f"programs/{name}").module] for name in programs}
    fresh = [name for name in programs if not (out / name).exists()]
    record = {name: [*SHORT, "--out", str(out / name), *targets[name]] for name in fresh}
    _take_turns(record, out, "trace", end, at_most_s, lambda job: job.has_trained, failed)
    count = {name: ["--ncu", str(out / name), *targets[name]] for name in programs if name not in failed}
    _take_turns(count, out, "ncu", end, at_most_s, lambda job: job.is_over, failed)
    return failed


def _take_turns(
    commands: dict[str, list[str]], out: Path, what: str, end: float, at_most_s: float,
    is_done: Callable[[_Job], bool], failed: dict[str, str],
) -> None:  # fmt: skip
    """Runs `gpuprof trace` with these words, each at most that long once it is its turn; `failed` gets the reasons."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-gate-") as folder:
        gates = Gates(f"{folder}/gate")
        jobs = [
            _start(name, words, out / f"{name}.{what}.log", out / name, gates.path) for name, words in commands.items()
        ]
        try:
            for job in jobs:
                begun = time.monotonic()
                while (
                    job.name not in gates.waiting and not job.is_over and time.monotonic() < min(begun + START_S, end)
                ):
                    gates.accept()
                at = time.monotonic()
                gates.open(job)
                while not is_done(job) and time.monotonic() < min(at + at_most_s, end):
                    gates.accept()
                if not is_done(job):
                    failed[job.name] = f"{what}: not done within {at_most_s:.0f} s, or the time was over"
                    job.kill()
                print(f"{job.name}: {what}, waited {at - begun:.0f} s, took {time.monotonic() - at:.0f} s", flush=True)
            for job in jobs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(max(min(at_most_s, end - time.monotonic()), 0.1))
                if job.process.returncode != 0 and job.name not in failed:
                    last = job.log.read_text(encoding="utf-8", errors="replace").splitlines()
                    failed[job.name] = f"{what}: {last[-1] if last else 'no output'}"
        finally:
            for job in jobs:
                job.kill()


def _start(name: str, words: list[str], log: Path, run: Path, gate: str) -> _Job:
    root = str(catalogue.ROOT.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", GATE: gate, PROCESS: name}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuprof", "trace", *words], stdout=file, stderr=subprocess.STDOUT, cwd=log.parent,
            env=os.environ | variables, start_new_session=True,
        )  # fmt: skip
    return _Job(name, process, log, run)


def _agreement(run: Path, why: str | None) -> dict[str, Any]:
    """What the counters say of one program; `why`: why it was not counted."""
    nothing = {"why": why, "agreeing_share": None, "matched_share": None, "claimed_ns": 0, "said": None, "largest": []}
    if why is not None:
        return nothing
    try:
        counters = with_counters(diagnosis := diagnose(run), read_counters(run / TABLE)).counters
        assert counters is not None
        lines = counters_words.lines(with_counters(diagnosis, read_counters(run / TABLE)), counters_words.MOST_ROWS)
    except GpuprofError as error:
        return nothing | {"why": str(error)}
    return {
        "why": None,
        "agreeing_share": counters.agreeing_share,
        "matched_share": counters.matched_share,
        "claimed_ns": sum(one.ns for one in counters.largest if one.claimed is not None),
        "said": lines[0],
        "largest": lines[1:],
    }


if __name__ == "__main__":
    sys.exit(main())

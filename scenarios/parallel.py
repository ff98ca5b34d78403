"""Tensor, pipeline and sharded data parallel training: everything that needs a host with four GPUs, in one command.

Each program, unmodified and with each change, is timed without a profiler and recorded by `gpuprof trace` on all ranks,
and the recording is cut to what is worth keeping. `benchmarks/parallel_jobs.py` compares gpuprof's diagnoses with the
timings.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scenarios.catalogue import ROOT, Scenario
from scenarios.measure import measure

PROGRAMS = ("tensor_data", "tensor_pipeline", "fsdp_ranks", "hsdp")
PACKED = "packed"
"""The folder with everything that belongs below `scenarios`, in the same places."""
_CUT = ROOT.parent / "tests" / "data" / "cut_run.py"


def parallel(chosen: Sequence[Scenario], out: Path, rounds: int, processes: int | None = None) -> int:
    """Times, records and packs each variant of each program. Returns 1 if anything of any failed.

    `out`: NAME.json with the timings, NAME and NAME.FIX with the runs, `packed` with everything that belongs below
    `scenarios`. `processes`: number per program, where it is not that of the GPUs in its scenario.json.
    """
    failed = 0
    for entry in chosen:
        wanted = entry if processes is None else replace(entry, gpus=processes)
        failed |= measure([wanted], rounds, out, record=len(entry.variants()))
        failed |= pack(entry, out, out / PACKED / entry.name)
    return failed


def pack(entry: Scenario, out: Path, target: Path) -> int:
    """Cuts the recordings of all variants, and copies the timings next to them. Returns 1 if one is missing."""
    target.mkdir(parents=True, exist_ok=True)
    failed = 0
    timings = out / f"{entry.name}.json"
    if timings.exists():
        shutil.copy(timings, target / "truth.json")
    for fix in entry.variants():
        run, kept = out / named(entry.name, fix), target / named("recording", fix)
        # All steps are kept: the lengths of batches and of a pipeline's micro-batches repeat only after some steps.
        done = subprocess.run([sys.executable, str(_CUT), str(run), str(kept), "--all"], capture_output=True, text=True)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{run.name} was not packed: {why}", flush=True)
            failed = 1
            continue
        size = sum(path.stat().st_size for path in kept.iterdir())
        print(f"{entry.name}/{kept.name}: {size / 1e6:.1f} MB", flush=True)
    return failed


def named(name: str, fix: str) -> str:
    """The name of a variant."""
    return f"{name}.{fix}" if fix else name

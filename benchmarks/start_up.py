"""How long a start would take if gpuprof left more to its libraries: CPU time of processes, in pairs.

    python -m benchmarks.start_up [--pairs 11] [--trace FILE]

`gpuprof trace` parses its options without click, and machine code is kept and loaded without numba
(`cli/trace_without_click.py`, `tracefile/compiled.py` have the figures). Each way runs in a process of its own, one
after the other in turn; a difference of 30 ms or more is what code of our own must be worth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"

_PARSES = """
import gpuprof.cli.trace as trace
from gpuprof.cli import main, trace_without_click
trace.run = lambda request: 0
{}
assert main(["trace", "--steps", "3", "train.py", "--lr", "1"]) == 0
"""
_BY_CLICK = "trace_without_click.parse = lambda words: None"
_DIAGNOSES = """
import sys
import gpuprof.tracefile.compiled as compiled
{}
from gpuprof.cli import main
sys.argv = ["gpuprof", "diagnose", {!r}]
assert main() == 0
"""
_BY_NUMBA = """
def ready(kernel, types, arguments, made={}):
    if kernel._name not in made:
        made[kernel._name] = compiled._run_by_numba(kernel._find())
    kernel._ready[types] = made[kernel._name]
    return made[kernel._name]
compiled.NumbaFunction._make_ready = ready
"""


def programs(trace: Path) -> dict[str, tuple[str, str]]:
    """What is left to a library → (our way, the library's), as Python programs."""
    return {
        "options parsed by click": (
            _PARSES.format(""),
            _PARSES.format(_BY_CLICK),
        ),
        "functions loaded by numba's cache": (
            _DIAGNOSES.format("", str(trace)),
            _DIAGNOSES.format(_BY_NUMBA, str(trace)),
        ),
    }


def cpu_ms(program: str) -> float:
    """CPU time of a process that runs a program, user and system."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError("a program failed")
    return 1e3 * (used.ru_utime + used.ru_stime)


def paired(ours: str, theirs: str, pairs: int) -> list[tuple[float, float]]:
    """CPU times of both, after a run of each; which goes first alternates."""
    for program in (ours, theirs):
        cpu_ms(program)
    found = []
    for i in range(pairs):
        first, second = (cpu_ms(one) for one in ((ours, theirs) if i % 2 else (theirs, ours)))
        found.append((first, second) if i % 2 else (second, first))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--trace", type=Path, default=TRACE, help="what is diagnosed")
    given = parser.parse_args()
    for name, both in programs(given.trace.resolve()).items():
        found = paired(*both, given.pairs)
        more = sorted(theirs - ours for ours, theirs in found)
        low, high = more[len(more) // 10], more[-1 - len(more) // 10]
        ours = statistics.median(one for one, _ in found)
        print(
            f"{name}: {statistics.median(more):+.0f} ms ({low:+.0f} to {high:+.0f}) on top of {ours:.0f} ms", flush=True
        )


if __name__ == "__main__":
    main()

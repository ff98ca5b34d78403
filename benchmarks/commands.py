"""How long whole commands take: a diagnosis of 1 GB of JSON, one of 410,000 events, and the demo.

    python -m benchmarks.commands [--against OTHER_CHECKOUT] [--rounds 3] [--folder FOLDER]

Every run is a separate process, including imports, with Python's bytecode and numba's kernels cached: each command runs
once before it is measured. The smallest values over the rounds are printed: CPU time (user and system, all threads),
which other load on the machine hardly changes, and wall time, which it does change. Two checkouts take turns. The
traces are generated (`benchmarks.generate`), in FOLDER if it is given, and reused.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generate import generate

ROOT = Path(__file__).resolve().parents[1]
TRACES = (("diagnose, 1 GB, 3.1 million events", 10**9), ("diagnose, 132 MB, 410,000 events", 132_000_000))


def commands(folder: Path) -> dict[str, list[str]]:
    """Name → arguments of gpuprof."""
    found = {}
    for name, size in TRACES:
        path = folder / f"commands-{size}.json"
        if not path.exists():
            generate(path, size)
        found[name] = ["diagnose", str(path)]
    return found | {"demo": ["demo", "--output", str(folder / "demo.html")]}


def seconds(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """(CPU time, wall time) of one command of a checkout, s."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(checkout)
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuprof", *arguments],
        cwd=checkout, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - begin
    if status:
        raise SystemExit(f"gpuprof {' '.join(arguments)} failed in {checkout}")
    return usage.ru_utime + usage.ru_stime, took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the traces are kept")
    asked = parser.parse_args()
    checkouts = [ROOT] if asked.against is None else [asked.against.resolve(), ROOT]
    with tempfile.TemporaryDirectory() as scratch:
        for name, arguments in commands(asked.folder or Path(scratch)).items():
            runs = [[seconds(one, arguments) for one in checkouts] for _ in range(asked.rounds + 1)][1:]
            for checkout, measured in zip(checkouts, zip(*runs, strict=True), strict=True):
                cpu, clock = (min(column) for column in zip(*measured, strict=True))
                print(f"{name:38} {cpu:6.2f} s of processor time {clock:6.2f} s on the clock   {checkout}", flush=True)


if __name__ == "__main__":
    main()

"""How long traces take to load, and how much memory, next to other ways and the least this machine could need.

    python -m benchmarks.load --sizes 0.25,1 --hta-python .venv-hta/bin/python
    python -m benchmarks.load --events 1e6,3e6,1e7

Every measurement is a separate process, and the ways take turns, so that other load on the machine
affects all of them. The table gives medians. The start of Python and imports are left out of the seconds,
except for whole commands.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.layouts import LAYOUTS

BYTES_PER_EVENT = 318
"""Bytes per event of the generated traces, within a few per cent."""
BLOCK_BYTES = 4 << 20
SLOW_FROM_BYTES = 500_000_000
"""From this size on, slow ways are measured once."""

TIMED = """
import sys, time
path = sys.argv[1]
{imports}
begin = time.perf_counter()
{load}
print(time.perf_counter() - begin)
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to load a trace: code that times itself, or else a whole command."""

    name: str
    command: tuple[str, ...]
    """What to run; the trace's path takes the place of PATH."""
    timed: bool = True
    """Its last line says how many seconds it took."""
    slow: bool = False


def way(name: str, imports: str, load: str, python: str = sys.executable, slow: bool = False) -> Way:
    """A way that is a few lines of Python."""
    return Way(name, (python, "-c", TIMED.format(imports=imports, load=load), "PATH"), slow=slow)


OPEN = "import gzip; file = gzip.open(path) if path.endswith('.gz') else open(path, 'rb')"
LIMIT = way(
    "limit: read and one pass",
    "import isal.isal_zlib, numpy; from benchmarks.load import one_pass",
    "one_pass(path)",
)
# gpuprof imports what it needs when it needs it; the others' imports are left out, so here too.
LOAD = way("gpuprof.load", "import gpuprof, numba, numpy, pandas; gpuprof.load", "gpuprof.load(path)")
DIAGNOSE = Way("gpuprof diagnose --json", (sys.executable, "-m", "gpuprof", "diagnose", "PATH", "--json"), False)
JSON = way("json.load", f"import json; {OPEN}", "json.load(file)", slow=True)
ORJSON = way("orjson.loads", f"import orjson; {OPEN}", "orjson.loads(file.read())", slow=True)
HTA = "from hta.trace_analysis import TraceAnalysis"


def hta(python: str) -> Way:
    """What a user of HolisticTraceAnalysis calls first; it is installed in its own environment."""
    return way("HTA 0.5.0", HTA, "TraceAnalysis(trace_files={0: path}, trace_dir='')", python, slow=True)


def one_pass(path: str) -> int:
    """The least a reader must do: get every byte, and look at it. Counts double quotes."""
    import numpy as np
    from isal import isal_zlib

    quotes = 0
    with Path(path).open("rb", buffering=0) as file:
        if path.endswith(".gz"):
            inflater = isal_zlib.decompressobj(wbits=31)
            while packed := inflater.unconsumed_tail or file.read(BLOCK_BYTES // 16):
                block = np.frombuffer(inflater.decompress(packed, BLOCK_BYTES), np.uint8)
                quotes += int(np.count_nonzero(block == ord('"')))
        else:
            buffer = bytearray(BLOCK_BYTES)
            block = np.frombuffer(buffer, np.uint8)
            while size := file.readinto(buffer):
                quotes += int(np.count_nonzero(block[:size] == ord('"')))
    return quotes


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    seconds: float
    peak_bytes: int


def measured(way: Way, path: Path) -> Cost | None:
    """Run a way once in a new process; None, and why on stderr, if it fails."""
    command = [str(path) if word == "PATH" else word for word in way.command]
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        # wait4 rather than wait: it returns the peak memory of this one child.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            print(f"{way.name}: {said[-1] if said else f'exit {process.returncode}'}", file=sys.stderr)
            return None
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(float(lines[-1]) if way.timed else seconds, usage.ru_maxrss * unit)


def generate(path: Path, nbytes: int, layout: str = "kineto") -> int:
    """Write a trace; returns the number of its events.

    In another process, since a child's peak memory includes what its parent held when it was started.
    """
    command = ("-m", "benchmarks.generate", str(path), "--bytes", str(nbytes), "--layout", layout)
    done = subprocess.run((sys.executable, *command), stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[0])


def medians(ways: Sequence[Way], path: Path, repeats: int, nbytes: int) -> dict[Way, Cost]:
    """Measure all ways in turn, several times."""
    costs: dict[Way, list[Cost]] = {way: [] for way in ways}
    failed = set()
    for i in range(repeats):
        for one in ways:
            if one in failed or (i and one.slow and nbytes >= SLOW_FROM_BYTES):
                continue
            cost = measured(one, path)
            if cost is None:
                failed.add(one)
            else:
                costs[one].append(cost)
    return {
        one: Cost(statistics.median(c.seconds for c in some), int(statistics.median(c.peak_bytes for c in some)))
        for one, some in costs.items()
        if some
    }


def compare(ways: Sequence[Way], nbytes: int, suffix: str, folder: Path, options: argparse.Namespace) -> None:
    """One table: every way on one trace."""
    path = folder / f"compare{suffix}"
    events = generate(path, nbytes, options.layout)
    costs = medians(ways, path, options.repeats, nbytes)
    on_disk = path.stat().st_size
    path.unlink()
    size = f"{nbytes / 1e9:g} GB of JSON, {events / 1e6:.2f} M events"
    print(f"\n**{size}, `{suffix}` ({on_disk / 1e6:,.0f} MB)**\n")
    print("| way | seconds | × faster than HTA | × the limit | peak GB per GB of JSON |")
    print("|---|---:|---:|---:|---:|")
    least = costs.get(LIMIT)
    peer = next((cost for one, cost in costs.items() if one.name.startswith("HTA")), None)
    for one in ways:
        if cost := costs.get(one):
            faster = f"{peer.seconds / cost.seconds:.1f}" if peer else "–"
            limit = f"{cost.seconds / least.seconds:.1f}" if least else "–"
            memory = f"{cost.peak_bytes / nbytes:.2f}"
            print(f"| {one.name} | {cost.seconds:.3f} | {faster} | {limit} | {memory} |")
        else:
            print(f"| {one.name} | failed | – | – | – |")


def scale(counts: Sequence[float], suffix: str, folder: Path, options: argparse.Namespace) -> None:
    """One table: gpuprof alone as traces grow; if it is linear, the columns per million events stay level."""
    print(f"\n**gpuprof as traces grow, `{suffix}`**\n")
    print("| events | JSON MB | way | seconds | s per M events | peak GB | GB per M events |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    for count in counts:
        path = folder / f"scale{suffix}"
        nbytes = int(count * BYTES_PER_EVENT)
        events = generate(path, nbytes, options.layout) / 1e6
        for one, cost in medians((LOAD, DIAGNOSE), path, options.repeats, nbytes).items():
            peak = cost.peak_bytes / 1e9
            each = f"{cost.seconds:.2f} | {cost.seconds / events:.3f} | {peak:.2f} | {peak / events:.3f}"
            print(f"| {events:.2f} M | {nbytes / 1e6:,.0f} | {one.name} | {each} |")
        path.unlink()


def warm_up(ways: Sequence[Way], folder: Path) -> None:
    """Compile bytecode and numba's kernels, which happens once after an installation."""
    path = folder / "warm-up.json"
    generate(path, 30_000_000)
    for one in ways:
        measured(one, path)
    path.unlink()


def numbers(text: str) -> list[float]:
    """`1e6,3e6` as numbers."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=numbers, default="0.25,1", help="GB of JSON, several with commas between")
    parser.add_argument("--events", type=numbers, help="instead: how gpuprof alone grows with the number of events")
    parser.add_argument("--hta-python", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="kineto")
    parser.add_argument("--formats", default=".json,.json.gz", help="suffixes of the files")
    parser.add_argument("--only", default="", help="only ways whose name has this in it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work-dir", type=Path, help="where the traces go (default: a temporary folder)")
    options = parser.parse_args()
    peers = (JSON, ORJSON, *([hta(options.hta_python)] if options.hta_python else []))
    with ExitStack() as stack:
        folder = options.work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        warm_up((LOAD, DIAGNOSE, LIMIT), folder)
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {processor()}")
        for suffix in options.formats.split(","):
            if options.events:
                scale(options.events, suffix, folder, options)
                continue
            ways = [one for one in (*peers, LOAD, DIAGNOSE, LIMIT) if options.only in one.name]
            for gigabytes in options.sizes:
                compare(ways, int(gigabytes * 1e9), suffix, folder, options)


def processor() -> str:
    """The processor's name, if the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


if __name__ == "__main__":
    main()

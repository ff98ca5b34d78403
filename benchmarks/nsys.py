"""How long a large export of Nsight Systems takes to be read and diagnosed.

    python -m benchmarks.nsys [--rows 1000000] [--shared FOLDER]

The steps of a real export are repeated, one after the other, until there are this many rows of kernels, calls and
ranges; each repetition has correlation ids of its own, and every third range a name of its own, as `emit_nvtx` has.
Prints the best of three of `gpuprof.load` and of `gpuprof.diagnose`, next to a plain `SELECT *` of the same tables.
"""

from __future__ import annotations

import argparse
import gzip
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gpuprof
from benchmarks.accuracy import ROOT
from gpuprof.record.windows.memory import most_resident_bytes

TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
SOURCE = "traces/h200/tiny_lora_small_batch.nsys.sqlite.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.sqlite"
        path.write_bytes(gzip.decompress((args.shared / SOURCE).read_bytes()))
        rows = repeat(path, args.rows)
        print(f"{rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB")
        for name, work in (
            ("SELECT *", lambda: read_plainly(path)),
            ("gpuprof.load", lambda: gpuprof.load(path)),
            ("gpuprof.diagnose", lambda: gpuprof.diagnose(path)),
        ):
            print(f"{name:18}{best(work):6.2f} s")
    print(f"peak memory       {most_resident_bytes() / 1e9:6.2f} GB")


def best(work: Callable[[], object], times: int = 3) -> float:
    """Seconds of the quickest of some runs."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return min(took)


def read_plainly(path: Path) -> int:
    """All rows as tuples, which is the least that reading them can take."""
    with sqlite3.connect(path) as file:
        return sum(len(file.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES)


def repeat(path: Path, rows: int) -> int:
    """Repeats what an export recorded until it holds this many rows; how many it holds then."""
    file = sqlite3.connect(path)
    columns = {table: [str(row[1]) for row in file.execute(f"PRAGMA table_info({table})")] for table in TABLES}
    once = sum(file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
    low, high, ids = file.execute(
        "SELECT min(start), max(end), max(correlationId) + 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    ).fetchone()
    for table in TABLES:
        file.execute(f"CREATE TEMP TABLE once_{table} AS SELECT * FROM {table} WHERE start >= 0")
    for k in range(1, rows // once + 1):
        later = k * (high - low + 1_000_000)
        for table in TABLES:
            moved = {
                "start": f"start + {later}",
                "end": f"end + {later}",
                "correlationId": f"correlationId + {k * ids}",
            }
            if table == "NVTX_EVENTS":
                moved["text"] = f"CASE WHEN rowid % 3 THEN text ELSE text || ', op_id = ' || (rowid + {k * 10**6}) END"
            chosen = ", ".join(moved.get(name, name) for name in columns[table])
            file.execute(f"INSERT INTO {table} SELECT {chosen} FROM once_{table}")
    file.commit()
    file.close()
    return once * (rows // once + 1)


if __name__ == "__main__":
    main()

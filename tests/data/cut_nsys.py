"""Makes a small run folder that can be published out of one that `gpuprof trace --nsys` recorded.

    python tests/data/cut_nsys.py RUN nsys/NAME [--with TORCH_RUN]

The export keeps what a diagnosis comes from, of the recorded process alone: other tables (paths, host, messages), the
processes and threads of the rest of the machine, and texts that nothing refers to are left out. `--with`: a run of the
same program under torch.profiler, whose middle step is put next to it, so that the folder holds both kinds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import tempfile
from pathlib import Path

from cut_run import UUID, cut_trace, write_rest

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD", "NVTX_EVENTS", "GPU_METRICS",
    "TARGET_INFO_GPU_METRICS", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT", "StringIds", "ThreadNames", "PROCESSES",
}  # fmt: skip
NAMES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", ("demangledName", "shortName", "mangledName")),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", ("nameId",)),
    ("CUPTI_ACTIVITY_KIND_OVERHEAD", ("nameId",)),
    ("PROFILER_OVERHEAD", ("nameId",)),
    ("NVTX_EVENTS", ("textId",)),
    ("ThreadNames", ("nameId",)),
)
COUNTERS = ("SMs Active%", "Tensor Active%", "DRAM Read%", "DRAM Write%")
"""Of the counters those that are read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--with", type=Path, dest="torch_run", metavar="TORCH_RUN")
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    ranks = [json.loads(path.read_text()) for path in sorted(args.run.glob("rank*.json"))]
    pids = [rank["pid"] for rank in ranks]
    cut_export(next(args.run.glob("nsys.sqlite*")), args.target / "nsys.sqlite.gz", pids)
    if args.torch_run:
        cut_trace(args.torch_run / "trace.rank0.json.gz", args.target / "trace.rank0.json.gz", whole=True, kept=None)
    write_rest(args.run, args.target, ranks)


def cut_export(source: Path, target: Path, pids: list[int]) -> None:
    """Writes the part of an export that is to be published."""
    data = source.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.sqlite"
        path.write_bytes(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        with sqlite3.connect(path) as file:
            reduce(file, pids)
        file = sqlite3.connect(path)
        file.execute("VACUUM")
        file.close()
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    print(f"{target}: {target.stat().st_size:,} bytes")


def reduce(file: sqlite3.Connection, pids: list[int]) -> None:
    """Takes out what is not to be published."""
    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in tables - TABLES:
        file.execute(f'DROP TABLE "{table}"')
    tables &= TABLES
    for table, column in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
        known = ", ".join(map(str, pids))
        file.execute(f"DELETE FROM {table} WHERE (({column} >> 24) & 16777215) NOT IN ({known})")
    if "GPU_METRICS" in tables:
        kept = " OR ".join(f"metricName LIKE '{name}'" for name in COUNTERS)
        file.execute(f"DELETE FROM TARGET_INFO_GPU_METRICS WHERE NOT ({kept})")
        file.execute("DELETE FROM GPU_METRICS WHERE metricId NOT IN (SELECT metricId FROM TARGET_INFO_GPU_METRICS)")
    if "TARGET_INFO_GPU" in tables:
        file.execute("UPDATE TARGET_INFO_GPU SET uuid = ?", (UUID,))
    used = " UNION ".join(
        f"SELECT {name} FROM {table} WHERE {name} IS NOT NULL"
        for table, columns in NAMES
        if table in tables
        for name in columns
    )
    file.execute(f"DELETE FROM StringIds WHERE id NOT IN ({used})")


if __name__ == "__main__":
    main()

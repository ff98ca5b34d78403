"""How long `gpuprof hang` takes for the flight recorder dumps of a large job, and how much memory.

    python -m benchmarks.hang_dumps [--ranks N] [--entries N] [--json]

The dumps are torch's own, from a process that calls this many collectives from a hundred lines. All ranks have the same
dump, with the last collective unfinished; one rank has not called it. The command runs in a separate process; measured
are wall and CPU time from start to end, and the largest resident set of a process.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CULPRIT = 7
PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

folder, entries = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
lines = [compile("\\n" * at + "dist.all_reduce(torch.ones(8))", "train.py", "exec") for at in range(100)]
for at in range(entries):
    if at == entries - 1:
        time.sleep(0.5)  # until the one before is known to be done
        open(f"{folder}/without", "wb").write(_dump_fr_trace())
    exec(lines[at % 100])
time.sleep(0.5)
open(f"{folder}/with", "wb").write(_dump_fr_trace())
"""
WORD, TRUE, FALSE = b"retired", b"\x88", b"\x89"
"""As a pickle has them."""
LATER_S = 60
"""Seconds by which the files' times are set later than the last call."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.hang_dumps", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="the same dumps as JSON, which are seven times as large")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gpuprof-hang-") as folder:
        size = write(Path(folder), options.ranks, options.entries, options.json)
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "gpuprof", "hang", "--json", folder]
        said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        took_s = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (said["kind"], said["ranks"]) == ("missing", [CULPRIT]), (said["kind"], said["ranks"])
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{options.ranks:,} dumps of {options.entries:,} collectives, {size / 1e6:,.0f} MB: {took_s:.1f} s, of it "
        f"{cpu_s:.1f} s of CPU; {used.ru_maxrss / 1e6:.2f} GB at most"
    )
    return 0


def write(folder: Path, ranks: int, entries: int, as_json: bool = False) -> int:
    """Writes the dumps; their bytes."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-hang-") as made:
        variables = os.environ | {"TORCH_FR_BUFFER_SIZE": str(entries)}
        subprocess.run([sys.executable, "-c", PROGRAM, made, str(entries)], check=True, env=variables)
        called, without = ((Path(made) / name).read_bytes() for name in ("with", "without"))
    place = called[called.index(WORD) + len(WORD) + 1]  # of the word, in the pickle's memo
    at = called.rindex(b"h" + bytes([place]) + TRUE) + 2
    called = called[:at] + FALSE + called[at + 1 :]
    if as_json:
        called, without = (json.dumps(pickle.loads(data)).encode() for data in (called, without))  # of our own process
    for rank in range(ranks):
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(without if rank == CULPRIT else called)
        os.utime(path, (time.time(), time.time() + LATER_S))
    return len(called) * (ranks - 1) + len(without)


if __name__ == "__main__":
    sys.exit(main())

"""Flight recorder dumps of one rank as this version of torch writes them, and what torch's own analyser makes of them.

    python -m benchmarks.nccl_dumps --out DIR                  # NCCL, on a GPU
    python -m benchmarks.nccl_dumps --out DIR --backend gloo   # the cases that need no GPU

A process for each case, all at the same time; in DIR/CASE nccl_trace_rank_0 is the dump (a pickle), as.json the same
as JSON, and other.fr what the recorder of other backends holds. fr_trace.txt and fr_entries.txt are the output of
`torch.distributed.flight_recorder.fr_trace`, hang.txt that of `gpuprof hang`. DIR/dumps.json has for each case the
number of entries and their states, or why there is no dump.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DUMP, AS_JSON, OTHER = "nccl_trace_rank_", "as.json", "other.fr"
RANK = 0
PATIENCE_S = 60.0
TIMEOUT_S = 4.0
"""Seconds after which NCCL's watchdog aborts a collective in the case `timeout`."""
BLOCKED_S = 45.0
"""Seconds for which nothing runs on the stream of a case that waits."""
BIG, MANY = 1 << 28, 400
"""Elements of 4 bytes of a collective that takes a while, and how many follow one another."""


def start(backend: str, size: int = 1, timeout_s: float = 600.0) -> Any:
    """A process group of this rank; torch.distributed."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group(
        backend, store=HashStore(), rank=RANK, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    return dist


def tensor(elements: int = 1024) -> Any:
    import torch

    return torch.ones(elements, device="cuda" if torch.cuda.is_available() else "cpu")


def completed(backend: str, out: Path) -> None:
    """One of each collective, all completed."""
    dist, one = start(backend), tensor()
    for _ in range(3):
        dist.all_reduce(one)
        dist.all_gather([tensor()], one)
        dist.broadcast(one, RANK)
        dist.barrier()
    if backend == "nccl":
        dist.all_gather_into_tensor(tensor(), one)
        dist.reduce_scatter_tensor(tensor(), one)
    wait()
    write(out)


def groups(backend: str, out: Path) -> None:
    """Collectives of nested groups, one within the other's steps."""
    dist, one = start(backend), tensor()
    outer, inner = dist.new_group([RANK], group_desc="outer"), dist.new_group([RANK], group_desc="inner")
    for _ in range(3):
        dist.all_reduce(one)
        dist.all_reduce(one, group=outer)
        for _ in range(2):
            dist.all_gather([tensor()], one, group=inner)
    wait()
    write(out)


def coalesced(backend: str, out: Path) -> None:
    """Several collectives that are launched as one."""
    dist = start(backend)
    several = [tensor(256 << i) for i in range(3)]
    with dist._coalescing_manager(device=several[0].device, async_ops=True) as manager:
        for one in several:
            dist.all_reduce(one)
    manager.wait()
    wait()
    write(out)


def waits(backend: str, out: Path) -> None:
    """A collective that waits for a kernel before it."""
    dist, one = start(backend), tensor()
    dist.all_reduce(one)
    wait()
    block_stream()
    dist.all_reduce(one)
    dist.all_gather([tensor()], one, async_op=True)
    time.sleep(1.0)
    write(out)


def running(backend: str, out: Path) -> None:
    """Many collectives of which one has started and those behind it have not."""
    dist, one, other = start(backend), tensor(BIG), tensor(BIG)
    dist.all_gather_into_tensor(other, one)
    wait()
    for _ in range(MANY):
        dist.all_gather_into_tensor(other, one, async_op=True)
    write(out)


def timeout(backend: str, out: Path) -> None:
    """A collective that NCCL's watchdog aborts; the watchdog writes the dump by itself and ends the process."""
    dist, one = start(backend, timeout_s=TIMEOUT_S), tensor()
    dist.all_reduce(one)
    wait()
    block_stream()
    dist.all_reduce(one)
    time.sleep(PATIENCE_S)


def missing_rank(backend: str, out: Path) -> None:
    """The first collective of a job of two ranks, the other of which never arrives."""
    dist, one = start(backend, size=2), tensor()
    threading.Thread(target=dist.all_reduce, args=(one,), daemon=True).start()
    time.sleep(5.0)
    write(out)


CASES = {one.__name__: one for one in (completed, groups, coalesced, waits, running, timeout, missing_rank)}
ON_CPU = (completed, groups)


def wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


_kept: list[Any] = []


def block_stream() -> None:
    """Blocks the current stream for BLOCKED_S with a CPU function in it, so that the GPU itself is free for others."""
    import torch

    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(BLOCKED_S))
    _kept.append(function)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code = ctypes.CDLL(path).cudaLaunchHostFunc(stream, function, None)
    if code:
        raise RuntimeError(f"cudaLaunchHostFunc failed with {code}")


def write(out: Path) -> None:
    """What the flight recorders of this process hold."""
    from torch._C import _distributed_c10d as recorders

    own = "_dump_nccl_trace" if hasattr(recorders, "_dump_nccl_trace") else "_dump_fr_trace"
    places = {"_dump_fr_trace": OTHER, f"{own}_json": AS_JSON, own: f"{DUMP}{RANK}"}
    for name, place in places.items():
        if (dump := getattr(recorders, name, None)) is not None:
            found = dump()
            (out / place).write_bytes(found if isinstance(found, bytes) else found.encode())


def one_case(name: str, backend: str, out: Path) -> None:
    """Runs in a process of its own, which ends at once whatever hangs."""
    try:
        CASES[name](backend, out)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def started(name: str, backend: str, out: Path) -> subprocess.Popen[bytes]:
    out.mkdir(parents=True, exist_ok=True)
    prefix = str(out / DUMP)
    variables = {
        "TORCH_FR_BUFFER_SIZE": "1000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "1000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": prefix, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix, "TORCH_NCCL_ENABLE_TIMING": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
    }  # fmt: skip
    with (out / "output.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--case", name, "--backend", backend, "--out", str(out)],
            env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def analysed(out: Path) -> None:
    """Has a dump read by torch's own analyser and by ours."""
    with tempfile.TemporaryDirectory() as alone:  # the analyser reads all files that are there
        shutil.copy(out / f"{DUMP}{RANK}", alone)
        words = ["-m", "torch.distributed.flight_recorder.fr_trace", alone, "-p", DUMP, "--allow-incomplete-ranks"]
        said([sys.executable, *words], out / "fr_trace.txt")
        said([sys.executable, *words, "-j"], out / "fr_entries.txt")
    said([sys.executable, "-m", "gpuprof", "hang", str(out / f"{DUMP}{RANK}")], out / "hang.txt")


def said(command: list[str], to: Path) -> None:
    """Runs a command, its output into a file."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, text=True, cwd=to.parent,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        text = done.stdout
    except subprocess.TimeoutExpired:
        text = "it did not end"
    to.write_text(text, encoding="utf-8")


def described(out: Path) -> dict[str, Any]:
    """What is in the dump of a case."""
    found: dict[str, Any] = {}
    for path in sorted(out / name for name in (f"{DUMP}{RANK}", AS_JSON, OTHER)):
        with contextlib.suppress(OSError, ValueError, pickle.UnpicklingError, EOFError):
            text = path.read_bytes()
            dump = json.loads(text) if path.suffix == ".json" else pickle.loads(text)  # of a process of our own
            entries = dump.get("entries") or []
            found[path.name] = {
                "version": dump.get("version"), "entries": len(entries), "bytes": len(text),
                "states": dict(Counter(str(one.get("state")) for one in entries)),
            }  # fmt: skip
    log = (out / "output.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"dumps": found, "last_words": (log or [""])[-1][:300]}


def main() -> int:
    """The command line; 1 if a case has no dump."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    out = asked.out.resolve()
    if asked.case:
        one_case(asked.case, asked.backend, out)
    chosen = CASES if asked.backend == "nccl" else {one.__name__: one for one in ON_CPU}
    processes = {name: started(name, asked.backend, out / name) for name in chosen}
    end = time.monotonic() + PATIENCE_S
    found: dict[str, Any] = {}
    for process in processes.values():
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for name, process in processes.items():
        found[name] = {"code": process.returncode, **described(out / name)}
        (out / "dumps.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    with ThreadPoolExecutor() as threads:
        list(threads.map(analysed, (out / name for name in chosen if found[name]["dumps"])))
    return int(not all(one["dumps"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())

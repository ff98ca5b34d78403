"""From an export to the Trace of one of its processes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.nsys.address import with_process
from gpuprof.tracefile.nsys.counters import read_counters
from gpuprof.tracefile.nsys.cpu_activity import joined, read_calls, read_os_runtime, read_overhead, read_syncs
from gpuprof.tracefile.nsys.database import opened
from gpuprof.tracefile.nsys.gpu import read_gpu
from gpuprof.tracefile.nsys.metadata import is_export, read_meta
from gpuprof.tracefile.nsys.processes import ExportedProcess, Threads, find_processes
from gpuprof.tracefile.nsys.ranges import read_ranges
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import AllocatorEvents, Flows, Frames, Reading, Trace


def read_nsys(path: Path, size: int, pid: int | None = None) -> Trace:
    """The Trace of a process of an export; without `pid`, of the process with the lowest GPU.
    Raises UnreadableTrace, one line, if the database is not an export or does not hold the process.
    """
    with opened(path) as database:
        if not is_export(database):
            raise UnreadableTrace(
                f"{path} is an SQLite file, but no export of Nsight Systems: make one with nsys export --type sqlite"
            )
        processes = find_processes(database)
        process = _chosen(path, processes, pid)
        strings = Strings(database)
        threads = Threads(database, strings)
        gpu = read_gpu(database, process, strings, threads)
        calls, repeated = read_calls(database, process, strings, threads)
        ops, marks = read_ranges(database, process, strings, threads)
        parts = [repeated, marks, *read_overhead(database, process, strings, threads)]
        parts.append(read_os_runtime(database, process, strings, threads))
        devices = np.unique(gpu.device).tolist()
        other = joined(parts)
        syncs = read_syncs(database, process, strings)
        counters = read_counters(database, process, devices, strings)
        tables = (gpu, calls, ops, other, syncs, counters)
        return Trace(
            reading=Reading(
                path=str(path) if pid is None else with_process(path, pid),
                kind="nsys",
                size_bytes=size,
                text_bytes=0,
                events=sum(len(table) for table in tables),
                truncated=database.damage,
                reader="nsys",
                other_processes=tuple(with_process(path, p.pid) for p in processes if p is not process),
            ),
            meta=read_meta(database, process, devices),
            strings=strings.texts,
            threads=threads.all,
            ops=ops,
            calls=calls,
            gpu=gpu,
            frames=Frames.none(),
            syncs=syncs,
            memory=AllocatorEvents.none(),
            flows=Flows.none(),
            other=other,
            counters=counters,
        )


def pids_in(path: Path) -> tuple[int, ...]:
    """The processes of an export that did GPU work, in the order of their GPUs. Raises UnreadableTrace or OSError."""
    about = path.stat()
    return _pids_in(path, about.st_size, about.st_mtime_ns)


@lru_cache
def _pids_in(path: Path, _size: int, _mtime_ns: int) -> tuple[int, ...]:
    """The same, cached until the file changes: several places ask what a path is."""
    with opened(path) as database:
        return tuple(process.pid for process in find_processes(database) if process.device >= 0)


def _chosen(path: Path, processes: list[ExportedProcess], pid: int | None) -> ExportedProcess:
    if pid is None:
        return processes[0]
    found = next((process for process in processes if process.pid == pid), None)
    if found is None:
        there = ", ".join(str(process.pid) for process in processes)
        raise UnreadableTrace(f"{path} holds no GPU work of process {pid}; it holds that of {there}")
    return found

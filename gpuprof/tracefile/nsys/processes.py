"""Processes and threads of an export: it holds all processes that the profiler followed, a Trace only one.

Nsight Systems numbers processes and threads over all machines of a recording: a `globalPid` holds the process in its
bits 24 to 47, and a `globalTid` also the thread in its lowest 24. The bits from 24 up identify the process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import ABSENT, I32, I64, Thread
from gpuprof.units import Bits, Code, Published

WORK_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_PROCESS_BITS: Published[Bits] = 24
_MASK: Published[Code] = (1 << _PROCESS_BITS) - 1


@dataclass(frozen=True, slots=True)
class ExportedProcess:
    """One process of an export. `key` is what its rows have in common (see `key_of`)."""

    key: int
    pid: int
    device: int
    """The lowest device that it uses; -1 if none."""


def key_of(numbers: I64) -> I64:
    """The process part of globalPids and globalTids; ABSENT where a row lacks it."""
    return np.where(numbers == ABSENT, ABSENT, numbers >> _PROCESS_BITS)


def find_processes(database: Database) -> list[ExportedProcess]:
    """The processes with GPU work, by device, then by pid; if there are none, those with CUDA calls; never empty."""
    devices: dict[int, int] = {}
    for table in WORK_TABLES:
        found = database.numbers(table, ("globalPid", "deviceId"))
        keys = key_of(found["globalPid"])
        for key in np.unique(keys).tolist():
            lowest = int(found["deviceId"][keys == key].min())
            devices[key] = min(devices.get(key, lowest), lowest)
    if len(devices) > 1:
        devices.pop(ABSENT, None)  # rows without a process
    if not devices:
        owners = database.distinct(CALLS, "globalTid") + database.distinct("NVTX_EVENTS", "globalTid")
        devices = dict.fromkeys({number >> _PROCESS_BITS for number in owners}, -1) or {ABSENT: -1}
    processes = [
        ExportedProcess(key, 0 if key == ABSENT else key & _MASK, max(device, -1)) for key, device in devices.items()
    ]
    return sorted(processes, key=lambda p: (p.device, p.pid))


class Threads:
    """The tracks of a trace, numbered in order of first use."""

    def __init__(self, database: Database, strings: Strings) -> None:
        self._names = {
            number: strings.stored(name) or "" for number, name in database.pairs("ThreadNames", "globalTid", "nameId")
        }
        self._processes = {
            number >> _PROCESS_BITS: name
            for number, name in database.pairs("PROCESSES", "globalPid", "name")
            if isinstance(number, int) and isinstance(name, str)
        }
        self._tracks: dict[Thread, int] = {}

    def host(self, numbers: I64) -> I32:
        """The tracks of a column of globalTids."""
        return self._column(numbers, self._host)

    def gpu(self, device: I64, stream: I64) -> I32:
        """The tracks of streams, as torch.profiler has them: the device is the process, the stream the thread."""
        pairs, inverse = np.unique(np.stack([device, stream], axis=1), axis=0, return_inverse=True)
        tracks = [self._number(Thread(str(d), str(s), f"stream {s}", f"GPU {d}")) for d, s in pairs.tolist()]
        return np.array(tracks, np.int32)[inverse.reshape(-1)] if len(pairs) else np.empty(0, np.int32)

    @property
    def all(self) -> tuple[Thread, ...]:
        return tuple(self._tracks)

    def _column(self, numbers: I64, track) -> I32:
        distinct, inverse = np.unique(numbers, return_inverse=True)
        tracks = [self._number(track(number)) for number in distinct.tolist()]
        return np.array(tracks, np.int32)[inverse.reshape(-1)] if len(distinct) else np.empty(0, np.int32)

    def _host(self, number: int) -> Thread:
        if number == ABSENT:
            return Thread("", "")
        key = number >> _PROCESS_BITS
        return Thread(str(key & _MASK), str(number & _MASK), self._names.get(number, ""), self._processes.get(key, ""))

    def _number(self, thread: Thread) -> int:
        return self._tracks.setdefault(thread, len(self._tracks))

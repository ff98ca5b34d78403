"""What ran on the devices: kernels, copies, sets, and CUDA graphs that were recorded as a whole."""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.nsys import names
from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.demangle import demangled
from gpuprof.tracefile.nsys.processes import WORK_TABLES, ExportedProcess, Threads, key_of
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import ABSENT, I32, I64, KERNEL, MEMCPY, MEMSET, NO_TEXT, WHOLE_GRAPH, GpuEvents

_KERNELS, _COPIES, _SETS, _GRAPHS = WORK_TABLES
_COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
_NAMES = ("mangledName", "demangledName", "shortName")
_SHARED = ("sharedMemoryExecuted", "staticSharedMemory", "dynamicSharedMemory")


def read_gpu(database: Database, process: ExportedProcess, strings: Strings, threads: Threads) -> GpuEvents:
    """All GPU work of a process, by start."""
    parts = [
        _kernels(database, process, strings),
        _copies(database, process, strings),
        _sets(database, process, strings),
        _graphs(database, process, strings),
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((columns["end_ns"], columns["start_ns"]))
    columns = {name: column[order] for name, column in columns.items()}
    thread = threads.gpu(columns["device"].astype(np.int64), columns["stream"])
    return GpuEvents(thread=thread, **columns)


def _read(database: Database, table: str, process: ExportedProcess, more: tuple[str, ...]) -> dict[str, I64]:
    """The rows of a process, without those that lack a beginning or an end."""
    found = database.numbers(table, (*_COMMON, *more))
    keep = (key_of(found["globalPid"]) == process.key) & (found["start"] != ABSENT) & (found["end"] != ABSENT)
    return {name: column[keep] for name, column in found.items()}


def _columns(found: dict[str, I64], kind: int, name: I32, **given: np.ndarray) -> dict[str, np.ndarray]:
    rows = len(name)
    none, no_text, none32 = (
        np.full(rows, ABSENT),
        np.full(rows, NO_TEXT, np.int32),
        np.full(rows, np.iinfo(np.int32).min, np.int32),
    )
    columns: dict[str, np.ndarray] = {
        "kind": np.full(rows, kind, np.uint8),
        "name": name,
        "device": _small(found["deviceId"]),
        "stream": found["streamId"],
        "start_ns": found["start"],
        "end_ns": found["end"],
        "correlation": found["correlationId"],
        "external": none,
        **dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers"), none32),
        "shared_bytes": none,
        "occupancy": np.full(rows, np.nan, np.float32),
        "bytes": none,
        "graph_node": found.get("graphNodeId", none),
        "extra": no_text,
    }
    return columns | given


def _small(values: I64) -> I32:
    return np.where(np.abs(values) < 2**31, values, 0).astype(np.int32)


def _shape(values: I64) -> I32:
    """Counts; ABSENT where missing or impossible."""
    known = (values >= 0) & (values < 2**31)
    return np.where(known, values, np.iinfo(np.int32).min).astype(np.int32)


def _kernels(database: Database, process: ExportedProcess, strings: Strings) -> dict[str, np.ndarray]:
    found = _read(database, _KERNELS, process, (*_SHAPE, *_NAMES, *_SHARED, "graphNodeId"))
    name = np.full(len(found["start"]), NO_TEXT, np.int32)
    for column in _NAMES:  # the first that exists
        lost = name == NO_TEXT
        rename = demangled if column == "mangledName" else names.kernel
        name[lost] = strings.named(found[column][lost], rename)
    name[name == NO_TEXT] = strings.id("kernel without a name") if (name == NO_TEXT).any() else NO_TEXT
    executed, static, dynamic = (found[column] for column in _SHARED)
    both = np.where((static == ABSENT) | (dynamic == ABSENT), ABSENT, static + dynamic)
    targets = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")
    shape = {target: _shape(found[source]) for target, source in zip(targets, _SHAPE, strict=True)}
    return _columns(found, KERNEL, name, shared_bytes=np.where(both == ABSENT, executed, both), **shape)


def _copies(database: Database, process: ExportedProcess, strings: Strings) -> dict[str, np.ndarray]:
    found = _read(database, _COPIES, process, ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"))
    kinds = np.stack([found["copyKind"], found["srcKind"], found["dstKind"]], axis=1)
    distinct, inverse = np.unique(kinds, axis=0, return_inverse=True)
    ids = np.array([strings.id(names.copy(*kind)) for kind in distinct.tolist()], np.int32)
    name = ids[inverse.reshape(-1)] if len(distinct) else np.empty(0, np.int32)
    return _columns(found, MEMCPY, name, bytes=found["bytes"])


def _sets(database: Database, process: ExportedProcess, strings: Strings) -> dict[str, np.ndarray]:
    found = _read(database, _SETS, process, ("bytes", "memKind", "graphNodeId"))
    distinct, inverse = np.unique(found["memKind"], return_inverse=True)
    ids = np.array([strings.id(names.memset(kind)) for kind in distinct.tolist()], np.int32)
    name = ids[inverse.reshape(-1)] if len(distinct) else np.empty(0, np.int32)
    return _columns(found, MEMSET, name, bytes=found["bytes"])


def _graphs(database: Database, process: ExportedProcess, strings: Strings) -> dict[str, np.ndarray]:
    """One event per launch of a graph, as Nsight Systems records them by default: its kernels are not known, only that
    the device is busy."""
    found = _read(database, _GRAPHS, process, ("graphId",))
    ids = [
        strings.id(WHOLE_GRAPH if number == ABSENT else f"{WHOLE_GRAPH} {number}")
        for number in found["graphId"].tolist()
    ]
    return _columns(found, KERNEL, np.array(ids, np.int32))

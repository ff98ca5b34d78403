"""From rows and strings to a Trace: columns, threads, and the recording's metadata in the envelope."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpuprof.tracefile import trace
from gpuprof.tracefile.kineto import layout
from gpuprof.tracefile.kineto.msgspec_reader import Parsed
from gpuprof.tracefile.kineto.usual_args import ABSENT32
from gpuprof.tracefile.trace import ABSENT, GpuInfo, Meta, Reading, Thread, Trace
from gpuprof.units import Assumed, Values

_TYPES = {
    "ops": trace.Ops,
    "calls": trace.Calls,
    "gpu": trace.GpuEvents,
    "frames": trace.Frames,
    "syncs": trace.Syncs,
    "memory": trace.AllocatorEvents,
    "flows": trace.Flows,
    "other": trace.Other,
}
_OPTIONS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_MOST_FLAGS: Assumed[Values] = 1 << 24
"""Up to this many possible values, one flag for each is faster than a sort."""
_NUMBER = re.compile(r"-?\d+")


def build(parsed: Parsed, path: str, size_bytes: int) -> Trace:
    """The Trace of a reader's result; takes the columns out of `parsed`."""
    strings: list[str] = list(parsed.strings)
    columns = {table: parsed.tables[table].take() for table in layout.TABLES}
    threads, thread_ids = _threads(columns, strings, parsed.metadata)
    for table, ids in thread_ids.items():
        columns[table]["thread"] = ids
    _place_gpu(columns["gpu"], threads)
    events = sum(len(c["pid"]) for c in columns.values()) + parsed.metadata_events
    for table in columns.values():
        del table["pid"], table["tid"]
    columns["syncs"].pop("thread")
    tables = {name: type_(**columns[name]) for name, type_ in _TYPES.items()}
    reading = Reading(
        path=path,
        kind="kineto",
        size_bytes=size_bytes,
        text_bytes=parsed.text_bytes,
        events=events,
        truncated=parsed.truncated,
        repaired=parsed.repaired,
        dropped=parsed.dropped,
        dropped_sample=parsed.dropped_sample,
        rounded=parsed.rounded,
        more=parsed.more,
        reader=parsed.reader,
    )
    return Trace(reading=reading, meta=_meta(parsed.keys), strings=strings, threads=threads, **tables)


def _threads(
    columns: dict[str, dict[str, np.ndarray]], strings: list[str], metadata: dict[tuple[str, str, str], list[Any]]
) -> tuple[tuple[Thread, ...], dict[str, np.ndarray]]:
    """The tracks of the file, and each table's column of track numbers."""
    pids, tids = (_seen([c[key] for c in columns.values()], len(strings)) for key in ("pid", "tid"))
    pid_rank, tid_rank = (np.cumsum(seen) - 1 for seen in (pids, tids))
    width = max(int(tids.sum()), 1)
    pairs = {t: pid_rank[c["pid"]] * width + tid_rank[c["tid"]] for t, c in columns.items()}
    used, ids = _numbered(pairs, int(pids.sum()) * width)
    names: dict[tuple[str, str], list[str]] = {}
    processes = {}
    for (what, process, thread), all_args in metadata.items():
        given = sorted({str(args["name"]) for args in all_args if isinstance(args, dict) and args.get("name")})
        if given and what == "thread_name":
            names[process, thread] = given
        elif given and what == "process_name":
            processes[process] = given[0]
    pid_ids, tid_ids = np.flatnonzero(pids), np.flatnonzero(tids)
    threads = []
    for pair in used.tolist():
        process, thread = strings[pid_ids[pair // width]], strings[tid_ids[pair % width]]
        threads.append(Thread(process, thread, _own_name(names, process, thread), processes.get(process, "")))
    return tuple(threads), ids


def _own_name(names: dict[tuple[str, str], list[str]], process: str, thread: str) -> str:
    """The name of a thread, or "". A thread is called like the process's first until it names itself; a file may have
    both names, in any order."""
    given = names.get((process, thread), [""])
    first = {name.replace(process, "") for name in names.get((process, process), ())}
    return next((name for name in given if name.replace(thread, "") not in first), given[0])


def _seen(columns: list[np.ndarray], size: int) -> np.ndarray:
    flags = np.zeros(size, bool)
    for column in columns:
        flags[column] = True
    return flags


def _numbered(columns: dict[str, np.ndarray], size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The distinct values of all columns, ascending and below `size`, and each column as numbers of them."""
    if size <= _MOST_FLAGS:
        seen = _seen(list(columns.values()), size)
        rank = (np.cumsum(seen) - 1).astype(np.int32)
        return np.flatnonzero(seen), {name: rank[values] for name, values in columns.items()}
    used = np.unique(np.concatenate([np.unique(values) for values in columns.values()]))
    return used, {name: np.searchsorted(used, v).astype(np.int32) for name, v in columns.items()}


def _place_gpu(gpu: dict[str, np.ndarray], threads: tuple[Thread, ...]) -> None:
    """Device and stream from the track if the args lack them: `pid` is the device, `tid` the stream."""
    for column, absent, label in (("device", ABSENT32, "process"), ("stream", ABSENT, "thread")):
        rows = np.flatnonzero(gpu[column] == absent)
        if len(rows):
            numbers = np.array([_number(getattr(t, label)) for t in threads], gpu[column].dtype)
            gpu[column][rows] = numbers[gpu["thread"][rows]]


def _number(text: str) -> int:
    found = _NUMBER.search(text)
    value = int(found[0][:18]) if found else 0
    return value if abs(value) < 2**31 else 0


def _meta(keys: dict) -> Meta:
    distributed = keys.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    properties = keys.get("deviceProperties")
    gpus = tuple(
        GpuInfo(
            device=_integer(p.get("id")) or 0,
            name=str(p.get("name", "")),
            memory_bytes=_integer(p.get("totalGlobalMem")),
            properties=p,
        )
        for p in (properties if isinstance(properties, list) else ())
        if isinstance(p, dict)
    )
    versions = {k: v for k, v in keys.items() if isinstance(v, (str, int, float)) and k.endswith("_version")}
    if isinstance(distributed.get("nccl_version"), str):
        versions["nccl_version"] = distributed["nccl_version"]
    return Meta(
        gpus=gpus,
        rank=_integer(distributed.get("rank")),
        world_size=_integer(distributed.get("world_size")),
        distributed=distributed,
        base_time_ns=_integer(keys.get("baseTimeNanoseconds")),
        versions=versions,
        options={k: bool(keys[k]) for k in _OPTIONS if k in keys},
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

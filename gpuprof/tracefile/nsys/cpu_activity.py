"""CPU activity: CUDA calls, waits, the profiler's own work, and operating system functions."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from gpuprof.tracefile.nsys import names
from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.processes import CALLS, ExportedProcess, Threads, key_of
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import ABSENT, DRIVER, I64, NO_TEXT, RUNTIME, Calls, Other, Syncs

_RUNTIME_CLASS, _DRIVER_CLASS = 0, 1
"""CUPTI's own rows. Other rows, in exports of 2022, are the same calls traced from outside: they would count twice."""
_SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

OVERHEAD, OS_RUNTIME, CUDA_API = "overhead", "os_runtime", "cuda_api"
"""Categories of `Other`."""

OtherColumns = dict[str, np.ndarray]


def read_calls(
    database: Database, process: ExportedProcess, strings: Strings, threads: Threads
) -> tuple[Calls, OtherColumns]:
    """The calls of a process by start, and the rows that only duplicate them."""
    found = database.numbers(CALLS, ("start", "end", "globalTid", "correlationId", "nameId", "eventClass"))
    keep = (key_of(found["globalTid"]) == process.key) & (found["start"] != ABSENT)
    found = {name: column[keep] for name, column in found.items()}
    found["end"] = np.where(found["end"] == ABSENT, found["start"], found["end"])
    order = np.lexsort((-found["end"], found["start"]))
    found = {name: column[order] for name, column in found.items()}
    kind, name = found["eventClass"], strings.named(found["nameId"], names.call)
    thread = threads.host(found["globalTid"])
    driver = kind == _DRIVER_CLASS
    if np.all(kind == ABSENT):  # not known: names of driver calls begin with cu, but not with cuda
        driver = np.array([t.startswith("cu") and not t.startswith("cuda") for t in strings.texts] + [False])[name]
    own = np.isin(kind, (_RUNTIME_CLASS, _DRIVER_CLASS, ABSENT))
    calls = Calls(
        kind=np.where(driver, DRIVER, RUNTIME).astype(np.uint8)[own],
        name=name[own],
        thread=thread[own],
        start_ns=found["start"][own],
        end_ns=found["end"][own],
        correlation=found["correlationId"][own],
        external=np.full(int(own.sum()), ABSENT),
    )
    again = ~own
    repeated = other(strings, CUDA_API, name[again], thread[again], found["start"][again], found["end"][again])
    return calls, repeated


def read_syncs(database: Database, process: ExportedProcess, strings: Strings) -> Syncs:
    """Synchronisations. The stream of an awaited event is known only if event records were traced, too."""
    columns = (
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "syncType",
        "eventId",
        "eventSyncId",
    )
    found = database.numbers(_SYNCS, columns)
    kind = np.where(np.isin(found["syncType"], list(names.SYNCS)), found["syncType"], ABSENT)
    keep = (key_of(found["globalPid"]) == process.key) & (found["start"] != ABSENT) & (kind != ABSENT)
    found = {name: column[keep] for name, column in found.items()}
    order = np.argsort(found["start"], kind="stable")
    found = {name: column[order] for name, column in found.items()}
    stream, correlation = _awaited(database, process, found)
    ids = {k: strings.id(text) for k, text in names.SYNCS.items() if np.any(found["syncType"] == k)}
    return Syncs(
        name=np.array([ids[k] for k in found["syncType"].tolist()], np.int32),
        device=np.where(np.abs(found["deviceId"]) < 2**31, found["deviceId"], -1).astype(np.int32),
        stream=found["streamId"],
        start_ns=found["start"],
        end_ns=np.where(found["end"] == ABSENT, found["start"], found["end"]),
        correlation=found["correlationId"],
        wait_stream=stream,
        wait_correlation=correlation,
    )


def _awaited(database: Database, process: ExportedProcess, syncs: dict[str, I64]) -> tuple[I64, I64]:
    """(stream, correlation of the record) of the event that each row waits for, ABSENT where not known."""
    records = database.numbers(_EVENTS, ("streamId", "correlationId", "globalPid", "eventId", "eventSyncId"))
    mine = np.flatnonzero(key_of(records["globalPid"]) == process.key)
    row_of: dict[tuple[int, int], list[int]] = {}
    for row in mine[np.argsort(records["correlationId"][mine], kind="stable")].tolist():
        if records["eventId"][row] != ABSENT:
            row_of.setdefault((int(records["eventId"][row]), int(records["eventSyncId"][row])), []).append(row)
    columns = (syncs["eventId"].tolist(), syncs["eventSyncId"].tolist(), syncs["correlationId"].tolist())
    rows = np.array(
        [
            _last_before(row_of.get((event, number), []), records, at)
            for event, number, at in zip(*columns, strict=True)
        ],
        np.int64,
    )
    stream, correlation = np.full(len(rows), ABSENT), np.full(len(rows), ABSENT)
    hit = rows >= 0
    stream[hit], correlation[hit] = records["streamId"][rows[hit]], records["correlationId"][rows[hit]]
    return stream, correlation


def _last_before(rows: list[int], records: dict[str, I64], correlation: int) -> int:
    """The last record of an event before the call that waits for it, or -1.
    Older exports do not number the records of an event, and programs reuse events.
    """
    k = bisect_left(rows, correlation, key=lambda row: int(records["correlationId"][row]))
    return rows[k - 1] if k else -1


def read_overhead(
    database: Database, process: ExportedProcess, strings: Strings, threads: Threads
) -> list[OtherColumns]:
    """Work of the profiler, and work of the driver that CUPTI counts as overhead."""
    parts = []
    for table, owner in (("PROFILER_OVERHEAD", " (profiler)"), ("CUPTI_ACTIVITY_KIND_OVERHEAD", "")):
        found = database.numbers(table, ("start", "end", "globalTid", "nameId", "overheadType"))
        keep = (key_of(found["globalTid"]) == process.key) & (found["start"] != ABSENT) & (found["end"] != ABSENT)
        found = {name: column[keep] for name, column in found.items()}
        kinds = names.OVERHEADS if table.startswith("CUPTI") else {}
        ids = []
        for kind, name in zip(found["overheadType"].tolist(), found["nameId"].tolist(), strict=True):
            ids.append(strings.id(kinds.get(kind) or f"{strings.stored(name) or 'Unknown'}{owner}"))
        thread = threads.host(found["globalTid"])
        parts.append(other(strings, OVERHEAD, np.array(ids, np.int32), thread, found["start"], found["end"]))
    return parts


def read_os_runtime(database: Database, process: ExportedProcess, strings: Strings, threads: Threads) -> OtherColumns:
    """Operating system functions in which threads wait: poll, read, a condition variable."""
    found = database.numbers("OSRT_API", ("start", "end", "globalTid", "nameId"))
    keep = (key_of(found["globalTid"]) == process.key) & (found["start"] != ABSENT) & (found["end"] != ABSENT)
    found = {name: column[keep] for name, column in found.items()}
    name = strings.named(found["nameId"])
    return other(strings, OS_RUNTIME, name, threads.host(found["globalTid"]), found["start"], found["end"])


def other(strings: Strings, category: str, name: np.ndarray, thread: np.ndarray, start: I64, end: I64) -> OtherColumns:
    """Rows for the table of everything else."""
    rows = len(name)
    return {
        "category": np.full(rows, strings.id(category) if rows else NO_TEXT, np.int32),
        "name": name.astype(np.int32),
        "thread": thread.astype(np.int32),
        "start_ns": start,
        "end_ns": end,
        "external": np.full(rows, ABSENT),
    }


def joined(parts: list[OtherColumns]) -> Other:
    """The table of everything else, by start."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["start_ns"], kind="stable")
    return Other(**{name: column[order] for name, column in columns.items()})

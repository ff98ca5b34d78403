"""Flight recorder dumps of torch.distributed: the collectives that a rank has called, and how far each has come.

Written by NCCL's watchdog at a timeout (TORCH_NCCL_DUMP_ON_TIMEOUT, one file a rank), by
`torch._C._distributed_c10d._dump_nccl_trace` and, in torch 2.10 and newer, for every backend by `_dump_fr_trace`; as a
pickle or as JSON. Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. With gloo the state stays
"scheduled": a finished collective is `retired`. Gloo does not record sends and receives. Operations that NCCL coalesces
are recorded one by one and never updated: the entry after them, `coalesced`, has their number and state.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuprof.errors import UnreadableTrace
from gpuprof.hang.recent import COALESCED, json_without_oldest, without_oldest
from gpuprof.runfile import open_regular
from gpuprof.tracefile import plain_pickle
from gpuprof.units import Assumed, Calls, Entries

CALLS_A_GROUP: Assumed[Calls] = 32
"""Calls of a group that are read: the last ones, or this many before and after the first that is not done. Ranks that
differ by more cannot be compared."""
CALLS_WITH_FRAMES: Assumed[Calls] = 4
"""The stack of the call is read for this many of the last of them."""
MOST_ENTRIES: Assumed[Entries] = 128
"""Entries of a dump that are read: the last ones, and up to this many older ones that are not done. A recorder holds
2,000 or more."""
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.(?:pickle|pkl|json|bin|dump))?$")


@dataclass(frozen=True, slots=True)
class DumpFrame:
    """A line of a Python stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or a send or a receive, that one rank has called."""

    group: str
    seq: int
    """Its number within the group, from 1; sends and receives are numbered separately."""
    op: str
    """`all_reduce`, `send 0->1` …, without the backend."""
    backend: str
    """`nccl`, `gloo` …; empty if the dump does not say."""
    sizes: tuple[tuple[int, ...], ...]
    """Sizes of its inputs."""
    dtypes: tuple[str, ...]
    state: str
    """scheduled, started or completed."""
    created_ns: int
    """When it was called, ns since 1970; 0: unknown."""
    peer_to_peer: bool
    frames: tuple[DumpFrame, ...]
    """The stack of the call, innermost frame first."""

    @property
    def done(self) -> bool:
        return self.state == "completed"


@dataclass(frozen=True, slots=True)
class GroupState:
    """What one rank knows of a process group."""

    name: str
    description: str
    ranks: tuple[int, ...] | None
    """Global ranks of its members; None if the dump does not say."""
    enqueued: int
    """The last collective that was called; 0: none."""
    completed: int
    """The last one that is done."""
    calls: tuple[Call, ...]
    """The last collectives, in order."""
    transfers: tuple[Call, ...] = ()
    """The last sends and receives, in order."""

    @property
    def backend(self) -> str:
        """Backend of its calls; empty without calls."""
        return next((call.backend for call in (*self.calls, *self.transfers)), "")


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank."""

    rank: int
    path: Path
    version: str
    groups: tuple[GroupState, ...] = ()
    """A name occurs twice if NCCL and another backend have a group of that name."""
    written_ns: int = 0
    """When its file was last written, ns since 1970; 0: unknown."""

    @property
    def last_ns(self) -> int:
        """When the last call was made."""
        calls = (call.created_ns for group in self.groups for call in (*group.calls, *group.transfers))
        return max(calls, default=0)


def merged(one: Dump, other: Dump) -> Dump:
    """Merges two dumps of a rank: of two recorders, both; else the later state of each group."""
    by_group = {}
    for dump in sorted((one, other), key=lambda dump: dump.last_ns):
        by_group |= {(group.name, group.backend): group for group in dump.groups}
    return replace(max((one, other), key=lambda dump: dump.last_ns), groups=tuple(by_group.values()))


def rank_of(path: Path) -> int | None:
    """The rank that a file's name ends in: nccl_trace_rank_3, trace_3.pickle, rank3.flight.json; None without one."""
    name = path.name.replace(".flight", "")
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def is_dump(head: bytes) -> bool:
    """Whether a file that begins with `head` may be a dump: a pickle, or JSON."""
    return head[:1] == b"\x80" or head.lstrip()[:1] == b"{"


def read(path: Path, rank: int | None = None) -> Dump:
    """Reads a dump. Raises UnreadableTrace, one line, if it is not a dump, is damaged or was cut off.
    rank: its rank, if the file name does not say.
    """
    rank = rank_of(path) if rank is None else rank
    if rank is None:
        raise UnreadableTrace(f"{path}: the name does not end in a rank, such as nccl_trace_rank_0")
    try:
        with open_regular(path) as file:
            data, written_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror or error})") from None
    document, looked_at = _document(path, data)
    entries = document.get("entries") if isinstance(document, dict) else None
    if isinstance(document, dict) and entries is None and "pg_config" in document:
        entries = []  # JSON of a rank without calls
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise UnreadableTrace(f"{path} is not a flight recorder dump: it has no entries")
    try:
        return Dump(rank, path, str(document.get("version", "")), _groups(document, entries, looked_at), written_ns)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise UnreadableTrace(f"{path}: the flight recorder's entries are not understood ({error})") from None


def _document(path: Path, data: bytes) -> tuple[Any, int]:
    """(the contents of a file, the number of its last entries that are to be read)."""
    if not data:
        raise UnreadableTrace(f"{path} is empty: the dump was not written")
    if data[:1] == b"\x80":
        fewer, looked_at = without_oldest(data, MOST_ENTRIES, CALLS_A_GROUP)
        try:
            return plain_pickle.loads(fewer), looked_at
        except plain_pickle.NamesAGlobal as error:
            raise UnreadableTrace(f"{path} asks for {error}: it was not loaded, do not trust it") from None
        except plain_pickle.Damaged:
            raise UnreadableTrace(f"{path} is damaged or was cut off") from None
    try:
        return json_without_oldest(data, MOST_ENTRIES), MOST_ENTRIES
    except ValueError:
        pass  # not as torch writes it, but Python's own reader may accept it
    try:
        return json.loads(data), MOST_ENTRIES
    except (ValueError, RecursionError):
        raise UnreadableTrace(f"{path} is damaged, was cut off, or is not a flight recorder dump") from None


def _groups(document: Mapping[str, Any], entries: list[Any], looked_at: int) -> tuple[GroupState, ...]:
    rows: dict[str, list[_Row]] = {}
    names: dict[str, str] = {}
    described: dict[str, str] = {}
    for row in _looked_at(entries, looked_at):
        rows.setdefault(row.name, []).append(row)
        names[str(row.entry.get("pg_id", row.name))] = row.name
        described[row.name] = row.description
    members = {str(key): _ranks(one) for key, one in _items(document.get("pg_config"))}
    status = {str(key): one for key, one in _items(document.get("pg_status"))}
    if "0" in status and "0" not in names:  # the default group, although none of its entries is left
        names["0"] = "0"
        rows.setdefault("0", [])
    by_name = {name: status[number] for number, name in names.items() if number in status}
    found = []
    for name, last in sorted(rows.items()):
        numbered = _by_number([row for row in last if not row.is_transfer])
        sent = _by_number([row for row in last if row.is_transfer])
        state = {} if sent else by_name.get(name, {})  # there NCCL also counts transfers, with separate numbers
        enqueued = max([0, int(state.get("last_enqueued_collective") or 0), *(one[-1].number for one in numbered)])
        finished = [one[-1].number for one in numbered if one[-1].done]
        done = max([0, int(state.get("last_completed_collective") or 0), *finished])
        at = next((i for i, one in enumerate(numbered) if not one[-1].done), None)
        pending = None if at is None else numbered[at][-1].number
        kept = numbered[-CALLS_A_GROUP:] if at is None else numbered[max(at - CALLS_A_GROUP, 0) : at + CALLS_A_GROUP]
        one = GroupState(
            name=name,
            description=described.get(name, ""),
            ranks=members.get(name) or members.get(described.get(name, "")),
            enqueued=enqueued,
            completed=done if pending is None else max(pending - 1, 0),
            calls=tuple(_collective(one, framed=i >= len(kept) - CALLS_WITH_FRAMES) for i, one in enumerate(kept)),
            transfers=tuple(call for one in sent[-CALLS_A_GROUP:] for call in _transfers(one)),
        )
        found.append(one)
    return tuple(found)


class _Row(NamedTuple):
    """An entry, with those of its values that are used more than once."""

    entry: Mapping[str, Any]
    name: str
    """Name of its group."""
    description: str
    is_transfer: bool
    """Whether it is a send or a receive."""
    number: int
    """Its number among the collectives, or among the sends and receives, of its group; 0: unknown."""
    done: bool
    ends: bool
    """Whether it is NCCL's entry at the end of a coalesced operation."""


def _row(entry: Mapping[str, Any]) -> _Row:
    get = entry.get
    name, description = _process_group(get("process_group", get("pg_id", 0)))
    is_transfer = bool(get("is_p2p"))
    number = get("p2p_seq_id") if is_transfer else get("collective_seq_id", get("seq_id"))
    ends = COALESCED in str(get("profiling_name", ""))
    return _Row(entry, name, description, is_transfer, int(number or 0), _is_done(entry), ends)


def _process_group(found: Any) -> tuple[str, str]:
    """(name, description); before version 2 only the name, or the group's number."""
    if isinstance(found, (list, tuple)):
        return str(found[0]), str(found[1]) if len(found) > 1 else ""
    return str(found), ""


def _looked_at(entries: list[Any], last: int) -> list[_Row]:
    """The last entries, with all parts of coalesced operations, and up to MOST_ENTRIES older ones that are not done.
    Operations that NCCL coalesced have the state of the entry that ends them."""
    begin = max(len(entries) - last, 0)
    rows = [_row(entry) for entry in entries[begin:]]
    while begin > 0 and _key(before := _row(entries[begin - 1])) == _key(rows[0]):
        rows.insert(0, before)
        begin -= 1
    older = [_row(entry) for entry in entries[:begin] if not _is_done(entry)]
    if older:
        ended = {_key(row) for row in map(_row, entries[:begin]) if row.ends and row.done}
        older = [row for row in older if _key(row) not in ended]
    return older[:MOST_ENTRIES] + rows


def _key(row: _Row) -> tuple[str, bool, int]:
    """(group, kind, number); parts of one coalesced operation have the same."""
    return row.name, row.is_transfer, row.number


def _by_number(entries: Iterable[_Row]) -> list[list[_Row]]:
    """Entries of one group in order; those of one coalesced operation are grouped."""
    rows: list[list[_Row]] = []  # of entries with the same number
    last = 0
    for entry in entries:
        if entry.number and entry.number == last:
            rows[-1].append(entry)
        else:
            rows.append([entry])
        last = entry.number
    return [part for row in rows for part in ([row] if row[-1].ends else [[entry] for entry in row])]


def _collective(rows: list[_Row], framed: bool) -> Call:
    """A collective; a coalesced one has the sizes and types of all its parts."""
    last = _call(rows[-1], framed)
    parts = [_call(row, False) for row in rows[:-1]]
    if not parts:
        return last
    return replace(
        last,
        sizes=tuple(size for part in parts for size in part.sizes),
        dtypes=tuple(dtype for part in parts for dtype in part.dtypes),
        created_ns=parts[0].created_ns,
    )


def _transfers(rows: list[_Row]) -> list[Call]:
    """Sends and receives; those of a coalesced operation have its state."""
    if not rows[-1].ends:
        return [_call(row, True) for row in rows]
    end = _call(rows[-1], True)
    parts = [_call(row, False) for row in rows[:-1]]
    return [replace(part, state=end.state, frames=end.frames) for part in parts]


def _items(value: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [(key, one) for key, one in pairs if isinstance(one, dict)]


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Ranks from `"[0, 1, 2]"` or a list; None if empty, as with gloo."""
    found = config.get("ranks")
    numbers = re.findall(r"\d+", found) if isinstance(found, str) else found
    return tuple(sorted(int(number) for number in numbers)) if isinstance(numbers, list) and numbers else None


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("retired"))


def _call(row: _Row, framed: bool) -> Call:
    """framed: with its stack, which is always read for a call that is not done."""
    get = row.entry.get
    backend, _, op = str(get("profiling_name", "")).rpartition(":")
    return Call(
        group=row.name,
        seq=row.number,
        op=op,
        backend=backend,
        sizes=tuple(tuple(map(int, size)) for size in get("input_sizes") or () if isinstance(size, (list, tuple))),
        dtypes=tuple(map(str, get("input_dtypes") or ())),
        state="completed" if row.done else str(get("state", "scheduled")),
        created_ns=int(get("time_created_ns") or 1_000 * int(get("time_created_us") or 0)),
        peer_to_peer=row.is_transfer,
        frames=frames_of(get("frames")) if framed or not row.done else (),
    )


def frames_of(rows: Any) -> tuple[DumpFrame, ...]:
    """Frames of plain dicts with filename, line and name."""
    return tuple(
        DumpFrame(str(one.get("filename", "?")), int(one.get("line") or 0), str(one.get("name", "?")))
        for one in (rows if isinstance(rows, list) else ())
    )

"""Flight recorder dumps of torch.distributed: the collectives that a rank has called, and how far each has come.

Written by NCCL's watchdog at a timeout (TORCH_NCCL_DUMP_ON_TIMEOUT, one file a rank), by
`torch._C._distributed_c10d._dump_nccl_trace` and, in torch 2.10 and newer, for every backend by `_dump_fr_trace`; as a
pickle or as JSON. Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp. Gloo never leaves the state
"scheduled": a collective that is done is `retired` there. It records no send and no receive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.tracefile import plain_pickle

KEPT = 32
"""Calls of a group that are looked at: the last ones. Ranks differ by fewer, or nothing can be said of them."""
FRAMED = 4
"""Of these the last, of which it is read where they were called."""
LOOKED_AT = 256
"""Entries of a dump that are: the last, and as many older ones that are not done. A recorder holds 2,000 or more."""
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.(?:pickle|pkl|json|bin|dump))?$")


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a Python stack."""

    file: str
    """As Python knows it."""
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or a send or a receive, that one rank has called."""

    group: str
    seq: int
    """Its number within the group, from 1; of a send or a receive its number among those."""
    op: str
    """`all_reduce`, `send 0->1` …, without the backend."""
    sizes: tuple[tuple[int, ...], ...]
    """Of its inputs."""
    dtypes: tuple[str, ...]
    state: str
    """scheduled, started or completed."""
    created_ns: int
    """When it was called, ns since 1970; 0 where that is unknown."""
    peer_to_peer: bool
    frames: tuple[Frame, ...]
    """Where it was called, the innermost first."""

    @property
    def done(self) -> bool:
        return self.state == "completed"


@dataclass(frozen=True, slots=True)
class GroupState:
    """What one rank knows of a process group."""

    name: str
    description: str
    ranks: tuple[int, ...] | None
    """Its members by their global ranks; None where the dump does not say."""
    enqueued: int
    """The last collective that was called; 0: none."""
    completed: int
    """The last that is done."""
    calls: tuple[Call, ...]
    """The last collectives, in order."""
    transfers: tuple[Call, ...] = ()
    """The last sends and receives, in order."""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has dumped."""

    rank: int
    path: Path
    version: str
    groups: Mapping[str, GroupState] = field(default_factory=dict)

    @property
    def last_ns(self) -> int:
        """When the last of all calls was made."""
        calls = (call.created_ns for group in self.groups.values() for call in (*group.calls, *group.transfers))
        return max(calls, default=0)


def rank_of(path: Path) -> int | None:
    """The rank that a file's name ends in: nccl_trace_rank_3, trace_3.pickle, rank3.flight.json; None without one."""
    name = path.name.replace(".flight", "")
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def is_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a pickle, or JSON."""
    return head[:1] == b"\x80" or head.lstrip()[:1] == b"{"


def read(path: Path, rank: int | None = None) -> Dump:
    """A dump. Raises UnreadableTrace, one line, for what is none, is damaged or was cut off.

    rank: whose it is, where the name of the file does not say.
    """
    rank = rank_of(path) if rank is None else rank
    if rank is None:
        raise UnreadableTrace(f"{path}: the name does not end in a rank, such as nccl_trace_rank_0")
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror or error})") from None
    document = _document(path, data)
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise UnreadableTrace(f"{path} is no flight recorder dump: it has no entries")
    try:
        return Dump(rank, path, str(document.get("version", "")), _groups(document, entries))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise UnreadableTrace(f"{path}: the flight recorder's entries are not understood ({error})") from None


def _document(path: Path, data: bytes) -> Any:
    if not data:
        raise UnreadableTrace(f"{path} is empty: the dump was not written")
    if data[:1] == b"\x80":
        try:
            return plain_pickle.loads(data)
        except plain_pickle.NamesAGlobal as error:
            raise UnreadableTrace(f"{path} asks for {error}: it was not loaded, do not trust it") from None
        except plain_pickle.Damaged:
            raise UnreadableTrace(f"{path} is damaged or was cut off") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableTrace(f"{path} is damaged or was cut off, or no flight recorder dump") from None


def _groups(document: Mapping[str, Any], entries: list[Any]) -> dict[str, GroupState]:
    older, newest = entries[:-LOOKED_AT], entries[-LOOKED_AT:]
    entries = [entry for entry in older if not _is_done(entry)][:LOOKED_AT] + newest
    rows: dict[str, list[Mapping[str, Any]]] = {}
    names: dict[str, str] = {}
    described: dict[str, str] = {}
    for entry in entries:
        name, description = _process_group(entry)
        rows.setdefault(name, []).append(entry)
        names[str(entry.get("pg_id", name))] = name
        described[name] = description
    members = {str(key): _ranks(one) for key, one in _items(document.get("pg_config"))}
    status = {names.get(str(key), str(key)): one for key, one in _items(document.get("pg_status"))}
    found = {}
    for name in [*rows, *(name for name in status if name not in rows)]:
        last, state = rows.get(name, []), status.get(name, {})
        newest = last[-2 * KEPT :]
        calls = [_call(name, entry, framed=i >= len(newest) - FRAMED) for i, entry in enumerate(newest)]
        whole = [call for call in calls if not call.peer_to_peer][-KEPT:]
        transfers = [call for call in calls if call.peer_to_peer][-KEPT:]
        seen = [int(entry.get("collective_seq_id") or 0) for entry in last if not entry.get("is_p2p")]
        done = [
            int(entry.get("collective_seq_id") or 0) for entry in last if not entry.get("is_p2p") and _is_done(entry)
        ]
        pending = min((call.seq for call in whole if not call.done), default=None)
        completed = max([0, *done]) if pending is None else pending - 1
        found[name] = GroupState(
            name=name,
            description=described.get(name, ""),
            ranks=members.get(name) or members.get(described.get(name, "")),
            enqueued=max([0, *seen]),
            completed=max(completed, 0) if seen else int(state.get("last_completed_collective") or 0),
            calls=tuple(whole),
            transfers=tuple(transfers),
        )
    return found


def _items(value: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [(key, one) for key, one in pairs if isinstance(one, dict)]


def _process_group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description; before version 2 the name alone, or the group's number."""
    found = entry.get("process_group", entry.get("pg_id", 0))
    if isinstance(found, (list, tuple)):
        return str(found[0]), str(found[1]) if len(found) > 1 else ""
    return str(found), ""


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """`"[0, 1, 2]"`, or a list; None where it is empty, as gloo leaves it."""
    found = config.get("ranks")
    numbers = re.findall(r"\d+", found) if isinstance(found, str) else found
    return tuple(sorted(int(number) for number in numbers)) if isinstance(numbers, list) and numbers else None


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("retired"))


def _call(group: str, entry: Mapping[str, Any], framed: bool) -> Call:
    """framed: with where it was called, which is read anyway of one that is not done."""
    transfer = bool(entry.get("is_p2p"))
    name = str(entry.get("profiling_name", ""))
    return Call(
        group=group,
        seq=int((entry.get("p2p_seq_id") if transfer else entry.get("collective_seq_id", entry.get("seq_id"))) or 0),
        op=name.partition(":")[2] or name,
        sizes=tuple(
            tuple(int(n) for n in size) for size in entry.get("input_sizes") or () if isinstance(size, (list, tuple))
        ),
        dtypes=tuple(str(dtype) for dtype in entry.get("input_dtypes") or ()),
        state="completed" if _is_done(entry) else str(entry.get("state", "scheduled")),
        created_ns=int(entry.get("time_created_ns") or entry.get("time_created_us", 0) or 0),
        peer_to_peer=transfer,
        frames=frames_of(entry.get("frames")) if framed or not _is_done(entry) else (),
    )


def frames_of(rows: Any) -> tuple[Frame, ...]:
    """Frames of plain dicts with filename, line and name."""
    return tuple(
        Frame(str(one.get("filename", "?")), int(one.get("line") or 0), str(one.get("name", "?")))
        for one in (rows if isinstance(rows, list) else ())
    )

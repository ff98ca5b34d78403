"""Cuts the oldest finished collectives out of a dump before it is decoded.

A recorder holds 2,000 entries per rank, and decoding them takes most of the time; what hangs is among the last. An
entry of a pickle can be removed if it says `retired` and its instructions define nothing that later ones refer to
(torch's pickler defines texts and frames at their first use); an entry of JSON, if it is retired or completed. A
coalesced operation of NCCL is recorded as parts that are never updated and an entry that ends them: these are removed
together or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuprof.tracefile.compiled import compiled_in
from gpuprof.units import Assumed, Bytes, Code, Convention, Entries

COALESCED = "coalesced"
"""In the name of an entry that ends a coalesced operation."""
_KEYS = ("retired", "collective_seq_id", "p2p_seq_id", "pg_id", "is_p2p", "profiling_name")
RETIRED, NUMBER, TRANSFER_NUMBER, GROUP, IS_TRANSFER, NAME = range(1, 7)
"""Columns of facts about an entry: the values of these keys, -1 where one is not known. NAME: whether the name ends a
coalesced operation."""
DEFINES: Convention[Code] = 0
"""Column: whether the entry fills a place of the memo."""
_LIST = b"X\x07\x00\x00\x00entries"
LEAST_ENTRY_BYTES: Assumed[Bytes] = 32
"""An entry has at least this many bytes: it has more than half that number of keys."""
_PLACES: Assumed[Entries] = 1 << 16
"""Places of a pickle's memo that are followed; a pickle with more is decoded whole."""
OTHER, TEXT, LONG = -1, -2, -3


def _widths() -> np.ndarray:
    """The number of bytes after each instruction; negative: not one of torch's, a text, or a long number."""
    found = np.full(256, OTHER, np.int64)
    for codes, width in (
        (b"(uet}]N\x85\x86\x87\x88\x89", 0), (b"hqK", 1), (b"M", 2), (b"Jjr", 4), (b"G", 8), (b"X", TEXT),
        (b"\x8a", LONG),
    ):  # fmt: skip
        found[list(codes)] = width
    return found


_WIDTHS = _widths()
_CODE = Path(__file__).with_name("entry_kernels.py")
find_entries = compiled_in("gpuprof.hang.entry_kernels", "find_entries", _CODE, Path(__file__))


# -- pickles


def without_oldest(data: bytes, looked_at: int, kept: int) -> tuple[bytes, int]:
    """(the same pickle with fewer entries, the number of its last entries that are to be read).

    It keeps those of the last `looked_at` that are among the last `kept` calls of their group, or among the `kept`
    calls before the group's first unfinished one, and older ones that are not done. Returns `data` itself where nothing
    can be left out.
    """
    found = data.find(_LIST)
    begin = _after_put(data, found + len(_LIST)) if found >= 0 else None
    slots = _slots(data)
    if begin is None or slots is None or data[begin : begin + 2] != b"](":
        return data, looked_at
    most = (len(data) - begin) // LEAST_ENTRY_BYTES + 1
    starts, ends = (np.empty(most, np.int64) for _ in range(2))
    facts = np.empty((most, len(_KEYS) + 1), np.int64)
    ending = np.zeros(_PLACES, np.uint8)
    count = find_entries(np.frombuffer(data, np.uint8), begin + 2, slots, _WIDTHS, starts, ends, facts, ending)
    if count <= min(looked_at, kept):
        return data, looked_at
    settled = _settled(facts[:count], looked_at, kept)
    goes = np.flatnonzero(settled)
    runs = np.split(goes, np.flatnonzero(np.diff(goes) > 1) + 1) if len(goes) else []
    pieces, at = list[bytes](), 0
    for run in runs:
        pieces.append(data[at : starts[run[0]]])
        at = int(ends[run[-1]])
    return b"".join([*pieces, data[at:]]), int(np.count_nonzero(~settled[-looked_at:]))


def _settled(facts: np.ndarray, looked_at: int, kept: int) -> np.ndarray:
    """Mask of the entries that neither a later entry nor the answer needs."""
    retired, ends = facts[:, RETIRED] == 1, facts[:, NAME] == 1
    transfer = facts[:, IS_TRANSFER] == 1
    number = np.where(transfer, facts[:, TRANSFER_NUMBER], facts[:, NUMBER])
    needed = np.arange(len(facts)) >= len(facts) - looked_at
    defines = facts[:, DEFINES] == 1
    if (defines | ((facts[:, GROUP] >= 0) & (number >= 0))).all():
        needed &= _among_last(facts[:, GROUP] * 2 + transfer, number, retired, kept)
    needed |= defines
    if not ends.any():
        return retired & ~needed
    key = np.stack([number, transfer, facts[:, GROUP]], axis=1)
    row = np.cumsum(np.concatenate([[0], (key[1:] != key[:-1]).any(axis=1)]))  # equal where neighbours are of one call
    last = np.flatnonzero(np.diff(row, append=-1))
    ended = (ends & retired)[last]
    stays = np.zeros(len(last), bool)
    np.logical_or.at(stays, row, needed | (number < 0))
    goes = np.where(ended[row], ~stays[row], retired & ~ends & ~needed)
    # Other entries may lie between the parts of an operation: its end must stay for the parts that do.
    waits = {tuple(one) for one in key[~goes & ~retired].tolist()}
    held = [i for i in np.flatnonzero(goes & ends).tolist() if tuple(key[i].tolist()) in waits]
    goes[np.isin(row, row[held])] = False
    return goes


def _among_last(group: np.ndarray, number: np.ndarray, retired: np.ndarray, kept: int) -> np.ndarray:
    """Mask of the entries among the last `kept` calls of their group, among the `kept` calls before its first
    unfinished one, or after that. Entries with one number are one call, which reaches to the last of them."""
    found = np.zeros(len(group), bool)
    for one in set(group.tolist()):
        at = np.flatnonzero(group == one)
        call = np.cumsum(np.concatenate([[0], np.diff(number[at]) != 0]))
        last = np.flatnonzero(np.diff(call, append=-1))
        pending = np.flatnonzero(~retired[at[last]])
        first = min(call[-1] - kept + 1, pending[0] - kept) if len(pending) else call[-1] - kept + 1
        found[at[call >= first]] = True
    return found


def _slots(data: bytes) -> np.ndarray | None:
    """For each place of the memo, the column of the value that follows it, 0: none; None where `retired` has no
    place."""
    found = np.zeros(_PLACES, np.uint8)
    for column, word in enumerate(_KEYS, start=1):
        text = word.encode()
        at = data.find(b"X" + len(text).to_bytes(4, "little") + text)
        place = _put(data, at + 5 + len(text)) if at >= 0 else None
        if place is not None and place < _PLACES:
            found[place] = column
        elif column == RETIRED:
            return None
    return found


def _put(data: bytes, at: int) -> int | None:
    """The memo index that is set at this position, or None."""
    if data[at : at + 1] == b"q":
        return data[at + 1] if at + 1 < len(data) else None
    return int.from_bytes(data[at + 1 : at + 5], "little") if data[at : at + 1] == b"r" else None


def _after_put(data: bytes, at: int) -> int | None:
    size = {b"q": 2, b"r": 5}.get(data[at : at + 1])
    return None if size is None else at + size


# -- JSON


class _Brief(msgspec.Struct):
    """The fields of an entry that say whether it is done."""

    state: Any = None
    retired: Any = None
    profiling_name: Any = None


def json_without_oldest(data: bytes, kept: int) -> Any:
    """The contents of a dump in JSON with fewer entries: the last `kept` and all that are not done or that end
    coalesced operations. Raises ValueError if it is not a dump; `json` may still read it."""
    parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    whole = {key: msgspec.json.decode(one) for key, one in parts.items() if key != "entries"}
    if "entries" not in parts:
        return whole
    entries = msgspec.json.decode(parts["entries"], type=list[msgspec.Raw])
    chosen = entries
    if len(entries) > kept:
        briefs = msgspec.json.decode(parts["entries"], type=list[_Brief])
        old = len(entries) - kept
        chosen = [one for one, brief in zip(entries[:old], briefs, strict=False) if _stays(brief)] + entries[old:]
    return {**whole, "entries": [msgspec.json.decode(one) for one in chosen]}


def _stays(brief: _Brief) -> bool:
    return not (brief.retired or brief.state == "completed") or COALESCED in str(brief.profiling_name)

"""Cuts the oldest finished collectives out of a pickled dump before it is loaded.
A recorder holds 2,000 entries per rank, and loading them takes 95 % of the time; what hangs is among the last. An entry
can be removed if it says `retired` and its instructions define nothing that later ones refer to (torch's pickler
defines texts and frames at their first use).
"""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.compiled import compiled

_LIST = (b"X\x07\x00\x00\x00entries", b"X\x07\x00\x00\x00retired")
"""Pickled texts, of seven bytes each, that name the list and the word in an entry."""
LEAST_BYTES = 32
"""Lower bound for the size of an entry: it has more than 16 keys."""
_COALESCED = b"oalesced"
"""Parts of a coalesced operation have the state of the entry that ends it, which therefore must stay."""


def without_oldest(data: bytes, kept: int) -> bytes:
    """The same pickle with fewer entries: at least the last `kept`, and all unfinished ones. `data` itself if nothing
    can be left out."""
    found, word = data.find(_LIST[0]), data.find(_LIST[1])
    if found < 0 or word < found or _COALESCED in data:
        return data
    begin = _after_put(data, found + len(_LIST[0]))
    key = _put(data, word + len(_LIST[1]))
    if begin is None or key is None or data[begin : begin + 2] != b"](":
        return data
    starts, ends, settled = (np.empty(len(data) // LEAST_BYTES + 1, np.int64) for _ in range(3))
    count = _entries(np.frombuffer(data, np.uint8), begin + 2, key, starts, ends, settled)
    if count <= kept:
        return data
    goes = np.flatnonzero(settled[: count - kept])
    runs = np.split(goes, np.flatnonzero(np.diff(goes) > 1) + 1) if len(goes) else []
    pieces, at = list[bytes](), 0
    for run in runs:
        pieces.append(data[at : starts[run[0]]])
        at = int(ends[run[-1]])
    return b"".join([*pieces, data[at:]])


def _put(data: bytes, at: int) -> int | None:
    """The memo index that is set at this position; None if none is."""
    if data[at : at + 1] == b"q":
        return data[at + 1] if at + 1 < len(data) else None
    return int.from_bytes(data[at + 1 : at + 5], "little") if data[at : at + 1] == b"r" else None


def _after_put(data: bytes, at: int) -> int | None:
    size = {b"q": 2, b"r": 5}.get(data[at : at + 1])
    return None if size is None else at + size


@compiled
def _entries(data, at, key, starts, ends, settled):  # pragma: no cover - compiled
    """Fills in where entries of the list begin and end, and which are retired and define nothing; returns their number,
    -1 if the pickle is not as torch writes it. key: memo index of the text `retired`."""
    count, depth, size = 0, 0, len(data)
    defines, retired, last = False, False, -1
    while at < size:
        code = data[at]
        if depth == 0:
            if code == 101:  # e: the list's end
                return count
            if code != 125 or at + 1 >= size or data[at + 1] != 40 or count >= len(starts):  # }(
                return -1
            starts[count] = at
            defines, retired = False, False
            at, depth = at + 2, 1
            continue
        got = -1
        width = 0
        if code == 104 or code == 113 or code == 75:  # h q K
            width = 1
        elif code == 77:  # M
            width = 2
        elif code == 74 or code == 106 or code == 114:  # J j r
            width = 4
        elif code == 71:  # G
            width = 8
        elif code == 138:  # a long number
            if at + 1 >= size:
                return -1
            width = 1 + data[at + 1]
        elif code == 88:  # X
            if at + 4 >= size or data[at + 4] != 0:
                return -1
            width = 4 + np.int64(data[at + 1]) + (np.int64(data[at + 2]) << 8) + (np.int64(data[at + 3]) << 16)
        elif code == 40:  # (
            depth += 1
        elif code == 117 or code == 101 or code == 116:  # u e t
            depth -= 1
        elif not (code == 125 or code == 93 or code == 78 or code == 136 or code == 137 or 133 <= code <= 135):
            return -1  # none of } ] None True False and tuples of one to three
        if at + 1 + width > size or depth < 0:
            return -1
        if code == 104:
            got = np.int64(data[at + 1])
        elif code == 106:
            got = 0
            for i in range(4):
                got += np.int64(data[at + 1 + i]) << (8 * i)
        if code == 113 or code == 114:
            defines = True
        if code == 136 and last == key:
            retired = True
        last = got
        at += 1 + width
        if depth == 0 and code == 117:
            ends[count] = at
            settled[count] = 1 if retired and not defines else 0
            count += 1
        elif depth == 0:
            return -1
    return -1

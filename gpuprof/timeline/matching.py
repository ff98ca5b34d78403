"""Which collective of one rank is which of another, and so how their clocks differ and who waited for whom.

All ranks run the collectives of a group in one order, so within a group only the shift between two recordings is open.
It is told by the ends: no rank leaves an all-reduce before the last has come, so the ends of matched ones differ by the
clocks' offset and nothing else. With a wrong shift they differ by what steps differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.collectives import KINDS, TOGETHER, Collectives
from gpuprof.tracefile.model import ABSENT, F64, I64, Mask

NOISE_NS = 20_000.0
"""Ends of one collective on two ranks of a host differ by some µs, and clocks drift by as much within a recording."""
_ALIKE = frozenset(("all_reduce", "all_gather", "reduce_scatter", "broadcast"))
"""Every rank of the group moves as much; in an all-to-all each may give another share."""
_SEND_RECV = KINDS.index("send_recv")


@dataclass(frozen=True, slots=True)
class Matched:
    """Per rank, aligned with the rows of its collectives."""

    transfer_ns: tuple[F64, ...]
    """What the collective took once all had come: as long as its last arriver was in it. NaN where ranks are
    missing."""
    last: tuple[Mask, ...]
    """This rank came last, and others noticeably waited."""
    waited_for: tuple[Mask, ...]
    """Somebody noticeably waited in it."""
    offset_ns: tuple[int | None, ...]
    """What this rank's clock shows more than the first's; None where they share no collective."""
    collectives: int
    """Matched on two ranks at least."""


def match(ranks: Sequence[Collectives]) -> Matched:
    """Matches the collectives of several ranks, given in order of rank. Times are each rank's own."""
    groups: dict[str, list[int]] = {}
    for r, found in enumerate(ranks):
        for text in dict.fromkeys(found.texts[g] for g in np.unique(found.columns.group).tolist()):
            groups.setdefault(text, []).append(r)
    transfer = [np.full(len(found), np.nan) for found in ranks]
    last, waited = ([np.zeros(len(found), bool) for found in ranks] for _ in range(2))
    links: list[tuple[int, int, float, int]] = []
    count = 0
    for text, members in groups.items():
        if len(members) < 2:
            continue
        rows = {r: _rows(ranks[r], text) for r in members}
        placed = _place(ranks, rows, links)
        if len(placed) < 2:
            continue
        low = min(int(at[0]) for at in placed.values() if len(at))
        width = max(int(at[-1]) for at in placed.values() if len(at)) - low + 1
        took = np.full((len(placed), width), np.nan)
        for k, (r, at) in enumerate(placed.items()):
            c = ranks[r].columns
            took[k, at - low] = np.maximum((c.end_ns - c.start_ns)[rows[r]], 0)
        there = (~np.isnan(took)).sum(axis=0)
        shortest = np.nanmin(np.where(there > 0, took, np.inf), axis=0)
        longest = np.nanmax(np.where(there > 0, took, -np.inf), axis=0)
        count += int((there >= 2).sum())
        first = next(iter(placed))
        size = ranks[first].columns.group_size[rows[first]]
        needed = int(size.max()) if len(size) and size.max() != ABSENT else len(placed)
        noticed = (longest - shortest > NOISE_NS) & (there >= 2)
        for k, (r, at) in enumerate(placed.items()):
            column = at - low
            transfer[r][rows[r]] = np.where(there[column] >= needed, shortest[column], np.nan)
            waited[r][rows[r]] = noticed[column]
            last[r][rows[r]] = noticed[column] & (took[k, column] <= shortest[column])
    return Matched(tuple(transfer), tuple(last), tuple(waited), _offsets(len(ranks), links), count)


def _rows(found: Collectives, text: str) -> I64:
    wanted = [i for i, t in enumerate(found.texts) if t == text]
    return np.flatnonzero(np.isin(found.columns.group, wanted) & (found.columns.kind != _SEND_RECV))


def _place(
    ranks: Sequence[Collectives], rows: dict[int, I64], links: list[tuple[int, int, float, int]]
) -> dict[int, I64]:
    """Per rank of a group the number of each of its collectives, counted as the first rank counts."""
    texts: dict[object, int] = {}
    signs = {r: _signs(ranks[r], mine, texts) for r, mine in rows.items()}
    filled = [r for r in rows if len(rows[r])]
    if not filled:
        return {}
    first, placed = filled[0], {filled[0]: np.arange(len(rows[filled[0]]))}
    base = ranks[first].columns
    together = np.isin(base.kind[rows[first]], [KINDS.index(k) for k in TOGETHER])
    for r in filled[1:]:
        end = ranks[r].columns.end_ns[rows[r]]
        # Relative to the first row, so that differences of Unix times stay exact as floats.
        zero = int(end[0]) - int(base.end_ns[rows[first][0]])
        found = _shift(signs[first], signs[r], (base.end_ns[rows[first]] - base.end_ns[rows[first][0]]).astype(float),
                       (end - end[0]).astype(float), together, zero)  # fmt: skip
        if found is None:
            continue
        shift, offset = found
        placed[r] = np.arange(len(rows[r])) + shift
        links.append((first, r, offset, zero))
    return placed


def _signs(found: Collectives, rows: I64, texts: dict[object, int]) -> I64:
    """One number per collective: alike for what can be the same one."""
    c = found.columns
    signs = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows.tolist()):
        kind = KINDS[c.kind[row]]
        moved = int(c.bytes[row]) if kind in _ALIKE else ABSENT
        signs[i] = texts.setdefault((kind, found.texts[c.dtype[row]], moved), len(texts))
    return signs


def _shift(a: I64, b: I64, a_end: F64, b_end: F64, together: Mask, zero: int) -> tuple[int, float] | None:
    """(which number of a the first of b is, by how much b's ends are later than a's) or None if they do not fit.

    Half of the shorter one has to overlap. Of shifts whose ends fit about equally well, as they do where every step is
    as long as the next, the one with most in common, then the one for which the clocks differ least.
    """
    fits = []
    least = (min(len(a), len(b)) + 1) // 2
    for shift in range(least - len(b), len(a) - least + 1):
        i, j, n = max(shift, 0), max(-shift, 0), min(len(a) - max(shift, 0), len(b) - max(-shift, 0))
        if n < least or not np.array_equal(a[i : i + n], b[j : j + n]):
            continue
        difference = b_end[j : j + n] - a_end[i : i + n]
        ends = difference[together[i : i + n]] if together[i : i + n].any() else difference
        offset = float(np.median(ends))
        fits.append((float(np.median(np.abs(ends - offset))), -n, abs(offset + zero), shift, offset))
    if not fits:
        return None
    best = min(fits)[0]
    close = [fit for fit in fits if fit[0] <= 2 * best + NOISE_NS / 2]
    _, _, _, shift, offset = min(close, key=lambda fit: fit[1:3])
    return shift, offset


def _offsets(count: int, links: list[tuple[int, int, float, int]]) -> tuple[int | None, ...]:
    """Offsets to the first rank, through groups that two ranks share."""
    offsets: list[int | None] = [None] * count
    if count:
        offsets[0] = 0
    for _ in range(count):
        for a, b, offset, zero in links:
            known_a, known_b = offsets[a], offsets[b]
            if known_a is not None and known_b is None:
                offsets[b] = known_a + zero + round(offset)
            elif known_b is not None and known_a is None:
                offsets[a] = known_b - zero - round(offset)
    return tuple(offsets)

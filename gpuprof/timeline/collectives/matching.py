"""Which collective of one rank is which of another, and so how their clocks differ and who waited for whom.

All ranks run the collectives of a group in the same order, so within a group only the shift between two recordings is
open. Where the recording numbers them (`Seq`) there is nothing to find; else the ends decide: no rank leaves an
all-reduce before the last has arrived, so the ends of matched ones differ by the clocks' offset and nothing else. With
a wrong shift they differ by what steps differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.timeline.collectives.clocks import Link, clock_offsets
from gpuprof.timeline.collectives.collectives import KINDS, TOGETHER, UNKNOWN_GROUP, Collectives
from gpuprof.timeline.collectives.point_to_point import p2p_pair
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask
from gpuprof.units import Assumed, Events, Ns, Ratio

NOISE_NS: Assumed[Ns] = 20_000.0
"""Ends of one collective on two ranks of a host differ by some µs, and clocks drift by as much within a recording."""
SYNCED_CLOCKS_NS: Assumed[Ns] = 50e6
"""Clocks of hosts that follow a time server differ by less; tried first where too few collectives overlap to decide."""
FEWEST_ENDS: Assumed[Events] = 3
"""Fewest collectives whose ends decide a shift: one or two fit any."""
UNNAMED_SPREAD_NS: Assumed[Ns] = 300_000.0
"""Groups that no recording names are of one group only if their ends agree as well as this. Two recordings of 2023 with
dropped events agree to 0.26 ms; unrelated groups to no better than their steps vary."""
LONGEST_TRANSFER: Assumed[Ratio] = 3.0
"""Where some ranks of a group are missing, the shortest duration is the transfer if it is at most this many times what
the message and the link suggest: else the missing rank may be the one that is waited for."""
_ALIKE = [KINDS.index(k) for k in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")]
"""Every rank of the group moves the same amount; in an all-to-all each may give another share."""
_TOGETHER = [KINDS.index(k) for k in TOGETHER]
_SEND_RECV = KINDS.index("send_recv")


@dataclass(frozen=True, slots=True)
class Matched:
    """Per rank, aligned with the rows of its collectives."""

    instance: tuple[I64, ...]
    """Number of the collective, the same on all its ranks; -1 if unmatched."""
    complete: tuple[Mask, ...]
    """All ranks of its group are here."""
    transfer_ns: tuple[F64, ...]
    """Time of the collective once all had arrived: that of its last arriver, ns. NaN if unknown."""
    last: tuple[Mask, ...]
    """This rank arrived last, and others noticeably waited."""
    waited_for: tuple[Mask, ...]
    """Some rank noticeably waited in it."""
    offset_ns: tuple[int | None, ...]
    """This rank's clock minus the first's; None where no chain of collectives connects them."""
    collectives: int
    """Matched on two ranks at least."""


def match(ranks: Sequence[Collectives], expected_ns: Sequence[F64] | None = None) -> Matched:
    """Matches the collectives of several ranks, given in order of rank. Times are each rank's own.

    `expected_ns`: per rank and row the transfer time that the message and the link suggest; it decides whether the
    shortest duration is used as the transfer if ranks are missing.
    """
    result = _Result(ranks, expected_ns)
    groups: dict[str, list[int]] = {}
    for r, found in enumerate(ranks):
        for text in dict.fromkeys(found.texts[g] for g in np.unique(found.columns.group).tolist()):
            groups.setdefault(text, []).append(r)
    for text, members in groups.items():
        if len(members) < 2 or text == UNKNOWN_GROUP:
            continue
        rows = {r: mine for r in members if len(mine := _rows(ranks[r], text))}
        unnamed = text.startswith("stream ")
        while len(rows) > 1:
            placed = _place(ranks, rows, result.links, UNNAMED_SPREAD_NS if unnamed else np.inf)
            if len(placed) > 1:
                result.add(placed, rows)
            if not unnamed:
                break
            rows = {r: mine for r, mine in rows.items() if r not in placed}  # another group of the same number
    return result.matched()


class _Result:
    """What has been matched so far."""

    def __init__(self, ranks: Sequence[Collectives], expected_ns: Sequence[F64] | None) -> None:
        self.ranks, self.expected = ranks, expected_ns
        self.links: list[Link] = []
        self.transfer = [np.full(len(found), np.nan) for found in ranks]
        self.instance = [np.full(len(found), -1, np.int64) for found in ranks]
        self.last, self.waited, self.complete = ([np.zeros(len(found), bool) for found in ranks] for _ in range(3))
        self.collectives = self.instances = 0

    def add(self, placed: dict[int, I64], rows: dict[int, I64]) -> None:
        """One group: its members' rows and the number of each."""
        numbers = np.unique(np.concatenate(list(placed.values())))
        placed = {r: np.searchsorted(numbers, at) for r, at in placed.items()}
        width = len(numbers)
        took = np.full((len(placed), width), np.nan)
        size, expected = np.zeros(width, np.int64), np.full(width, np.nan)
        kind, moved = np.zeros(width, np.int64), np.full(width, ABSENT)
        for k, (r, at) in enumerate(placed.items()):
            c, mine = self.ranks[r].columns, rows[r]
            took[k, at] = np.maximum((c.end_ns - c.start_ns)[mine], 0)
            size[at] = np.maximum(size[at], c.group_size[mine])
            kind[at], moved[at] = c.kind[mine], c.bytes[mine]
            if self.expected is not None:
                expected[at] = np.fmin(expected[at], self.expected[r][mine])
        there = (~np.isnan(took)).sum(axis=0)
        shortest = np.min(np.where(np.isnan(took), np.inf, took), axis=0)
        longest = np.max(np.where(np.isnan(took), -np.inf, took), axis=0)
        whole = there >= np.where(size > 0, size, len(placed))
        known = np.where(whole, shortest, np.nan)
        partly = ~whole & (there >= 2)
        if partly.any():
            known[partly] = _believed(shortest, expected, kind, moved)[partly]
        noticed = (longest - shortest > NOISE_NS) & (there >= 2)
        for k, (r, column) in enumerate(placed.items()):
            mine = rows[r]
            self.transfer[r][mine] = known[column]
            self.instance[r][mine] = np.where(there[column] >= 2, self.instances + column, -1)
            self.complete[r][mine] = whole[column]
            self.waited[r][mine] = noticed[column]
            self.last[r][mine] = noticed[column] & (took[k, column] <= shortest[column])
        self.collectives += int((there >= 2).sum())
        self.instances += width

    def matched(self) -> Matched:
        return Matched(
            instance=tuple(self.instance),
            complete=tuple(self.complete),
            transfer_ns=tuple(self.transfer),
            last=tuple(self.last),
            waited_for=tuple(self.waited),
            offset_ns=clock_offsets(len(self.ranks), self.links),
            collectives=self.collectives,
        )


def _believed(shortest: F64, expected: F64, kind: I64, moved: I64) -> F64:
    """Transfer time of collectives with missing ranks, ns: the shortest of their kind and size, or NaN if even that is
    far above the expected time."""
    least = shortest.copy()
    _, sort = np.unique(np.stack([kind, moved]), axis=1, return_inverse=True)
    floor = np.full(int(sort.max(initial=-1)) + 1, np.inf)
    np.minimum.at(floor, sort.reshape(-1), shortest)
    least = np.minimum(least, floor[sort.reshape(-1)])
    return np.where(least <= LONGEST_TRANSFER * expected, least, np.nan)


def _rows(found: Collectives, text: str) -> I64:
    wanted = [i for i, t in enumerate(found.texts) if t == text]
    mine = np.isin(found.columns.group, wanted)
    if p2p_pair(text) is None:  # a send and a receive that do not say whose they are
        mine &= found.columns.kind != _SEND_RECV
    return np.flatnonzero(mine)


def _place(
    ranks: Sequence[Collectives], rows: dict[int, I64], links: list[Link], most_spread_ns: float
) -> dict[int, I64]:
    """Per rank of a group the number of each of its collectives, counted as the first rank counts."""
    texts: dict[str, int] = {}
    signs = {r: _signs(ranks[r], mine, texts) for r, mine in rows.items()}
    first, *others = rows
    base, mine = ranks[first].columns, rows[first]
    numbers = {r: ranks[r].columns.recorded_sequence[rows[r]] for r in rows}
    numbered = all(_increasing(one) for one in numbers.values())
    placed = {first: numbers[first] if numbered else np.arange(len(mine))}
    together = np.isin(base.kind[mine], _TOGETHER)
    begun = base.end_ns[mine] - base.end_ns[mine][0]
    for r in others:
        end = ranks[r].columns.end_ns[rows[r]]
        # Relative to the first row, so that differences of Unix times stay exact as floats.
        zero = int(end[0]) - int(base.end_ns[mine][0])
        ends = (begun.astype(float), (end - end[0]).astype(float))
        if numbered:
            found = _by_number(numbers[first], numbers[r], *ends)
            placed[r] = numbers[r]
        else:
            found = _shift(signs[first], signs[r], *ends, together, zero)
            if found is None or found.spread_ns > most_spread_ns:
                continue
            placed[r] = np.arange(len(rows[r])) + found.shift
        if found is not None:
            links.append(Link(first, r, found.offset_ns, zero, found.overlap, found.spread_ns))
    return placed


def _increasing(numbers: I64) -> bool:
    return bool(np.all(numbers != ABSENT) and np.all(np.diff(numbers) > 0))


def _signs(found: Collectives, rows: I64, texts: dict[str, int]) -> I64:
    """One number per collective; collectives that may be the same one have equal numbers."""
    c = found.columns
    dtype = np.array([texts.setdefault(text, len(texts)) for text in found.texts] or [0], np.int64)
    moved = np.where(np.isin(c.kind[rows], _ALIKE), c.bytes[rows], ABSENT)
    sort = c.kind[rows].astype(np.int64) + len(KINDS) * dtype[c.dtype[rows]]
    return sort * np.int64(0x5851F42D4C957F2D) ^ moved * np.int64(0x14057B7EF767814F)


@dataclass(frozen=True, slots=True)
class _ShiftFit:
    """How the ends of b's collectives lie after those of a's with one shift."""

    shift: int
    """Number that the first of b has in a."""
    overlap: int
    spread_ns: float
    offset_ns: float
    """By how much b's ends are later, both counted from their first."""


def _by_number(a: I64, b: I64, a_end: F64, b_end: F64) -> _ShiftFit | None:
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    if not len(i):
        return None
    difference = b_end[j] - a_end[i]
    offset = float(np.median(difference))
    return _ShiftFit(0, len(i), float(np.median(np.abs(difference - offset))), offset)


def _fit(a: I64, b: I64, a_end: F64, b_end: F64, together: Mask, shift: int) -> _ShiftFit | None:
    """The fit for a shift; None if it would match collectives of different kinds."""
    i, j, n = max(shift, 0), max(-shift, 0), min(len(a) - max(shift, 0), len(b) - max(-shift, 0))
    if not np.array_equal(a[i : i + n], b[j : j + n]):
        return None
    difference = b_end[j : j + n] - a_end[i : i + n]
    ends = difference[together[i : i + n]] if together[i : i + n].any() else difference
    offset = float(np.median(ends))
    return _ShiftFit(shift, n, float(np.median(np.abs(ends - offset))), offset)


def _shift(a: I64, b: I64, a_end: F64, b_end: F64, together: Mask, zero: int) -> _ShiftFit | None:
    """The shift with which b's collectives are a's, or None if they do not fit.

    Half of the shorter one has to overlap. Of shifts whose ends fit about equally well, as they do where every step is
    as long as the next, the one with most in common, then the one for which the clocks differ least. If fewer than
    FEWEST_ENDS overlap although there are more, they do not decide: then the clocks must agree to SYNCED_CLOCKS_NS.
    """
    if len(a) == len(b):
        whole = _fit(a, b, a_end, b_end, together, 0)
        if whole is not None and whole.spread_ns <= NOISE_NS / 2:
            return whole
    least = (min(len(a), len(b)) + 1) // 2
    tried = (_fit(a, b, a_end, b_end, together, shift) for shift in range(least - len(b), len(a) - least + 1))
    fits = [fit for fit in tried if fit is not None]
    sure = [fit for fit in fits if fit.overlap >= FEWEST_ENDS or fit.overlap == len(a) == len(b)]
    if sure:
        best = min(fit.spread_ns for fit in sure)
        sure = [fit for fit in sure if fit.spread_ns <= 2 * best + NOISE_NS / 2]
    else:
        sure = [fit for fit in fits if abs(fit.offset_ns + zero) < SYNCED_CLOCKS_NS]
    return min(sure, key=lambda fit: (-fit.overlap, abs(fit.offset_ns + zero)), default=None)

"""Loops around loops, and what hands a loop its tensors and joins its results: positions in a sequence of ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Levels, Ops, Rounds, Share

MOST_PERIOD: Assumed[Ops] = 48
"""Most ops in one iteration of a loop; longer ones are parts of a model."""
MOST_AROUND: Assumed[Ops] = 128
"""Most ops in one iteration of a loop around another one, which counts as one op: a model's layers have no loop over
small ops in them."""
FEWEST_ROUNDS: Assumed[Rounds] = 8
"""Fewest iterations of a loop. Chunks of a tensor, and terms of a loss, are fewer."""
FEWEST_OPS: Assumed[Ops] = 32
"""Fewest ops of a loop, over all iterations."""
MOST_BETWEEN: Assumed[Share] = 0.25
"""Most ops between two loops, as a share of the shorter one's, that are one loop over both: a loop in a loop, or one
with an iteration that takes another branch."""
DEEPEST: Assumed[Levels] = 3
"""Most levels of loops around loops: pictures, boxes and corners."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops in a sequence of ops, as positions in it; columns by loop, in order."""

    first: I64
    rounds: I64
    begin: I64
    """First op of the last iteration."""
    last: I64
    """Last op of the last iteration."""
    alone: F64
    """Ops of one iteration in which loops within it have one iteration, too."""
    again_first: I64
    again_begin: I64
    """The iterations of loops within these loops that are not their last ones, from the first op of the first iteration
    to that of the last one; columns by inner loop."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def one_round(self) -> F64:
        """Share of a loop's ops that ops over all rounds are: those of one iteration."""
        return self.alone / np.maximum(self.last - self.first + 1, 1)

    @property
    def columns(self) -> tuple[I64, I64, I64, I64, F64]:
        """All of a loop itself."""
        return self.first, self.rounds, self.begin, self.last, self.alone

    def some(self, which: Mask) -> Loops:
        """The loops of a mask."""
        return Loops(*(column[which] for column in self.columns), self.again_first, self.again_begin)


def loops_in(names: I64, family: I64, bad: Mask) -> Loops | None:
    """All loops: sequences of ops that repeat, those around them, and of those the outermost; None if there are none.

    names: number of each op's name; family: ops with the same number are in one range; bad: ops that no loop over small
    ops contains."""
    found = repeated(names, family, bad, MOST_PERIOD, FEWEST_ROUNDS, FEWEST_OPS)
    if not len(found[0]):
        return None
    first, period, rounds, begin, last = joined(names, family, bad, *found)
    none = np.zeros(0, np.int64)
    loops = Loops(first, rounds, begin, last, period.astype(np.float64), none, none)
    for _ in range(DEEPEST - 1):
        around = _around(names, family, bad, loops)
        if around is None:
            break
        loops = around
    return loops


def _around(names: I64, family: I64, bad: Mask, loops: Loops) -> Loops | None:
    """The loops, of which those that another loop repeats are replaced by that one; None if there is no such loop."""
    inner, kinds, whole = _with_short_ones(names, family, bad, loops)
    short, stays = names.copy(), np.ones(len(names), bool)
    for kind, first, last in zip(kinds.tolist(), inner.first.tolist(), inner.last.tolist(), strict=True):
        short[first] = -1 - kind  # a loop of any number of rounds is one op
        stays[first + 1 : last + 1] = False
    kept = np.flatnonzero(stays)
    at, period, rounds = repeated(short[kept], family[kept], bad[kept], MOST_AROUND, FEWEST_ROUNDS, FEWEST_OPS)
    ends = np.append(kept, len(names))
    first, last = kept[at], ends[at + period * rounds] - 1
    of_whole = inner.first[whole]
    holds = np.searchsorted(of_whole, last, side="right") > np.searchsorted(of_whole, first)
    at, period, rounds, first, last = at[holds], period[holds], rounds[holds], first[holds], last[holds]
    if not len(at):
        return None
    inside = np.searchsorted(first, inner.first, side="right") - 1
    inside[(inside >= 0) & (inner.first > last[np.maximum(inside, 0)])] = -1
    own, free = inside >= 0, (inside < 0) & whole
    mine = np.bincount(inside[own], weights=inner.alone[own] - 1, minlength=len(first))
    columns = (
        (inner.first, first), (inner.rounds, rounds), (inner.begin, kept[at + period * (rounds - 1)]),
        (inner.last, last), (inner.alone, period + mine / rounds),
    )  # fmt: skip
    order = np.argsort(np.append(inner.first[free], first))
    return Loops(
        *(np.append(old[free], new)[order] for old, new in columns),
        np.append(loops.again_first, inner.first[own]),
        np.append(loops.again_begin, inner.begin[own]),
    )


def _with_short_ones(names: I64, family: I64, bad: Mask, loops: Loops) -> tuple[Loops, I64, Mask]:
    """(the loops, and repetitions of their iterations that are too short to be loops of their own; the number of each
    one's iteration; which are loops of their own)."""
    bodies: dict[tuple[int, ...], int] = {}
    forms: dict[tuple[int, ...], int] = {}
    found: list[tuple[int, int, int, int, float, int, bool]] = []
    blocked = bad.copy()
    for one in zip(*(column.tolist() for column in loops.columns), strict=True):
        body = tuple(names[one[2] : one[3] + 1].tolist())
        kind = bodies.setdefault(tuple(sorted(body)), len(bodies))
        forms.setdefault(body, kind)
        found.append((*one, kind, True))
        blocked[one[0] : one[3] + 1] = True
    for body, kind in forms.items():
        for first, rounds in _runs(names, family, blocked, body):
            end = first + len(body) * rounds
            blocked[first:end] = True
            found.append((first, rounds, end - len(body), end - 1, float(len(body)), kind, False))
    found.sort()
    first, rounds, begin, last, alone, kinds, whole = (np.array(column) for column in zip(*found, strict=True))
    return Loops(first, rounds, begin, last, alone, loops.again_first, loops.again_begin), kinds, whole


def _runs(names: I64, family: I64, blocked: Mask, body: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first position, rounds) of each repetition of a body, twice or more, in ops that are not blocked."""
    count = len(names) - len(body) + 1
    if count <= 0:
        return []
    busy = np.append(0, np.cumsum(blocked))
    same = busy[len(body) :] == busy[:count]
    for place, name in enumerate(body):
        same &= names[place : place + count] == name
    places = np.flatnonzero(same).tolist()
    starts, found, end = set(places), [], 0
    for at in places:
        rounds = 1
        while at + rounds * len(body) in starts and family[at + rounds * len(body)] == family[at]:
            rounds += 1
        if at >= end and rounds > 1:
            end = at + rounds * len(body)
            found.append((at, rounds))
    return found


def with_ends(loops: Loops, family: I64, splits: Mask, joins: Mask) -> tuple[I64, I64]:
    """(first, last position of each loop, with the ops directly before it that split a tensor into one for each
    iteration, and those directly after it that join the results): with ops over all rounds they go, too."""
    firsts, lasts = loops.first.copy(), loops.last.copy()
    for one, (first, last) in enumerate(zip(loops.first.tolist(), loops.last.tolist(), strict=True)):
        before = lasts[one - 1] if one else -1
        after = loops.first[one + 1] if one + 1 < len(loops) else len(family)
        while first - 1 > before and splits[first - 1] and family[first - 1] == family[loops.first[one]]:
            first -= 1
        while last + 1 < after and joins[last + 1] and family[last + 1] == family[loops.first[one]]:
            last += 1
        firsts[one], lasts[one] = first, last
    return firsts, lasts


def repeated(
    names: I64, family: I64, bad: Mask, most_period: int, fewest_rounds: int, fewest_ops: int
) -> tuple[I64, I64, I64]:
    """(first position, period, rounds) of each repetition, the shortest period first; they do not overlap."""
    free = ~bad
    found: list[tuple[int, int, int]] = []
    for period in range(1, most_period + 1):
        if period >= len(names):
            break
        same = (names[period:] == names[:-period]) & (family[period:] == family[:-period])
        same &= free[period:] & free[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            rounds = (end - start) // period + 1
            whole = slice(start, start + rounds * period)
            if rounds < fewest_rounds or rounds * period < fewest_ops or not free[whole].all():
                continue
            found.append((start, period, rounds))
            free[whole] = False
    found.sort()
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def joined(names: I64, family: I64, bad: Mask, first: I64, period: I64, rounds: I64) -> tuple[I64, I64, I64, I64, I64]:
    """(first position, period, rounds, begin of the last round, last position) of loops of which those with the same
    ops, one after another in the same range, are one. `first` ascends."""
    body = [sorted(names[at : at + ops].tolist()) for at, ops in zip(first.tolist(), period.tolist(), strict=True)]
    length = period * rounds
    blocked = np.append(0, np.cumsum(bad))
    found: list[list[int]] = []
    before = -1
    for one, (at, ops, times) in enumerate(zip(first.tolist(), period.tolist(), rounds.tolist(), strict=True)):
        end = at + ops * times
        if found:
            last = found[-1][4] + 1
            near = at - last <= MOST_BETWEEN * min(length[before], length[one])
            same = body[before] == body[one] and family[found[-1][0]] == family[end - 1]
            if near and same and blocked[last] == blocked[at]:
                found[-1][2:] = [found[-1][2] + (at - last) // ops + times, end - ops, end - 1]
                before = one
                continue
        found.append([at, ops, times, end - ops, end - 1])
        before = one
    columns = np.array(found, np.int64).reshape(-1, 5)
    return columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], columns[:, 4]

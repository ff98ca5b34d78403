"""Loops within loops, and the ops that split tensors for a loop and join its results: positions in a sequence of
ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Ops, Rounds, Share

MOST_PERIOD: Assumed[Ops] = 48
"""Most ops in one iteration of a loop without a loop inside; longer ones are parts of a model."""
MOST_AROUND: Assumed[Ops] = 160
"""Most ops in one iteration of an outer loop, each loop inside counted as one of its own iterations."""
FEWEST_ROUNDS: Assumed[Rounds] = 8
"""Fewest iterations of a loop. Chunks of a tensor, and terms of a loss, are fewer."""
FEWEST_OPS: Assumed[Ops] = 32
"""Fewest ops of a loop, over all iterations."""
MOST_BETWEEN: Assumed[Share] = 0.25
"""Two loops are one if there are at most this many ops between them, as a share of the shorter one's ops: a loop in a
loop, or a loop with an iteration that takes another branch."""


@dataclass(frozen=True, slots=True)
class NestedLoops:
    """Loops in a sequence of ops, as positions in it; columns by loop, in order."""

    first: I64
    rounds: I64
    begin: I64
    """First op of the last iteration."""
    last: I64
    """Last op of the last iteration."""
    alone: I64
    """Number of ops of one iteration, with one iteration of each loop within it."""
    again_first: I64
    again_begin: I64
    """The iterations of loops within these loops that are not their last ones, from the first op of the first iteration
    to that of the last one; columns by inner loop."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def one_round(self) -> F64:
        """Share of a loop's ops that remain if ops over all iterations replace it: those of one iteration."""
        return self.alone / np.maximum(self.last - self.first + 1, 1)

    @property
    def columns(self) -> tuple[I64, I64, I64, I64, I64]:
        """The columns by loop."""
        return self.first, self.rounds, self.begin, self.last, self.alone

    def some(self, which: Mask) -> NestedLoops:
        """The loops of a mask."""
        first, rounds, begin, last, alone = (column[which] for column in self.columns)
        return NestedLoops(first, rounds, begin, last, alone, self.again_first, self.again_begin)


def loops_in(names: I64, family: I64, bad: Mask) -> NestedLoops | None:
    """All loops; None if there are none. Of nested loops it is the outer one, whose iterations differ only in how often
    the inner ones run.

    names: number of each op's name; family: ops with the same number are in one range; bad: ops that no loop over small
    ops contains."""
    simple = repeated(names, family, bad, MOST_PERIOD, FEWEST_ROUNDS, FEWEST_OPS)
    if not len(simple[0]):
        return None
    first, period, rounds, begin, last = joined(names, family, bad, *simple)
    none = np.empty(0, np.int64)
    loops = NestedLoops(first, rounds, begin, last, period, none, none)
    around = _around(names, family, bad, first, last)
    if not len(around):
        return loops
    rest = loops.some(_places(around, first) < 0)
    order = np.argsort(np.append(rest.first, around.first), kind="stable")
    first, rounds, begin, last, alone = (
        np.append(a, b)[order] for a, b in zip(rest.columns, around.columns, strict=True)
    )
    return NestedLoops(first, rounds, begin, last, alone, around.again_first, around.again_begin)


def _around(names: I64, family: I64, bad: Mask, first: I64, last: I64) -> NestedLoops:
    """Loops around others: what repeats once only the first iteration of each repetition is kept. Each contains some of
    the loops `first` to `last`, and other ops."""
    inner = repeated(names, family, bad, MOST_PERIOD, 2, 2)
    at, ops, times = inner
    kept = np.ones(len(names), bool)
    for start, end in zip((at + ops).tolist(), (at + ops * times).tolist(), strict=True):
        kept[start:end] = False
    rows = np.flatnonzero(kept)
    ends = np.append(rows, len(names))
    one, period, rounds = repeated(names[rows], family[rows], bad[rows], MOST_AROUND, FEWEST_ROUNDS, FEWEST_OPS)
    start, begin, end = rows[one], rows[one + period * (rounds - 1)], ends[one + period * rounds] - 1
    each = zip(start.tolist(), end.tolist(), strict=True)
    longest = np.array([(last - first + 1)[(first >= a) & (last <= b)].max(initial=0) for a, b in each], np.int64)
    good = (longest > 0) & (longest < (1 - MOST_BETWEEN) * (end - start + 1))
    found = NestedLoops(start, rounds, begin, end, period, at, at + ops * (times - 1)).some(good)
    mine = _places(found, at) >= 0
    return replace(found, again_first=found.again_first[mine], again_begin=found.again_begin[mine])


def _places(loops: NestedLoops, positions: I64) -> I64:
    """The loop that each position is in; -1: none."""
    inside = np.searchsorted(loops.first, positions, side="right") - 1
    out = (inside < 0) | (positions > np.append(loops.last, -1)[inside])
    return np.where(out, -1, inside)


def with_ends(loops: NestedLoops, family: I64, splits: Mask, joins: Mask) -> tuple[I64, I64]:
    """(first, last position of each loop, with the ops directly before it that split a tensor into one for each
    iteration, and those directly after it that join the results): ops over all iterations need neither."""
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
    """(first position, period, rounds, begin of the last round, last position) of loops; consecutive ones in the same
    range with the same ops become one. `first` ascends."""
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

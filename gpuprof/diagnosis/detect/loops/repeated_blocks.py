"""Long sequences of small ops that a step runs a few times: a loss for each layer's output, scale, head or term; or a
lookup with interpolation for each level of a grid.

Loops of many short rounds are in small_op_loops.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.layer_ops import LARGE_OPS
from gpuprof.diagnosis.detect.loops.small_op_loops import FILES, SmallLoops, find_small_loops, own_ops
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.stretches import Stretches
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Assumed, Ops, Rounds

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_NAMES: Assumed[Ops] = 8
"""Fewest different ops of a block: a loss is not a list of casts."""
FEWEST_ROUNDS: Assumed[Rounds] = 3
"""Fewest blocks in a row: two are the two sides of a pair."""
SUMS_UP = re.compile(r"^aten::(sum|mean|\w*norm|dot|kl_div|binary_cross_entropy\w*|\w*_loss\w*)$")
"""Ops of a loss. What has none of them is no loss: layers without weights, each of which needs the one before, as where
a recommender propagates over its graph."""
MOST_ROUNDS: Assumed[Rounds] = 64
MOST_OPS: Assumed[Ops] = 4096
"""Most ops of one block."""
LOOKUPS = frozenset({"aten::embedding", "aten::embedding_bag", "aten::grid_sampler", "aten::grid_sampler_2d"})
"""Ops that read a table or a grid at computed places."""
SEARCHES = frozenset(f"aten::{name}" for name in ("argmin", "argmax", "min", "max", "topk", "sort", "argsort"))
"""Ops that find where to look: a residual quantizer looks for what the level before it has left."""
MOST_PERIODS: Assumed[Rounds] = 8
"""Periods that are tried: the commonest distances between two ops of the same name that come as often as blocks do."""


def find_repeated_blocks(case: Analysis) -> SmallLoops | None:
    """Blocks in the forward pass, of which some have a backward pass; None if there are none. Computed once."""
    if "repeated_blocks" not in case.memo:
        case.memo["repeated_blocks"] = _find(case)
    return case.memo["repeated_blocks"]


def _find(case: Analysis) -> SmallLoops | None:
    rows, _ = own_ops(case)
    ops = case.trace.ops
    names = ops.name[rows].astype(np.int64)
    large = LARGE_OPS - LOOKUPS  # no lookup returns the indices of the next one
    layers = case.ops_named(lambda name: name in large or name in FILES or not name.startswith("aten::"))[rows]
    layers |= case.timeline.host.op[rows] != FORWARD
    layers |= np.diff(ops.thread[rows], prepend=-1) != 0
    # What follows a backward pass belongs to another loss: a step without weights would be a block itself.
    passes = np.searchsorted(np.sort(case.timeline.host.backward.start), ops.start_ns[rows])
    layers |= np.diff(passes, prepend=-1) != 0
    found = sorted(one for one in blocks_in(names, layers) if _can_be_one(case, rows[one[0] : one[0] + one[1]]))
    if not found:
        return None
    first, period, rounds = np.array(found, np.int64).T

    def between(first: I64, end: I64) -> Stretches:
        return Stretches.of(ops, rows[first], rows[end - 1])

    whole = between(first, first + period * rounds)
    backward = backward_of(case, whole)
    # An op without a node of autograd has the number of the next op that makes one: a block of those has one number.
    numbers = [len(np.unique(ops.sequence[rows[a : a + n * k]])) for a, n, k in found]
    mine = (backward.end_ns > backward.start_ns) & (np.array(numbers) >= rounds) & ~_are_rounds(case, whole)
    if not mine.any():
        return None
    first, period, rounds = first[mine], period[mine], rounds[mine]
    whole, last = between(first, first + period * rounds), first + period * (rounds - 1)
    none = np.empty(0, np.int64)
    nothing = Stretches(none, none, none)
    return SmallLoops(whole, rounds, between(last, last + period), 1.0 / rounds, nothing, backward_of(case, whole))


def _can_be_one(case: Analysis, rows: I64) -> bool:
    """Whether blocks of these ops can be computed at once: a loss sums something up, and a lookup is not where the
    block searched."""
    names = {case.trace.strings[int(name)] for name in case.trace.ops.name[rows]}
    if LOOKUPS & names:
        return not SEARCHES & names
    return any(map(SUMS_UP.search, names))


def _are_rounds(case: Analysis, blocks: Stretches) -> Mask:
    """Whether blocks are the rounds of one loop over small ops, which has most of the same time."""
    loops = find_small_loops(case)
    if loops is None:
        return np.zeros(len(blocks), bool)
    end = np.minimum(blocks.end_ns[:, None], loops.stretches.end_ns)
    common = end - np.maximum(blocks.start_ns[:, None], loops.stretches.start_ns)
    same = blocks.thread[:, None] == loops.stretches.thread
    return (same & (2 * common > (blocks.end_ns - blocks.start_ns)[:, None])).any(axis=1)


def blocks_in(names: I64, layers: Mask) -> Iterator[tuple[int, int, int]]:
    """(first position, ops of a block, blocks) of each repetition that contains none of the `layers`; the one with most
    ops first, and none that overlaps it."""
    free = ~layers
    found = list[tuple[int, int, int]]()
    for period in _periods(names, layers):
        same = (names[period:] == names[:-period]) & free[period:] & free[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            rounds = (end - start) // period + 1
            if FEWEST_ROUNDS <= rounds <= MOST_ROUNDS and len(np.unique(names[start : start + period])) >= FEWEST_NAMES:
                found.append((start, period, rounds))
    taken = np.zeros(len(names), bool)
    for start, period, rounds in sorted(found, key=lambda one: (-one[1] * one[2], one[1])):
        whole = slice(start, start + period * rounds)
        if free[whole].all() and not taken[whole].any():
            taken[whole] = True
            yield start, period, rounds


def _periods(names: I64, layers: Mask) -> list[int]:
    """The commonest distances between ops of one name, of names that come a few times."""
    _, which, count = np.unique(np.where(layers, -1, names), return_inverse=True, return_counts=True)
    few = ((count >= FEWEST_ROUNDS) & (count <= MOST_ROUNDS))[which] & ~layers
    at = np.flatnonzero(few)
    at = at[np.lexsort((at, which[at]))]
    apart = np.diff(at)[np.diff(which[at]) == 0]
    apart = apart[(apart >= FEWEST_NAMES) & (apart <= MOST_OPS)]
    found, times = np.unique(apart, return_counts=True)
    best = np.argsort(-times * found, kind="stable")[:MOST_PERIODS]
    return found[best].tolist()

"""Calls of a model in the ops alone: each begins with reading what only a batch has, indices that are embedded or
pictures of a few channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.layer_ops import CONVOLUTIONS, MATMULS
from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.timeline.phases import BACKWARD, FORWARD, GENERATION, OTHER
from gpuprof.tracefile.trace import I32, I64, OP
from gpuprof.units import Assumed, Entries, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_CHANNELS: Assumed[Entries] = 4
"""Most channels of a picture: more are of a layer's output."""
FEWEST_MATMULS: Assumed[Ops] = 4
"""Fewest matrix multiplications and convolutions of a pass: fewer are a head or a single layer."""
RECORDS: Assumed[Share] = 0.5
"""Smallest share of a pass's ops with a sequence number for the pass to count as recorded by autograd."""
FEWEST_NODES: Assumed[Share] = 0.1
"""Smallest number of nodes of autograd for each op of a pass that it records."""
SAME_OPS: Assumed[Share] = 0.8
"""Smallest share of the ops from one beginning to the next that must be the same in all passes: the rest is Python of
the loss, masks, and what is done with a result."""
EMBEDDING = "aten::embedding"


@dataclass(frozen=True, slots=True)
class PlainCall:
    """A call of a model on tokens or pictures for which autograd records nothing."""

    rows: I64
    """Its outermost ops, in order of time, up to the next call."""
    sequences: int
    """Sequences of tokens, or pictures."""
    tokens: int
    """Of each sequence; pixels of a picture."""
    of_pictures: bool
    interval: int
    """Number of backward ops before it."""
    place: int
    """Of the call among all calls of its interval that read from the same table, those with gradients included."""
    with_gradients: int
    """How many of these calls autograd records."""


def find_plain_calls(case: Analysis) -> list[PlainCall]:
    """Calls without gradients, in order of time: text that is generated, log-probabilities, an evaluation, encoders
    that are frozen. Computed once per case."""
    if "plain_calls" not in case.memo:
        rows = outermost_forward(case, (FORWARD, OTHER, GENERATION))
        case.memo["plain_calls"] = [
            call for number, part in before_each_backward(case, rows) for call in _of_interval(case, part, number)
        ]
    return case.memo["plain_calls"]


def _of_interval(case: Analysis, rows: I64, interval: int) -> Iterator[PlainCall]:
    ops, strings = case.trace.ops, case.trace.strings
    tables, pictures = _reads(case, rows)
    largest = {max(tables, key=math.prod)} if tables else set()
    kinds = {at: shape for shape, each in (*tables.items(), *pictures.items()) for at in each
             if shape in largest or shape in pictures}  # fmt: skip
    begins = sorted(kinds)
    calls = [(kinds[at], rows[at:end]) for at, end in pairwise([*begins, len(rows)])]
    recorded = [records_gradients(case, mine) for _, mine in calls]
    for number, (kind, mine) in enumerate(calls):
        if recorded[number]:
            continue
        given = shapes_in(case, int(ops.dims[mine[0]]))[kind not in pictures]
        multiplied = sum(strings[int(ops.name[row])] in MATMULS | CONVOLUTIONS for row in mine.tolist())
        if not given or multiplied < FEWEST_MATMULS:
            continue
        of_pictures = kind in pictures
        if of_pictures and any(returns_pictures(case, row, int(mine[0])) for row in mine[1:].tolist()):
            continue  # what it returns may be the next one's input
        sequences, tokens = (given[0], math.prod(given[2:])) if of_pictures else (math.prod(given[:-1]), given[-1])
        place = sum(other == kind for other, _ in calls[:number])
        trained = sum(own for own, (other, _) in zip(recorded, calls, strict=True) if other == kind)
        yield PlainCall(mine, sequences, tokens, of_pictures, interval, place, trained)


def records_gradients(case: Analysis, rows: I64) -> bool:
    """Whether autograd records ops: they have sequence numbers, which move on with each node. Those of a frozen model
    all have that of the next node."""
    numbers = case.trace.ops.sequence[rows]
    known = numbers >= 0
    return bool(known.mean() > RECORDS and len(np.unique(numbers[known])) > FEWEST_NODES * len(rows))


def before_each_backward(case: Analysis, rows: I64) -> Iterator[tuple[int, I64]]:
    """(number of backward ops before them, the ops before the next backward pass), of one thread in order of time."""
    ops = case.trace.ops
    rows = rows[ops.thread[rows] == case.timeline.main_thread]
    backward = np.sort(ops.start_ns[(ops.kind == OP) & (case.timeline.host.op == BACKWARD)])
    passed = np.searchsorted(backward, ops.start_ns[rows])
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(passed)) + 1):
        if len(part):
            yield int(passed[part[0]]), rows[part]


def beginnings(case: Analysis, rows: I64) -> list[int]:
    """Positions at which a model reads a batch: lookups in the largest table, or else convolutions of pictures."""
    tables, pictures = _reads(case, rows)
    return tables[max(tables, key=math.prod)] if tables else max(pictures.values(), key=len, default=[])


def _reads(case: Analysis, rows: I64) -> tuple[dict[tuple[int, ...], list[int]], dict[tuple[int, ...], list[int]]]:
    """(positions of lookups, positions of convolutions of pictures), by the shape of the table or of the weight."""
    ops, strings = case.trace.ops, case.trace.strings
    tables: dict[tuple[int, ...], list[int]] = {}
    pictures: dict[tuple[int, ...], list[int]] = {}
    for at, row in enumerate(rows.tolist()):
        name = strings[int(ops.name[row])]
        if name != EMBEDDING and name not in CONVOLUTIONS:
            continue
        shapes = shapes_in(case, int(ops.dims[row]))
        weight = shapes[0 if name == EMBEDDING else 1] if len(shapes) > 1 else None
        if not weight:
            continue
        if name == EMBEDDING:
            tables.setdefault(weight, []).append(at)
        elif len(weight) > 2 and weight[1] <= MOST_CHANNELS and (shapes[0] or ())[1:2] == weight[1:2]:
            pictures.setdefault(weight, []).append(at)
    return tables, pictures


def returns_pictures(case: Analysis, row: int, begin: int) -> bool:
    """Whether a convolution returns pictures of the size and the channels that a pass begins with."""
    ops, strings = case.trace.ops, case.trace.strings
    if not {strings[int(ops.name[at])] for at in (row, begin)} <= CONVOLUTIONS:
        return False
    taken = shapes_in(case, int(ops.dims[begin]))[0]
    given, weight, *_ = [*shapes_in(case, int(ops.dims[row])), None, None]
    if not taken or not given or not weight:
        return False
    return taken[1] == weight[0] and taken[2:] == given[2:]


def same_from_start(one: I64 | I32, other: I64 | I32) -> int:
    """Values at the beginning that are the same in both."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def alike(case: Analysis, one: PlainCall, other: PlainCall) -> bool:
    """Whether two calls run the same ops in the same order, except for what is done with the results."""
    names = case.trace.ops.name
    return same_from_start(names[one.rows], names[other.rows]) >= SAME_OPS * min(len(one.rows), len(other.rows))

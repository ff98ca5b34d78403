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
SAME_OPS: Assumed[Share] = 0.8
"""Smallest share of the ops from one beginning to the next that must be the same in all passes: the rest is Python of
the loss, masks, and what is done with a result."""
EMBEDDING = "aten::embedding"


@dataclass(frozen=True, slots=True)
class TokenCall:
    """A call of a model on tokens for which autograd records nothing."""

    rows: I64
    """Its outermost ops, in order of time, up to the next call."""
    sequences: int
    tokens: int
    """Of each sequence."""
    interval: int
    """Number of backward passes before it."""
    place: int
    """Of the call among all calls of its interval, those with gradients included."""
    with_gradients: int
    """Calls of its interval that autograd records."""


def find_token_calls(case: Analysis) -> list[TokenCall]:
    """Calls on tokens without gradients, in order of time: text that is generated, log-probabilities, an evaluation.
    Computed once per case."""
    if "token_calls" not in case.memo:
        rows = outermost_forward(case, (FORWARD, OTHER, GENERATION))
        case.memo["token_calls"] = [
            call for number, part in before_each_backward(case, rows) for call in _of_interval(case, part, number)
        ]
    return case.memo["token_calls"]


def _of_interval(case: Analysis, rows: I64, interval: int) -> Iterator[TokenCall]:
    ops, strings = case.trace.ops, case.trace.strings
    begins = beginnings(case, rows)
    calls = [rows[at:end] for at, end in pairwise([*begins, len(rows)])]
    recorded = [bool((ops.sequence[mine] >= 0).mean() > RECORDS) for mine in calls]
    for place, mine in enumerate(calls):
        if recorded[place] or strings[int(ops.name[mine[0]])] != EMBEDDING:
            continue
        indices = shapes_in(case, int(ops.dims[mine[0]]))[1:2]
        if not indices or not indices[0]:
            continue
        *outer, tokens = indices[0]
        if sum(strings[int(ops.name[row])] in MATMULS for row in mine.tolist()) >= FEWEST_MATMULS:
            yield TokenCall(mine, math.prod(outer), tokens, interval, place, sum(recorded))


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
    return tables[max(tables, key=math.prod)] if tables else max(pictures.values(), key=len, default=[])


def same_from_start(one: I64 | I32, other: I64 | I32) -> int:
    """Values at the beginning that are the same in both."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def alike(case: Analysis, one: TokenCall, other: TokenCall) -> bool:
    """Whether two calls run the same ops in the same order, except for what is done with the results."""
    names = case.trace.ops.name
    return same_from_start(names[one.rows], names[other.rows]) >= SAME_OPS * min(len(one.rows), len(other.rows))

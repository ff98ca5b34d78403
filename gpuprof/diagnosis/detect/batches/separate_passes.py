"""A model that is called several times before one backward pass, each time on other inputs.

Such passes are found in the ops alone: each begins with reading what only a batch has (indices that are embedded, or
pictures of a few channels), so none takes the result of the one before as its batch, and each has the same ops in the
same order. A stack of layers repeats ops as well, but embeds once. Two models of the same structure (two towers)
accumulate twice the gradients: each of their weights gets its own. Discriminators of one
structure that judge real and generated samples at several scales are called twice each, on a shape of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.diagnosis.detect.loops.layer_ops import CELLS, CONVOLUTIONS, MATMULS, RECURRENT_LAYERS
from gpuprof.diagnosis.detect.loops.recurrent_loops import outermost_forward
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.projection.changes.batch import ACCUMULATE
from gpuprof.record.phases.phase_names import REPEATED_RANGE
from gpuprof.replay.stretches import Stretches
from gpuprof.timeline.phases import BACKWARD, DATA
from gpuprof.tracefile.trace import I64, OP
from gpuprof.units import Assumed, Entries, Ops, Ratio, Share

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
ONE_MODEL: Assumed[Ratio] = 1.5
"""Most gradients that are accumulated for each weight of a pass: two models have 2."""
FEWEST_FROZEN: Assumed[Entries] = 3
"""Fewest passes of a frozen model: two views of a sample, or a teacher and another one, are two."""
EMBEDDING = "aten::embedding"
WEIGHTS = {
    "aten::linear": (1, 2), EMBEDDING: (0,), "aten::layer_norm": (2, 3), "aten::batch_norm": (1, 2),
    "aten::rms_norm": (2,), "aten::group_norm": (2, 3), **dict.fromkeys(sorted(CONVOLUTIONS), (1, 2)),
}  # fmt: skip
"""Op → places of its weights among its arguments."""
RECURRENT = frozenset(CELLS) | RECURRENT_LAYERS


class SeparatePasses(NamedTuple):
    """Passes as stretches of CPU time; columns by pass."""

    stretches: Stretches
    place: I64
    """Of a pass among those before the same backward pass, from 0."""
    passes: int
    """Passes before each backward pass."""
    backward: Stretches
    alike: bool
    """Whether all passes have inputs of the same shape."""


def find_separate_passes(case: Analysis) -> SeparatePasses | None:
    """Passes of the window; None where a model is called once, or where calls may need each other."""
    return _found(case, learn=True)


def find_frozen_parts(case: Analysis) -> SeparatePasses | None:
    """The same for a model that runs without gradients, on pictures: an encoder that is called for each frame or for a
    few tiles at a time."""
    return _found(case, learn=False)


def _found(case: Analysis, learn: bool) -> SeparatePasses | None:
    if case.ops_named(lambda name: name.startswith(REPEATED_RANGE)).any():
        return None  # the same inputs again: another finding
    rows = outermost_forward(case)
    if not len(rows):
        return None
    found = [_of_interval(case, part, learn) for part in _intervals(case, rows)]
    of_some = [one for one in found if one is not None]
    counts = {len(one) for one in of_some}
    if len(counts) != 1:
        return None
    pairs = [pair for one in of_some for pair in one]
    first, last = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    ops = case.trace.ops
    stretches = Stretches.of(ops, first, last)
    kinds = len(np.unique(ops.dims[first]))
    if not learn:
        none = np.zeros(len(first), np.int64)
        backward = Stretches(none - 1, none, none)
        return SeparatePasses(stretches, _places(first, len(of_some)), counts.pop(), backward, kinds == 1)
    backward = backward_of(case, stretches)
    if not (backward.thread >= 0).all():
        return None
    models = _models(case, rows, stretches, len(of_some))
    if models == 1:
        return SeparatePasses(stretches, _places(first, len(of_some)), counts.pop(), backward, kinds == 1)
    # Models of one structure, each called on several inputs of a shape of its own.
    places = [_places(one, 1, ops.dims[one].astype(np.int64)) for one in np.split(first, len(of_some))]
    times = np.unique(
        np.concatenate([np.unique(ops.dims[one], return_counts=True)[1] for one in np.split(first, len(of_some))])
    )
    if models != kinds or len(times) != 1 or times[0] < 2:
        return None
    return SeparatePasses(stretches, np.concatenate(places), int(times[0]), backward, True)


def _places(first: I64, intervals: int, kind: I64 | None = None) -> I64:
    """Place of each pass among those of its interval, or of its kind in it, from 0."""
    if kind is None:
        return np.tile(np.arange(len(first) // intervals), intervals)
    return np.array([int((kind[:at] == kind[at]).sum()) for at in range(len(first))], np.int64)


def _intervals(case: Analysis, rows: I64) -> Iterator[I64]:
    """The forward ops before each backward pass, in order of time, on one thread."""
    ops = case.trace.ops
    rows = rows[ops.thread[rows] == case.timeline.main_thread]
    backward = np.sort(ops.start_ns[(ops.kind == OP) & (case.timeline.host.op == BACKWARD)])
    passed = np.searchsorted(backward, ops.start_ns[rows])
    for part in np.split(rows, np.flatnonzero(np.diff(passed)) + 1):
        if len(part):
            yield part


def _of_interval(case: Analysis, rows: I64, learn: bool) -> list[tuple[int, int]] | None:
    """(first, last op) of each pass of an interval; None where there are not several of the same ops. learn: those with
    gradients; the others are of frozen models, on pictures."""
    ops, strings = case.trace.ops, case.trace.strings
    fewest = 2 if learn else FEWEST_FROZEN
    begins = _begins(case, rows, learn)
    if len(begins) < fewest:
        return None
    ends = [*begins[1:], len(rows)]
    # Those of a teacher or a reference model run without gradients.
    recorded = [_is_recorded(case, rows[at:end]) == learn for at, end in zip(begins, ends, strict=True)]
    if not learn and (not all(recorded) or _loads_between(case, rows[begins[0]], rows[-1])):
        return None  # the trained model itself, or the batches of an evaluation
    least = min((end - at for at, end, own in zip(begins, ends, recorded, strict=True) if own), default=0)
    begins = [at for at, own in zip(begins, recorded, strict=True) if own]
    if len(begins) < fewest:
        return None
    names = ops.name[rows].astype(np.int64)
    pieces = [names[at : at + least] for at in begins]
    length = min(_same(pieces[0], piece) for piece in pieces[1:])
    if length < SAME_OPS * least:
        return None
    first = rows[begins[0] : begins[0] + length].tolist()
    kinds = [strings[int(ops.name[row])] for row in first]
    if any(_returns_pictures(case, row, rows[begins[0]], any_size=not learn) for row in first[1:]):
        return None  # a frame that is predicted may be the next one's input
    if sum(kind in MATMULS or kind in CONVOLUTIONS for kind in kinds) < FEWEST_MATMULS or RECURRENT & set(kinds):
        return None
    return [(int(rows[at]), int(rows[at + length - 1])) for at in begins]


def _is_recorded(case: Analysis, rows: I64) -> bool:
    """Whether autograd records these ops."""
    return bool((case.trace.ops.sequence[rows] >= 0).mean() > RECORDS)


def _loads_between(case: Analysis, first: int, last: int) -> bool:
    """Whether a batch is loaded between two ops."""
    ops = case.trace.ops
    loading = ops.start_ns[case.timeline.host.op == DATA]
    return bool(((loading > ops.start_ns[first]) & (loading < ops.start_ns[last])).any())


def _begins(case: Analysis, rows: I64, tokens: bool) -> list[int]:
    """Positions at which a model reads a batch: lookups in the largest table (`tokens`), or else convolutions of
    pictures."""
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
    return tables[max(tables, key=np.prod)] if tables and tokens else max(pictures.values(), key=len, default=[])


def _returns_pictures(case: Analysis, row: int, begin: int, any_size: bool) -> bool:
    """Whether a convolution returns pictures of the channels that a pass begins with, and of their size."""
    ops, strings = case.trace.ops, case.trace.strings
    if not {strings[int(ops.name[at])] for at in (row, begin)} <= CONVOLUTIONS:
        return False
    taken = shapes_in(case, int(ops.dims[begin]))[0]
    given, weight, *_ = [*shapes_in(case, int(ops.dims[row])), None, None]
    if not taken or not given or not weight:
        return False
    return taken[1] == weight[0] and (any_size or taken[2:] == given[2:])


def _same(one: I64, other: I64) -> int:
    """Ops at the beginning that are the same in both."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def _models(case: Analysis, rows: I64, stretches: Stretches, intervals: int) -> int:
    """How many models of this structure run, by the number of gradients that autograd accumulates; 0 if unknown."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    inside = (ops.start_ns >= low) & (ops.start_ns < high)
    accumulated = int((case.ops_named(ACCUMULATE.__eq__) & inside).sum())
    start, end = int(stretches.start_ns[0]), int(stretches.end_ns[0])
    mine = rows[(ops.start_ns[rows] >= start) & (ops.end_ns[rows] <= end)]
    weights = sum(_weights(case, row) for row in mine.tolist()) * intervals
    if not accumulated or not weights:
        return 0
    return 1 if accumulated <= ONE_MODEL * weights else round(accumulated / weights)


def _weights(case: Analysis, row: int) -> int:
    """Weights that an op is given."""
    places: Sequence[int] = WEIGHTS.get(case.trace.strings[int(case.trace.ops.name[row])], ())
    shapes = shapes_in(case, int(case.trace.ops.dims[row])) if places else []
    return sum(bool(shapes[at]) for at in places if at < len(shapes))

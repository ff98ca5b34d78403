"""Norms, means or other statistics of gradients or weights, computed for one tensor after another to be logged.

After a backward pass, and before the next op with gradients, one reduction is called for many tensors of different
shapes, each in a call of its own. What follows and uses only the results (their sum, copies to the CPU, a logger's
calls) belongs to it. A loop that ends in scaling the tensors clips gradients, and is needed in each step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.detect.losses.logged_values import IN_PLACE, LISTS, STEPS_WITH_LOGGED_WORK, LoggedValues, PassOps
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.units import Assumed, Entries, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

REDUCES = re.compile(
    r"^aten::(linalg_vector_norm|linalg_norm|norm|sum|mean|std|var|std_mean|var_mean|max|min|amax|amin|aminmax|histc"
    r"|histogram|isnan|isinf|isfinite|any|all|count_nonzero|abs|square|pow|quantile|median)$"
)
"""Ops that reduce a tensor to a number, or are the first step of doing so."""
SCALES = re.compile(r"(^aten::|_foreach_)(mul|div|clamp)_$")
"""Ops with which gradients are clipped."""
FEWEST_TENSORS: Assumed[Entries] = 16
"""Fewest tensors that a loop over weights or gradients reduces."""
FEWEST_SHAPES: Assumed[Entries] = 2
"""Fewest different shapes among them."""
OPS_TO_CLIP: Assumed[Ops] = 12
"""Most ops from the end of such a loop to the first one that scales gradients, if the loop is for clipping: the total
norm, the largest allowed norm divided by it, and its bound."""


def find_gradient_statistics(case: Analysis) -> LoggedValues | None:
    """Such loops of the recorded steps; None where there are none, or where shapes or autograd's numbers were not
    recorded."""
    ops = PassOps(case)
    if not len(ops.rows) or not len(ops.evaluated):
        return None
    found = [one for first, last in _between_passes(ops) for one in _loops(ops, first, last)]
    if not found or len(found) < STEPS_WITH_LOGGED_WORK * case.steps:
        return None
    columns = case.trace.ops
    first, last = (ops.rows[[one[at] for one in found]] for at in (0, 1))
    stretches = Stretches.of(columns, first, last)
    inside = nodes_in(case.graph, stretches) >= 0
    members = np.concatenate([np.arange(a, b + 1) for a, b in found])
    reducing = np.array([at for at in members.tolist() if _reduces(ops, at)], np.int64)
    return LoggedValues(
        stretches,
        inside & ~case.graph.waits,
        inside & case.graph.waits,
        int(ops.reads[members].sum()),
        ops.largest_names(reducing),
        max((ops.widest(at) for at in reducing.tolist()), key=math.prod),
        len(reducing),
    )


def _between_passes(ops: PassOps) -> list[tuple[int, int]]:
    """(first, end) among `ops` after each backward pass, up to the next op with gradients."""
    needed = np.append(np.flatnonzero(ops.needed), len(ops.rows))
    firsts = np.searchsorted(ops.start, ops.backward.end)
    return [(int(first), int(needed[np.searchsorted(needed, first)])) for first in firsts.tolist()]


def _loops(ops: PassOps, first: int, end: int) -> list[tuple[int, int]]:
    """(first, last) place of each loop in a part of the ops."""
    found, at = list[tuple[int, int]](), first
    while at < end:
        if not _reduces(ops, at):
            at += 1
            continue
        begin = at
        while at < end and not _ends(ops, at):
            at += 1
        last = _last(ops, begin, at)
        reducing = [one for one in range(begin, last + 1) if _reduces(ops, one)]
        names = Counter(ops.names[one] for one in reducing)
        if (
            max(names.values()) >= FEWEST_TENSORS
            and len({ops.widest(one) for one in reducing}) >= FEWEST_SHAPES
            and not _clips(ops, last, end)
        ):
            found.append((begin, last))
        at = max(at, begin + 1)
    return found


def _clips(ops: PassOps, last: int, end: int) -> bool:
    """Whether a loop that ends at `last` is followed by scaling, other than an optimizer's weight decay."""
    behind = range(last + 1, min(last + 1 + OPS_TO_CLIP, end))
    own = [at for at in behind if ops.in_optimizer[at] == ops.in_optimizer[last]]
    return any(SCALES.search(ops.names[at]) for at in own)


def _last(ops: PassOps, begin: int, end: int) -> int:
    """The last op of a loop: from its last reduction on, ops on its results."""
    last = max(at for at in range(begin, end) if _reduces(ops, at))
    while last + 1 < end and ops.size(last + 1) <= calibrated.SMALL_VALUES.value:
        last += 1
    return last


def _reduces(ops: PassOps, at: int) -> bool:
    """Whether an op reduces one tensor of a weight's size to a number."""
    return REDUCES.match(ops.names[at]) is not None and len(ops.widest(at)) > 0


def _ends(ops: PassOps, at: int) -> bool:
    """Whether an op is not part of such a loop: it works on lists, multiplies, or changes a large tensor."""
    if ops.models[at]:
        return True
    case, row = ops.case, ops.rows[at]
    if LISTS in (case.trace.text(int(case.trace.ops.types[row])) or "") and ops.names[at] != "aten::stack":
        return True
    return bool(IN_PLACE.search(ops.names[at])) and ops.size(at) > calibrated.SMALL_VALUES.value

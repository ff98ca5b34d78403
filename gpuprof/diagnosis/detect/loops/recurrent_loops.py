"""Recurrences that Python runs step by step: the same ops on the same shapes in the same modules, again and again.

A stack of layers repeats ops as well, but each layer is a different module. A recurrence calls the same cell for each
frame (an LSTM), or is a function of one module that goes from chunk to chunk (a gated delta rule, a state space model).
So ranges of modules must have been recorded: without them the two look the same. A decoder may also call a whole layer
(`torch.nn.LSTM`) for one step at a time, and append each step's result to a tensor that grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.loops.expert_loops import PRODUCTS
from gpuprof.diagnosis.detect.loops.small_op_loops import MOST_PERIOD, SmallLoops, repeated
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.stretches import Stretches, place
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, FORWARD
from gpuprof.tracefile.trace import ANNOTATION, I64, OP, Mask
from gpuprof.units import Assumed, Ops, Rounds

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_ROUNDS: Assumed[Rounds] = 8
"""Steps from which on a repetition is a recurrence, or a loop over heads: blocks of a tensor are fewer."""
FEWEST_OPS: Assumed[Ops] = 64
"""Fewest ops of a recurrence, over all iterations."""
CELLS = ("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
"""Cells of torch.nn for which it also has a layer that runs all steps."""
RECURRENT_LAYERS = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
"""Layers that run all steps of a sequence in one call, and are called for each step by itself in such a loop."""
MULTIPLIES = PRODUCTS | RECURRENT_LAYERS | frozenset({"aten::einsum", *CELLS})
"""An iteration has at least one of these ops: without any it is a loop over small ops (`small_op_loops`)."""
LAYERS = frozenset(
    f"aten::{name}"
    for name in ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "batch_norm", "rsqrt", "conv2d",
                 "scaled_dot_product_attention")
)  # fmt: skip
"""What layers have and cells do not: a stack of layers whose modules have no ranges of their own repeats, too."""
GROWS = "aten::cat"
"""Op whose sizes may differ from round to round: it puts the result of a round behind those before it."""
MODULE = "nn.Module: "


def find_recurrent_loops(case: Analysis) -> SmallLoops | None:
    """Recurrences of the window; None if there are none. Computed once per case."""
    if "recurrent_loops" not in case.memo:
        case.memo["recurrent_loops"] = _find(case)
    return case.memo["recurrent_loops"]


def _find(case: Analysis) -> SmallLoops | None:
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    module = case.ops_named(lambda name: name.startswith(MODULE)) & (ops.kind == ANNOTATION)
    rows = outermost_forward(case)
    if len(rows) < FEWEST_OPS or not module.any():
        return None
    inner = climb(parent[rows], parent, module)
    # Ops are equal if name, shapes and calling module (`LSTMCell_0`, in any call) are equal.
    sizes = np.where(case.ops_named(GROWS.__eq__)[rows], -1, ops.dims[rows])
    keys = np.stack([ops.name[rows], sizes, np.append(ops.name, -1)[inner]]).astype(np.int64)
    token = np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)
    # Micro-batches also repeat ops with the same modules, but with a backward pass in between.
    backward = np.sort(ops.start_ns[(ops.kind == OP) & (case.timeline.host.op == BACKWARD)])
    passed = np.searchsorted(backward, ops.start_ns[rows])
    changes = (np.diff(ops.thread[rows], prepend=-1) != 0) | (np.diff(passed, prepend=-1) != 0)
    free = np.zeros(len(rows), bool)
    first, period, rounds = repeated(token, np.cumsum(changes), free, MOST_PERIOD, FEWEST_ROUNDS, FEWEST_OPS)
    multiplies = np.append(0, np.cumsum(case.ops_named(MULTIPLIES.__contains__)[rows]))
    of_layers = np.append(0, np.cumsum(case.ops_named(LAYERS.__contains__)[rows]))
    keep = (multiplies[first + period] > multiplies[first]) & (of_layers[first + period] == of_layers[first])
    first, period, rounds = first[keep], period[keep], rounds[keep]
    if not len(first):
        return None
    last, begin = first + period * rounds - 1, first + period * (rounds - 1)
    thread = ops.thread[rows[first]].astype(np.int64)
    start, end = ops.start_ns[rows[first]], ops.end_ns[rows[last]]
    return SmallLoops(
        Stretches(thread, start, end), rounds, Stretches(thread, ops.start_ns[rows[begin]], end),
        backward_of(case, Stretches(thread, start, end)),
    )  # fmt: skip


def growing(case: Analysis, loops: SmallLoops) -> Mask:
    """Ops of the trace that put the result of a round behind those of the rounds before: their sizes differ in each."""
    ops = case.trace.ops
    found = np.zeros(len(ops), bool)
    rows = np.flatnonzero(case.ops_named(GROWS.__eq__) & (ops.kind == OP))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    where = place(loops.stretches, ops.thread[rows].astype(np.int64), ops.start_ns[rows])
    for one, rounds in enumerate(loops.rounds.tolist()):
        mine = rows[where == one]
        if not len(mine) or len(mine) % rounds:
            continue
        by_round = mine.reshape(rounds, -1)
        for column in by_round.T:
            found[column] = len(np.unique(ops.dims[column])) == rounds
    return found


def outermost_forward(case: Analysis) -> I64:
    """Rows of the forward pass's outermost ops in the window, in order of time by thread."""
    ops, parent, (low, high) = case.trace.ops, case.timeline.nesting.parent, case.timeline.window
    mine = (ops.kind == OP) & (case.timeline.host.op == FORWARD) & (ops.start_ns >= low) & (ops.start_ns < high)
    rows = np.flatnonzero(mine)
    rows = rows[climb(parent[rows], parent, ops.kind == OP) < 0]
    return rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]

"""Recurrences that Python runs step by step: the same ops on the same shapes in the same modules, again and again.

A stack of layers repeats ops as well, but each layer is a different module. A recurrence calls the same cell for each
frame (an LSTM), or is a function of one module that goes from chunk to chunk (a gated delta rule, a state space model).
So ranges of modules must have been recorded: without them the two look the same. A decoder may also call a whole layer
(`torch.nn.LSTM`) for one step at a time, and append each step's result to a tensor that grows.

Branches repeat as well: heads of an attention, members of an ensemble, or a head that judges one state after another.
They end in a loss or another single value, or in a multiplication whose result has another width than the input of the
next one, so that none computes with the result of the one before. Nor do lookups in one table after another.

The third kind are rounds that are fed from the CPU: each begins by copying the input of its first multiplication to the
GPU (a policy that is called for one environment after another). What the GPU computed in one round reaches the next one
only if Python reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.diagnosis.detect.loops.layer_ops import CELLS, CONVOLUTIONS, MATMULS, NOT_OF_CELLS, RECURRENT_LAYERS
from gpuprof.diagnosis.detect.loops.nested_loops import MOST_PERIOD, repeated
from gpuprof.diagnosis.detect.loops.small_op_loops import SmallLoops
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.replay.stretches import Stretches, nodes_in, place
from gpuprof.timeline.cpu.view_ops import VIEWS
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, DATA, FORWARD
from gpuprof.tracefile.trace import ANNOTATION, I64, OP, Mask
from gpuprof.units import Assumed, Ops, Published, Ratio, Rounds, Share, Values

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_ROUNDS: Assumed[Rounds] = 8
"""Steps from which on a repetition is a recurrence, or a loop over heads: blocks of a tensor are fewer."""
FEWEST_OPS: Assumed[Ops] = 64
"""Fewest ops of a recurrence, over all iterations."""
MULTIPLIES = MATMULS | RECURRENT_LAYERS | frozenset({"aten::einsum", *CELLS})
"""An iteration has at least one of these ops: without any it is a loop over small ops (`small_op_loops`)."""
GROWS = "aten::cat"
"""Op whose sizes may differ from round to round: it appends the result of a round to the earlier ones."""
MODULE = "nn.Module: "
FEWEST_BRANCHES: Assumed[Rounds] = 4
FEWEST_BRANCH_OPS: Assumed[Ops] = 20
"""Fewest ops of branches, over all of them."""
GATES = frozenset({"aten::tanh", "aten::tanh_", "aten::sigmoid", "aten::sigmoid_", *CELLS, *RECURRENT_LAYERS})
"""Ops of recurrent cells: they compute the state that the next round reads, after the last multiplication."""
LOOKUPS = frozenset({"aten::embedding", "aten::embedding_bag"})
"""Ops that read rows of a table by indices, which no lookup returns."""
LOSSES = frozenset(
    f"aten::{name}" for name in ("cross_entropy_loss", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div",
                                 "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss")
)  # fmt: skip
WHOLE = frozenset({"aten::sum", "aten::mean"})
"""Reductions that without dimensions have only the tensor and a type as arguments."""
WHOLE_ARGUMENTS: Published[Values] = 2
REDUCTIONS = WHOLE | frozenset({"aten::max", "aten::min", "aten::amax", "aten::logsumexp", "aten::norm", "aten::dot"})
LONG_PAUSE: Assumed[Ratio] = 4.0
"""If the Python between two rounds takes this many times its usual time, it does something else."""
FEWEST_GROUPS: Assumed[Rounds] = 2
USUALLY: Assumed[Share] = 0.5
"""Smallest share of the groups of rounds that must have the same number of rounds."""
Kind = Literal["chain", "branches", "fed"]
_NUMBER = re.compile(r"_\d+$")


def find_recurrent_loops(case: Analysis) -> SmallLoops | None:
    """Recurrences of the window; None if there are none. Computed once per case."""
    if "recurrent_loops" not in case.memo:
        case.memo["recurrent_loops"] = _find(case)
    return case.memo["recurrent_loops"]


def find_branches(case: Analysis) -> SmallLoops | None:
    """Branches of the window: rounds of one module, or of several modules of one class, none of which multiplies what
    another one returned. None if there are none. Computed once per case."""
    if "branches" not in case.memo:
        case.memo["branches"] = _found(case, "branches")
    return case.memo["branches"]


def _find(case: Analysis) -> SmallLoops | None:
    return _found(case, "chain")


def find_fed_loops(case: Analysis) -> SmallLoops | None:
    """Loops in which each round begins by copying its input to the GPU; None if there are none. Computed once per
    case."""
    if "fed_loops" not in case.memo:
        case.memo["fed_loops"] = _found(case, "fed")
    return case.memo["fed_loops"]


def fed_nodes(case: Analysis) -> Mask:
    """Nodes of loops that are fed from the CPU, in one stretch without a DataLoader. What the CPU reads there may
    determine what it copies next, so it cannot be read later; batches of a loader do not depend on results."""
    found = find_fed_loops(case)
    if found is None:
        return np.zeros(len(case.graph), bool)
    ops = case.trace.ops
    loading = place(found.stretches, ops.thread.astype(np.int64), ops.start_ns)[case.timeline.host.op == DATA]
    nodes = nodes_in(case.graph, found.stretches)
    return (nodes >= 0) & ~np.isin(nodes, loading[loading >= 0])


def _found(case: Analysis, kind: Kind) -> SmallLoops | None:
    branches = kind == "branches"
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    module = case.ops_named(lambda name: name.startswith(MODULE)) & (ops.kind == ANNOTATION)
    rows = outermost_forward(case)
    if len(rows) < (FEWEST_BRANCH_OPS if branches else FEWEST_OPS) or not module.any():
        return None
    inner = climb(parent[rows], parent, module)
    # Ops are equal if name, shapes and calling module (`LSTMCell_0`, in any call) are equal; of branches its class.
    modules = np.append(_classes(case)[ops.name] if branches else ops.name, -1)[inner]
    any_size = case.ops_named(lambda name: name == GROWS or (branches and name in LOOKUPS))
    sizes = np.where(any_size[rows], -1, ops.dims[rows])
    keys = np.stack([ops.name[rows], sizes, modules]).astype(np.int64)
    token = np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)
    # Micro-batches also repeat ops with the same modules, but with a backward pass in between.
    backward = np.sort(ops.start_ns[(ops.kind == OP) & (case.timeline.host.op == BACKWARD)])
    passed = np.searchsorted(backward, ops.start_ns[rows])
    changes = (np.diff(ops.thread[rows], prepend=-1) != 0) | (np.diff(passed, prepend=-1) != 0)
    free = np.zeros(len(rows), bool)
    fewest = (FEWEST_BRANCHES, FEWEST_BRANCH_OPS) if branches else (FEWEST_ROUNDS, FEWEST_OPS)
    first, period, rounds = repeated(token, np.cumsum(changes), free, MOST_PERIOD, *fewest)
    works = MULTIPLIES | LOOKUPS if branches else MULTIPLIES
    multiplies = np.append(0, np.cumsum(case.ops_named(works.__contains__)[rows]))
    of_layers = np.append(0, np.cumsum(case.ops_named(NOT_OF_CELLS.__contains__)[rows]))
    keep = multiplies[first + period] > multiplies[first]
    if kind != "fed":
        keep &= of_layers[first + period] == of_layers[first]
    up = _copied_up(case, rows)
    pairs = zip(first.tolist(), period.tolist(), strict=True)
    kinds = [_kind(case, rows[at : at + ops_of], up[at : at + ops_of]) for at, ops_of in pairs]
    keep &= np.array([one == kind for one in kinds], bool)
    first, period, rounds = first[keep], period[keep], rounds[keep]
    if not len(first):
        return None
    last, begin = first + period * rounds - 1, first + period * (rounds - 1)
    thread = ops.thread[rows[first]].astype(np.int64)
    start, end = ops.start_ns[rows[first]], ops.end_ns[rows[last]]
    table = [
        rows[at : at + ops_of * times].reshape(times, ops_of)
        for at, ops_of, times in zip(first.tolist(), period.tolist(), rounds.tolist(), strict=True)
    ]
    together = [_together(case, each) for each in table]
    before, after = (np.concatenate(ends) for ends in zip(*((one[:-1, -1], one[1:, 0]) for one in table), strict=True))
    return SmallLoops(
        Stretches(thread, start, end), rounds, Stretches(thread, ops.start_ns[rows[begin]], end),
        1.0 / rounds, Stretches(thread[:0], start[:0], end[:0]),
        backward_of(case, Stretches(thread, start, end)), np.array(together, np.int64),
        Stretches(ops.thread[before].astype(np.int64), ops.end_ns[before], ops.start_ns[after]),
    )  # fmt: skip


def _together(case: Analysis, rounds: I64) -> int:
    """How many rounds follow one another directly before Python does something longer: the policy is called for one
    environment after another, then all of them move. 0 if no number is usual. rounds: rounds × ops."""
    ops = case.trace.ops
    gaps = ops.start_ns[rounds[1:, 0]] - ops.end_ns[rounds[:-1, -1]]
    long = np.flatnonzero(gaps > LONG_PAUSE * max(float(np.median(gaps)), 1.0))
    apart = np.diff(long)
    if len(apart) < FEWEST_GROUPS:
        return 0
    usual = int(np.median(apart))
    return usual if usual > 1 and (apart == usual).mean() > USUALLY else 0


def _copied_up(case: Analysis, rows: I64) -> Mask:
    """Which of these outermost ops copy a tensor to the GPU."""
    trace, parent = case.trace, case.timeline.nesting.parent
    outermost = np.zeros(len(trace.ops), bool)
    outermost[rows] = True
    copies = case.timeline.links.op[trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text)]
    found = climb(copies[copies >= 0], parent, outermost)
    copying = np.zeros(len(trace.ops), bool)
    copying[found[found >= 0]] = True
    return copying[rows]


def _kind(case: Analysis, rows: I64, up: Mask) -> Kind:
    """The kind of a loop whose round has these ops; `up`: those that copy to the GPU."""
    if _fed(case, rows, up):
        return "fed"
    return "branches" if _apart(case, rows) else "chain"


def _fed(case: Analysis, rows: I64, up: Mask) -> bool:
    """Whether the input of a round's first multiplication was copied to the GPU in this round."""
    names = [case.trace.strings[int(case.trace.ops.name[row])] for row in rows.tolist()]
    first = next((at for at, name in enumerate(names) if name in MATMULS | CONVOLUTIONS), None)
    if first is None or not up[:first].any():
        return False
    taken = shapes_in(case, int(case.trace.ops.dims[rows[first]]))[names[first] == "aten::addmm" :]
    if not taken or not taken[0]:
        return False
    copied = [shapes_in(case, int(case.trace.ops.dims[row])) for row in rows[:first][up[:first]].tolist()]
    return any(shapes and shapes[0] and prod(shapes[0]) == prod(taken[0]) for shapes in copied)


def _classes(case: Analysis) -> I64:
    """Per text of the trace a number that is the same for all modules of a class."""
    stems = {text: _NUMBER.sub("", text) if text.startswith(MODULE) else text for text in case.trace.strings}
    numbers = {stem: at for at, stem in enumerate(dict.fromkeys(stems.values()))}
    return np.array([numbers[stems[text]] for text in case.trace.strings], np.int64)


def _apart(case: Analysis, rows: I64) -> bool:
    """Whether a round of these ops cannot compute with the result of the one before: it only looks up rows of a table,
    or ends in a loss or in another single value, or its last op except views is a multiplication whose rows have
    another width than the input of its first multiplication."""
    names = [case.trace.strings[int(case.trace.ops.name[row])] for row in rows.tolist()]
    if GATES & set(names):
        return False
    computing = [at for at, name in enumerate(names) if name not in VIEWS and not _of_values(case, int(rows[at]))]
    if not computing:
        return False
    last_name = names[computing[-1]]
    if (
        {names[at] for at in computing} <= LOOKUPS
        or last_name in LOSSES
        or _reduces(case, last_name, rows[computing[-1]])
    ):
        return True
    first = next((widths for at in computing if (widths := _widths(case, names[at], int(rows[at])))), None)
    last = _widths(case, names[computing[-1]], int(rows[computing[-1]]))
    return first is not None and last is not None and first[0] != last[1]


def _reduces(case: Analysis, name: str, row: int) -> bool:
    """Whether an op makes a single value of a tensor: of a vector, or by a sum or a mean without dimensions."""
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    if name not in REDUCTIONS or not shapes or not shapes[0]:
        return False
    return len(shapes[0]) == 1 or (name in WHOLE and len(shapes) <= WHOLE_ARGUMENTS)


def _of_values(case: Analysis, row: int) -> bool:
    """Whether an op computes with single values only, such as the sum of losses."""
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    return bool(shapes) and not any(shapes)


def _widths(case: Analysis, name: str, row: int) -> tuple[int, int] | None:
    """Width of the rows that a multiplication takes, and of those that it returns; None for other ops."""
    if name not in MATMULS:
        return None
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    if name in ("aten::addmm", "aten::baddbmm"):
        shapes = shapes[1:]
    if len(shapes) < 2 or not shapes[0] or not shapes[1] or len(shapes[1]) < 2:
        return None
    return shapes[0][-1], shapes[1][0 if name == "aten::linear" else -1]


def growing(case: Analysis, loops: SmallLoops) -> Mask:
    """Mask of the trace's ops that append the result of a round to the earlier ones: their sizes differ in each
    round."""
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


def outermost_forward(case: Analysis, phases: Sequence[int] = (FORWARD,)) -> I64:
    """Rows of the forward pass's outermost ops in the window, in order of time by thread. phases: those that count as
    forward pass."""
    ops, parent, (low, high) = case.trace.ops, case.timeline.nesting.parent, case.timeline.window
    mine = (ops.kind == OP) & np.isin(case.timeline.host.op, phases) & (ops.start_ns >= low) & (ops.start_ns < high)
    rows = np.flatnonzero(mine)
    rows = rows[climb(parent[rows], parent, ops.kind == OP) < 0]
    return rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]

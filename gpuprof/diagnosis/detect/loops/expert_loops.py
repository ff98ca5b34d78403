"""Loops over the experts of a mixture, found in the recorded ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.diagnosis.detect.loops.layer_ops import MATMULS, ONCE_A_LAYER
from gpuprof.diagnosis.detect.passes import backward_of, siblings, without_recompute
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import F64, I64, NO_TEXT, Mask
from gpuprof.units import Assumed, Blocks, Ops, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

RETURNS = frozenset(
    {"aten::index_add_", "aten::index_add", "aten::index_put_", "aten::scatter_add_", "aten::scatter_add"}
)
"""Ops that write an expert's rows back to their tokens: the last op of an expert's block."""
CHOICES = frozenset({"aten::nonzero", "aten::where", "aten::index", "aten::index_select", "aten::gather"})
"""Ops that find or gather an expert's rows."""
ROUTING = frozenset({"aten::one_hot", "aten::nonzero", "aten::where", "aten::bincount", "aten::zeros_like"})
"""Ops before the first expert that prepare the loop, and disappear with it."""
BLOCK_OPS: Assumed[Ops] = 250
"""Most ops in an expert's block; ops further apart belong to different layers."""
LONGEST_BLOCK: Assumed[Ratio] = 1.35
"""A block may be this many times as long as the usual one and still belong to the loop (an expert whose tensors take
another path)."""
FEWEST_BLOCKS: Assumed[Blocks] = 4
"""Fewest consecutive experts of a loop that is worth grouping."""
ALIKE_BLOCKS: Assumed[Share] = 0.9
"""Smallest share of blocks that must look like an expert's: one may be cut off, or be a shared expert's."""
SEARCHES = frozenset({"aten::nonzero", "aten::where"})
"""Ops with which an expert's block finds its rows, used if shapes were not recorded."""


@dataclass(frozen=True, slots=True)
class ExpertLoops:
    """Loops over experts as stretches of the forward pass (or of its recomputation), one per layer and step."""

    stretches: Stretches
    blocks: I64
    """Number of experts of each loop."""
    row_bytes: F64
    """Bytes of the rows that all experts of a loop process, at the model's width; NaN if shapes were not recorded."""
    width: I64
    """The model's width; -1 if shapes were not recorded."""


def find_loops(case: Analysis) -> ExpertLoops | None:
    """Loops over experts in the window; None if there are none."""
    ops = case.trace.ops
    if not case.ops_named(RETURNS.__contains__).any():
        return None
    rows, family = siblings(case)
    at = np.flatnonzero(case.ops_named(RETURNS.__contains__)[rows])
    runs = _runs(at, family[at])
    kinds = [case.ops_named(names.__contains__)[rows] for names in (MATMULS, CHOICES, ONCE_A_LAYER, ROUTING)]
    found = [span for run, usual in runs if (span := _span(run, usual, family, *kinds))]
    if not found:
        return None
    first, last, blocks = (np.array(column, np.int64) for column in zip(*found, strict=True))
    returns = [rows[at[(at >= a) & (at <= b)]] for a, b in zip(first, last, strict=True)]
    if not _routed(case, returns, case.ops_named(SEARCHES.__contains__)[rows], first, last):
        return None
    sizes = [_rows_of(case, each) for each in returns]
    return ExpertLoops(
        Stretches.of(ops, rows[first], rows[last]),
        blocks,
        np.array([size for size, _ in sizes]),
        np.array([width for _, width in sizes], np.int64),
    )


def _runs(at: I64, family: I64) -> list[tuple[I64, int]]:
    """Runs of positions at the usual distance, each with that distance: the length of a block."""
    apart = np.diff(at)
    near = (np.diff(family) == 0) & (apart <= BLOCK_OPS)
    if not near.any():
        return []
    usual = int(np.bincount(apart[near]).argmax())
    joined = near & (apart <= LONGEST_BLOCK * usual) & (apart * LONGEST_BLOCK >= usual)
    cuts = np.flatnonzero(~joined) + 1
    return [(run, usual) for run in np.split(at, cuts) if len(run) >= FEWEST_BLOCKS]


def _span(
    run: I64, usual: int, family: I64, matmuls: Mask, choices: Mask, of_layers: Mask, routing: Mask
) -> tuple[int, int, int] | None:
    """(first op, last op, blocks) of a loop including its preparation; None if its blocks are no experts."""
    last = int(run[-1])
    if of_layers[run[0] : last + 1].any():
        return None
    # The loop begins after the ops that its layer runs once, and stays within one op.
    limits = np.flatnonzero((of_layers | (family != family[last]))[: run[0]])
    bound = int(limits[-1]) + 1 if len(limits) else 0
    first = max(int(run[0]) - usual + 1, bound)
    blocks = np.append(first, run + 1)
    hit = [np.add.reduceat(mask[first : last + 1], blocks[:-1] - first) > 0 for mask in (matmuls, choices)]
    if (hit[0] & hit[1]).mean() < ALIKE_BLOCKS:
        return None
    bound = max(first - usual, bound)
    before = np.flatnonzero(routing[bound:first])
    return bound + int(before[0]) if len(before) else first, last, len(run)


def _routed(case: Analysis, returns: list[I64], searches: Mask, first: I64, last: I64) -> bool:
    """Whether a router chose the rows of each block: experts get different numbers of rows, or search for their rows.
    Graph neural network layers look like experts otherwise, but all have the same number of rows."""
    ops = case.trace.ops
    known = not any(np.any(ops.dims[each] == NO_TEXT) for each in returns)
    if known and any(len(np.unique(ops.dims[each])) > 1 for each in returns):
        return True
    return bool(np.add.reduceat(searches, np.stack([first, last], 1).ravel())[::2].all())


def _rows_of(case: Analysis, returns: I64) -> tuple[float, int]:
    """(bytes of the rows that a loop's blocks write back, their width), from the shapes of these ops."""
    ops, total, width = case.trace.ops, 0.0, -1
    texts, counts = np.unique(np.stack([ops.dims[returns], ops.types[returns]]), axis=1, return_counts=True)
    for (dims, types), times in zip(texts.T.tolist(), counts.tolist(), strict=True):
        if dims == NO_TEXT:
            return float("nan"), -1
        tensors = parse("", case.trace.text(dims), case.trace.text(types), None, None).tensors
        source = tensors[-1] if tensors else None
        if source is None or len(source.shape) < 2:
            return float("nan"), -1
        total, width = total + times * source.bytes, source.shape[-1]
    return total, width


def expert_nodes(case: Analysis) -> Mask | None:
    """Nodes of loops over experts, forward and backward; None without such loops."""
    loops = find_loops(case)
    if loops is None:
        return None
    forward = nodes_in(case.graph, loops.stretches)
    backward = without_recompute(case, nodes_in(case.graph, backward_of(case, loops.stretches)))
    return (forward >= 0) | (backward >= 0)

"""An output layer that computes all rows of a batch, of which the next ops take a few: the last token of each sample,
completions without their prompts."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.losses.loss_head import LEAST_VOCABULARY, ops_of_logits
from gpuprof.diagnosis.detect.passes import shapes_in, siblings
from gpuprof.timeline.phases import BACKWARD, FORWARD
from gpuprof.tracefile.trace import NO_TEXT, Mask
from gpuprof.units import Assumed, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_USED: Assumed[Share] = 0.9
"""Largest share of used rows that counts: labels that are shifted by one leave out a row of each sample."""
MOST_OPS_AFTER: Assumed[Ops] = 60
"""Most ops after an output layer among which its rows are taken and used."""
LAYERS = frozenset({"aten::linear", "aten::addmm", "aten::mm", "aten::matmul"})
TAKES = frozenset(
    "aten::" + name
    for name in (
        "slice", "select", "narrow", "index", "index_select", "split", "split_with_sizes", "chunk", "unbind", "to",
        "_to_copy", "float", "view", "reshape", "unsafe_view", "_unsafe_view", "contiguous", "clone", "copy_", "detach",
        "alias", "unsqueeze", "squeeze", "transpose", "permute", "flatten", "expand", "div", "div_", "mul",
    )
)  # fmt: skip
"""Ops that take rows, or only pass all of them on: casts, views, a temperature."""


@dataclass(frozen=True, slots=True)
class UnusedRows:
    """The largest such output layer of the recorded steps."""

    share: float
    """Share of its rows that are used."""
    rows: int
    """Rows that one call computes."""
    width: int
    """Classes: size of the vocabulary."""
    nodes: Mask
    """The GPU's work on all rows, forward and backward."""


def find_unused_rows(case: Analysis) -> UnusedRows | None:
    """The output layer whose rows are mostly not used; None where there is none. Found once for a case."""
    if "unused_rows" not in case.memo:
        case.memo["unused_rows"] = _find(case)
    return case.memo["unused_rows"]


def _find(case: Analysis) -> UnusedRows | None:
    order, family = siblings(case)
    dims, layers = case.trace.ops.dims[order], case.ops_named(LAYERS.__contains__)[order]
    sizes = {text: size for text in np.unique(dims[layers]).tolist() if (size := _size(case, text)) is not None}
    if not sizes:
        return None
    calls = defaultdict[tuple[int, int], list[float]](list)
    texts, families, names = dims.tolist(), family.tolist(), case.trace.texts(case.trace.ops.name[order])
    for at in np.flatnonzero(layers & np.isin(dims, list(sizes))).tolist():
        size = sizes[texts[at]]
        used = _used(case, texts, families, names, at, size)
        calls[size].append(math.nan if used is None else used / size[0])
    known = {size: found for size, found in calls.items() if not any(map(math.isnan, found))}
    few = {size: float(np.mean(found)) for size, found in known.items() if max(found) <= MOST_USED}
    if not few:
        return None
    rows, width = max(few, key=math.prod)
    matmuls, others = ops_of_logits(case, width)
    every, which = np.unique(case.trace.ops.dims, return_inverse=True)
    whole = np.array([_rows(case, text, width) >= rows for text in every.tolist()], bool)[which]
    nodes = case.nodes_within(matmuls | (others & whole)) & np.isin(case.graph.phase, (FORWARD, BACKWARD))
    nodes &= case.graph.on_gpu
    return UnusedRows(few[rows, width], rows, width, nodes) if nodes.any() else None


def _size(case: Analysis, text: int) -> tuple[int, int] | None:
    """(rows, classes) of an output layer's result; None for a layer with few classes, or without shapes."""
    two = [shape for shape in shapes_in(case, text) if shape and len(shape) >= 2][:2]
    if len(two) != 2 or len(two[1]) != 2:
        return None
    inner = two[0][-1]
    if inner not in two[1]:
        return None
    width = two[1][0] if two[1][1] == inner else two[1][1]
    return (math.prod(two[0][:-1]), width) if width >= max(LEAST_VOCABULARY, inner) else None


def _used(
    case: Analysis, texts: list[int], family: list[int], names: list[str], at: int, size: tuple[int, int]
) -> float | None:
    """Rows of a layer's result that the ops after it use; None if some op takes all of them, or none was seen."""
    rows, width = size
    taken, used = rows, defaultdict[str, int](int)
    for after in range(at + 1, min(at + 1 + MOST_OPS_AFTER, len(texts))):
        if family[after] != family[at] or names[after] in LAYERS:
            break
        count = _rows(case, texts[after], width)
        if not count:
            continue
        taken = min(taken, count)
        if names[after] not in TAKES:
            used[names[after]] += count
    return None if taken == rows else float(max(used.values(), default=taken))


def _rows(case: Analysis, text: int, width: int) -> int:
    """Rows of the first tensor of this width among an op's arguments; 0 without one."""
    if text == NO_TEXT:
        return 0
    found = (shape for shape in shapes_in(case, text) if shape and len(shape) > 1 and shape[-1] == width)
    one = next(found, None)
    return 0 if one is None else math.prod(one[:-1])

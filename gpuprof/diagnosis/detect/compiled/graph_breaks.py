"""Removable obstacles to compiling a model as a whole; removing them is the first part of a chain of fixes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import compile as calibrated
from gpuprof.diagnosis.detect.batches.batch_scaling import index_shapes, scaled_batch
from gpuprof.diagnosis.detect.compiled.compiled_passes import (
    looks_at_mask,
    shapes_vary,
    waiting,
    waits_too_often,
    within_passes,
)
from gpuprof.diagnosis.detect.compiled.compiling import LENGTH_MULTIPLE
from gpuprof.diagnosis.detect.loops.expert_loops import find_loops
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import without_waits
from gpuprof.units import Assumed, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

SIZE = re.compile(r"^aten::(nonzero\w*|_nonzero\w*|masked_select|unique\w*|_unique\w*|repeat_interleave|bincount)$")
"""Ops whose result size depends on values on the GPU."""
UNKNOWN_PADDING: Assumed[Ratio] = 1.15
"""Growth of the tokens by padding if lengths were not recorded: 100 to 500 tokens grow by 6 to 30 %."""


@dataclass(frozen=True, slots=True)
class Breaks:
    """Obstacles to remove before a compiler sees the passes as a whole."""

    without: Change
    """The graph without them."""
    part: str
    """The first fix of the chain, in a few words."""
    condition: str
    """What must be done first, or must hold."""
    odds: float
    """Probability that the next fix then works, 0 to 1."""
    parts: tuple[str, ...] = ()
    """The single parts, if there are several."""


def first_links(case: Analysis) -> Breaks | None:
    """Obstacles to capturing the passes in CUDA graphs: graph breaks, and shapes that change in every step. None if
    there are none, or if it is unknown how to remove them."""
    broken, padded = breaks(case), _padded(case) if shapes_vary(case) else None
    links = [one for one in (padded, broken) if one is not None]
    if not links:
        return None

    def without(graph: Graph) -> Graph:
        for link in links:
            graph = link.without(graph)
        return graph

    parts = tuple(link.part for link in links)
    odds = float(np.prod([link.odds for link in links]))
    return Breaks(without, " and ".join(parts), "; ".join(link.condition for link in links), odds, parts)


def _padded(case: Analysis) -> Breaks:
    """Pads batches to a few lengths: work that scales with the tokens grows by the padding."""
    lengths = [shape[-1] for shape in index_shapes(case) if shape and shape[-1]]
    factor = (
        sum(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE for length in lengths) / sum(lengths)
        if lengths
        else UNKNOWN_PADDING
    )
    return Breaks(
        scaled_batch(case, factor), f"lengths padded to {LENGTH_MULTIPLE}",
        f"every batch is padded to a multiple of {LENGTH_MULTIPLE} ({factor:.2f} times the tokens), so that few shapes"
        " occur",
        calibrated.BUCKETED.value,
    )  # fmt: skip


def breaks(case: Analysis) -> Breaks | None:
    """What breaks the graph of the passes; None if nothing does, or if it is a loop over experts, which has its own
    fix."""
    too_often, mask = waits_too_often(case), looks_at_mask(case)
    if not (too_often or mask) or find_loops(case) is not None:
        return None
    waits = waiting(case) & within_passes(case)[0]
    sized = waits & np.append(case.ops_within(case.ops_named(SIZE.search)), False)[case.graph.scope]
    odds = (calibrated.SIZED if sized.any() else calibrated.REMOVABLE).value
    odds *= calibrated.VARYING.value if shapes_vary(case) else 1.0

    def without(graph: Graph) -> Graph:
        return without_waits(graph, waits)

    if mask and not too_often:
        return Breaks(
            without, "is_causal=True",
            "is_causal=True (tgt_is_causal) is passed, if the mask is causal: otherwise torch.nn's Transformer reads "
            "its values",
            odds,
        )  # fmt: skip
    count = case.per_step(float(waits.sum()))
    most = _most_frequent(case, waits)
    return Breaks(
        without, f"{count:,.0f} waits removed",
        f"forward and backward no longer wait {count:,.0f} times {case.unit.a} for the"
        f" GPU{f' ({most})' if most else ''}",
        odds,
    )  # fmt: skip


def once_gone(broken: Breaks | None, change: Change) -> Change:
    """A change of the passes, applied after removing what breaks them."""
    if broken is None:
        return change
    return lambda graph: change(broken.without(graph))


def _most_frequent(case: Analysis, waits: np.ndarray) -> str:
    """`3 × aten::item, 2 × aten::nonzero`: the outermost ops that wait, the most frequent first."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    counts: dict[str, int] = {}
    for row in case.graph.scope[waits].tolist():
        name = ""
        while row >= 0 and case.trace.strings[ops.name[row]].startswith("aten::"):
            name, row = case.trace.strings[ops.name[row]], int(parent[row])
        if name:
            counts[name] = counts.get(name, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{max(round(n / case.steps), 1)} × {name}" for name, n in ranked)

"""The ops of one forward pass with their arguments, from which `projection.kept` counts what autograd saves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import argument_shapes, parse
from gpuprof.projection.memory.kept import Kept, OpUse, TrainedPart, kept
from gpuprof.timeline.phases import FORWARD
from gpuprof.tracefile.trace import NO_TEXT, OP

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def kept_of(case: Analysis, model: dict, passes: float) -> Kept | None:
    """What a pass of average length saves for backward; `passes`: number in the window. None if unknown."""
    if model.get("experts") or model.get("compiled") or not model.get("trainable"):
        return None
    return kept(_ops(case, passes), training_of(model))


def training_of(model: dict) -> TrainedPart:
    """What is trained, from the run's description of its model."""
    lora = model.get("lora") or {}
    trainable, single = model.get("trainable") or 0, (model.get("dtypes") or {}).get("float32", 0)
    return TrainedPart(
        adapted=dict(lora.get("adapted") or {}),
        rank=lora.get("r"),
        single_adapters=single >= trainable > 0,
        whole=not lora and trainable == model.get("parameters"),
    )


def mean_tokens(case: Analysis, passes: float) -> float | None:
    """Mean number of tokens that a pass of the window embeds; None if the shapes do not show it."""
    embeddings = [op for op in _ops(case, passes) if op.name == "aten::embedding" and len(op.shapes) > 1]
    found = [(math.prod(shape), op.count) for op in embeddings if (shape := op.shapes[1])]
    # Positions and token types are embedded as well, one per token.
    once = sum(count for _, count in found)
    total = sum(size * count for size, count in found)
    return total / max(round(once), 1) if total else None


def _ops(case: Analysis, passes: float) -> list[OpUse]:
    ops, trace, (low, high) = case.trace.ops, case.trace, case.timeline.window
    chosen = (ops.kind == OP) & (case.timeline.host.op == FORWARD) & (ops.dims != NO_TEXT)
    rows = np.flatnonzero(chosen & (ops.start_ns >= low) & (ops.start_ns < high))
    parent = case.timeline.nesting.parent[rows]
    rows = rows[(parent < 0) | (ops.name[parent] != ops.name[rows])]
    keys, counts = np.unique(np.stack([ops.name[rows], ops.dims[rows], ops.types[rows]]), axis=1, return_counts=True)
    found = []
    for (name, dims, types), count in zip(keys.T.tolist(), counts.tolist(), strict=True):
        shapes = tuple(tuple(shape) if shape else None for shape in argument_shapes(trace.text(dims)))
        kinds = tuple(parse("", None, trace.text(types), None, None).types) if types != NO_TEXT else ()
        found.append(OpUse(trace.text(name) or "", shapes, kinds, count / passes))
    return found

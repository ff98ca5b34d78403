"""Attention that computes scores which its mask discards: its kernels, and the share of scores that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import Arguments, parse
from gpuprof.costs.formulas.attention import attends_packed, has_mask, is_attention
from gpuprof.tracefile.trace import KERNEL, NO_TEXT, Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def useful_share(case: Analysis) -> float | None:
    """Share of pairs of tokens in a row that are within one document; None if unknown."""
    return None if case.run is None else case.run.work.useful_pairs


def masked_kernels(case: Analysis) -> Mask:
    """GPU events of attention over whole rows: kernels that get a mask or nothing, but no lengths."""
    trace, links = case.trace, case.timeline.links
    gpu, ops = trace.gpu, trace.ops
    found = np.zeros(len(gpu), bool)
    rows = np.flatnonzero((gpu.kind == KERNEL) & case.category("attention") & (links.op >= 0))
    verdict: dict[tuple[int, int, int], bool] = {}
    for row in rows.tolist():
        op = int(links.op[row])
        key = int(ops.name[op]), int(ops.dims[op]), int(ops.concrete[op])
        if key not in verdict:
            arguments = arguments_of(case, op)
            verdict[key] = arguments is not None and not attends_packed(arguments) and has_mask(arguments)
        found[row] = verdict[key]
    return found


def arguments_of(case: Analysis, op: int) -> Arguments | None:
    """The arguments of a call of attention, by its row among the ops; None for another op, or without shapes."""
    trace, ops = case.trace, case.trace.ops
    name = trace.strings[int(ops.name[op])]
    if not is_attention(name) or ops.dims[op] == NO_TEXT:
        return None
    texts = (trace.text(int(column[op])) for column in (ops.dims, ops.types, ops.strides, ops.concrete))
    return parse(name, *texts)

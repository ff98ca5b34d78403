"""The number formats of matrix multiplications as far as a recording shows them, and why there may be no advice on
them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.diagnosis.sentences import duration
from gpuprof.tracefile.trace import F64, NO_TEXT, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis

MOST_UNKNOWN_OPERANDS: Assumed[Share] = 0.5
"""If more than this share of matmul time has unknown operands, nothing is said about the formats."""
_FLOATING = frozenset({"float", "double", "c10::Half", "c10::BFloat16"})


def why_unknown(case: Analysis, roof: Roofline) -> str | None:
    """Why nothing can be said about the matmuls' formats; None if most operands were recorded."""
    matmuls = case.category("gemm", "grouped_gemm")
    took = case.gpu_ns(matmuls)
    unknown = case.gpu_ns(matmuls & ~(roof.work.flops > 0) & ~typed_fp32(case, roof))
    if unknown <= MOST_UNKNOWN_OPERANDS * took:
        return None
    each = case.per_step(unknown)
    return (
        f"matrix multiplications take {duration(each)} {case.unit.a}, and their operands are not known from"
        f" this recording"
    )


def typed_fp32(case: Analysis, roof: Roofline) -> Mask:
    """Mask of matmuls whose FLOPs are unknown but whose operands were recorded as fp32. Empty on a GPU with TF32, which
    may multiply fp32 operands in either format."""
    rows = case.category("gemm", "grouped_gemm") & ~(roof.work.flops > 0)
    if "tf32" in roof.ceilings.flops:
        return np.zeros(len(rows), bool)
    op = case.timeline.links.op
    types = np.append(case.trace.ops.types, NO_TEXT)
    single = [text for text in np.unique(types[op[rows]]).tolist() if _is_fp32(case.trace.text(text))]
    return rows & np.isin(types[op], single)


def operand_bytes(case: Analysis, rows: Mask) -> F64:
    """Bytes of the input tensors of these GPU events' ops; 0 for other events, and if unknown."""
    ops, found = case.trace.ops, np.zeros(len(rows))
    op = case.timeline.links.op
    known: dict[tuple[int, int], float] = {}
    for event in np.flatnonzero(rows & (op >= 0)).tolist():
        key = int(ops.dims[op[event]]), int(ops.types[op[event]])
        if key not in known:
            tensors = parse("", case.trace.text(key[0]), case.trace.text(key[1]), None, None).tensors
            known[key] = float(sum(one.bytes for one in tensors))
        found[event] = known[key]
    return found


def _is_fp32(types: str | None) -> bool:
    try:
        found = {one for one in json.loads(types or "[]") if isinstance(one, str)} & _FLOATING
    except (ValueError, TypeError):
        return False
    return found == {"float"}

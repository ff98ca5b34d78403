"""Attention in fp32: how long its kernels would take in a 16-bit format, and whether only its inputs are fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.costs.dtypes import CODE, format_of
from gpuprof.costs.formulas.attention import has_mask, is_attention, is_backward
from gpuprof.diagnosis.detect.attention.masked_scores import arguments_of
from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.projection.changes.batch import model_phases
from gpuprof.timeline.phases import BACKWARD
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Convention, Published, Ratio, Share, Times

if TYPE_CHECKING:
    from gpuprof.costs.arguments import Arguments
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis

LEAST_SHARE_IN_16_BIT: Assumed[Share] = 0.5
"""Smallest share of matmul time in a 16-bit format for attention in fp32 to count as the exception."""
CAST_BYTES_AN_ELEMENT: Convention[Ratio] = 6.0
"""Bytes that a cast reads and writes per element: fp32 in, 16 bits out, or the other way round."""
INPUTS: Published[Times] = 3
"""Queries, keys and values, or their gradients."""
RESULTS: Published[Times] = 1
"""What attention writes, or the gradient of it that its backward pass reads."""


@dataclass(frozen=True, slots=True)
class CastUp:
    """Attention whose inputs are fp32 in a model whose matrix multiplications are in a 16-bit format."""

    nodes: I64
    """Kernels of attention."""
    half: str
    half_share: float
    """Share of matmul time in that format, 0 to 1."""
    casts: I64
    """Kernels that cast to fp32 directly before it, or from fp32 directly after it."""
    missing: F64
    """Per node of `nodes`: number of values that have no such cast yet and would have to be cast."""
    masked: Mask
    """Per node whether attention gets a mask as a tensor: flash kernels take none."""


def single_precision(case: Analysis, roof: Roofline, *categories: str) -> Mask:
    """Nodes of the model's kernels of these categories that compute in fp32 or TF32, of those whose FLOPs are known."""
    work = roof.work
    single = np.isin(work.dtype, [CODE[name] for name in ("fp32", "tf32")])
    rows = single & (work.flops > 0) & case.category(*categories)
    return case.nodes_of_gpu(rows) & case.graph.on_gpu & model_phases(case.graph)


def half_attention_ns(case: Analysis, roof: Roofline, nodes: I64, half: str, level: int) -> F64:
    """Time of these attention kernels in a 16-bit format, ns; level 0: at best, 2: at worst."""
    event, ceilings = case.graph.gpu_row[nodes], roof.ceilings
    backward = case.graph.phase[nodes] == BACKWARD
    share = np.where(
        backward, calibrated.ATTENTION_BACKWARD.falling[level], calibrated.ATTENTION_FORWARD.falling[level]
    )
    tensor = roof.work.flops[event] / ceilings.flops[half] / share
    moved = np.nan_to_num(roof.work.bytes[event]) / 2
    memory = moved / ceilings.memory_bytes_per_s / calibrated.ATTENTION_MEMORY.falling[level]
    return np.maximum(np.maximum(tensor, memory) * 1e9, latency_calibrated.MATMUL_NS.value)


def find_cast_up(case: Analysis) -> CastUp | None:
    """Attention in fp32 where most matrix multiplications are in a 16-bit format; None without."""
    roof = case.roofline
    if roof is None:
        return None
    nodes = np.flatnonzero(single_precision(case, roof, "attention"))
    matmuls = case.category("gemm", "grouped_gemm")
    whole = case.gpu_ns(matmuls)
    halves = {one: case.gpu_ns(matmuls & (roof.work.dtype == CODE[one])) for one in ("bf16", "fp16")}
    half = max(halves, key=lambda one: halves[one])
    if not len(nodes) or not whole or half not in roof.ceilings.flops or halves[half] < LEAST_SHARE_IN_16_BIT * whole:
        return None
    missing, masked, casts = np.zeros(len(nodes)), np.zeros(len(nodes), bool), list[int]()
    order = np.flatnonzero(case.graph.on_gpu)
    inside = case.nodes_within(case.ops_named(is_attention))[order]
    op = case.timeline.links.op[case.graph.gpu_row[order]]
    place, change = np.arange(len(order)), np.flatnonzero(np.diff(inside))
    begins = np.append(-1, change)[np.searchsorted(change, place)] + 1
    ends = np.append(change, len(order) - 1)[np.searchsorted(change, place)]
    for k, at in enumerate(np.searchsorted(order, nodes).tolist()):
        arguments = arguments_of(case, int(op[at]))
        if arguments is None or not inside[at]:
            continue
        first, last = int(begins[at]), int(ends[at])
        backward = is_backward(arguments.name)
        before = _casts(case, op, range(first - 1, -1, -1), arguments, RESULTS if backward else INPUTS, up=True)
        after = _casts(case, op, range(last + 1, len(order)), arguments, INPUTS if backward else RESULTS, up=False)
        casts += order[before + after].tolist()
        masked[k] = has_mask(arguments)
        missing[k] = (INPUTS - len(after if backward else before)) * arguments.tensors[0].elements
    return CastUp(nodes, half, halves[half] / whole, np.unique(np.array(casts, np.int64)), missing, masked)


def _casts(case: Analysis, op: I64, places: range, arguments: Arguments, most: int, *, up: bool) -> list[int]:
    """The first of these places whose ops cast a tensor of an input's size, up to `most`; up: to fp32, otherwise from
    it."""
    sizes, found = {one.elements for one in arguments.tensors}, list[int]()
    for place in places:
        row = int(op[place])
        if len(found) == most or row < 0 or case.trace.text(int(case.trace.ops.name[row])) != "aten::copy_":
            break
        to, source = (*(format_of(one) for one in types_in(case, row)[:2]), "", "")[:2]
        wide, narrow = (to, source) if up else (source, to)
        if wide != "fp32" or narrow not in ("bf16", "fp16") or _elements(case, row) not in sizes:
            break
        found.append(place)
    return found


def _elements(case: Analysis, row: int) -> int:
    """Values of an op's first argument."""
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    return int(np.prod(shapes[0])) if shapes and shapes[0] else 0

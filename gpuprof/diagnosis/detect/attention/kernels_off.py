"""Calls of torch's attention that a fused kernel would take, and that run as matrix multiplications all the same: the
program has switched the fused kernels off."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import MOST_KEPT, Arguments, parse
from gpuprof.costs.dtypes import format_of
from gpuprof.costs.formulas.attention import Shape
from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import NO_TEXT, OP
from gpuprof.units import Elements, Place, Published

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.tracefile.trace import Mask

MATH = "aten::_scaled_dot_product_attention_math"
CALLS = {
    "no_flash_sdp": "torch.backends.cuda.enable_flash_sdp",
    "no_mem_efficient_sdp": "torch.backends.cuda.enable_mem_efficient_sdp",
    "no_cudnn_sdp": "torch.backends.cuda.enable_cudnn_sdp",
}
"""Recorded switch → the call that sets it."""
MASK: Published[Place] = 3
"""Position of the mask among the arguments."""
CAUSAL: Published[Place] = 5
"""Position of `is_causal` among the arguments."""
WIDEST_HEAD: Published[Elements] = 192
"""Widest heads that flash kernels take on every GPU with bf16, forward and backward (torch's sdp_utils.cpp)."""
WIDTH_STEP: Published[Elements] = 8
"""Widths of heads that fused kernels take without padding are multiples of it."""
HALF_INPUTS = {("c10::BFloat16",), ("c10::Half",)}
SECOND_DERIVATIVE = "SoftmaxBackwardDataBackward"
"""Part of the name of autograd's node for the second derivative of a softmax: fused kernels have none."""


def differentiated_twice(case: Analysis) -> bool:
    """Whether the program needs second derivatives of attention."""
    return bool(case.ops_named(lambda name: SECOND_DERIVATIVE in name).any())


def switched_off(case: Analysis, ahead: Mask) -> list[tuple[int, Shape, int]]:
    """(row of the op, shape, bytes per element) of the attentions among these ops that a fused kernel would take, in
    the order of their rows; empty if the program needs second derivatives of attention."""
    rows = np.flatnonzero(case.ops_named(MATH.__eq__) & ahead & (case.trace.ops.kind == OP))
    if not len(rows) or differentiated_twice(case):
        return []
    trace, ops = case.trace, case.trace.ops
    bf16 = case.roofline is not None and "bf16" in case.roofline.ceilings.flops
    found = list[tuple[int, Shape, int]]()
    for row in rows.tolist():
        texts = (
            None if column[row] == NO_TEXT else trace.text(int(column[row]))
            for column in (ops.dims, ops.types, ops.strides, ops.concrete)
        )
        shape, size = _taken(parse(MATH, *texts), dense=case.trains_on_tokens, bf16=bf16)
        if shape is not None:
            found.append((row, shape, size))
    return found


def computed_wide(case: Analysis) -> Mask:
    """Nodes of attention that torch computes op by op in fp32 from inputs of 16 bits, forward and backward: no type of
    its inputs changes that, only a fused kernel."""
    trace, ops = case.trace, case.trace.ops
    rows = np.flatnonzero(case.ops_named(MATH.__eq__) & (ops.kind == OP) & (ops.types != NO_TEXT))
    half = [
        row
        for row in rows.tolist()
        if parse(MATH, None, trace.text(int(ops.types[row])), None, None).types[:1] in HALF_INPUTS
    ]
    stretches = Stretches.of(ops, np.array(half, np.int64))
    return (nodes_in(case.graph, stretches) >= 0) | (nodes_in(case.graph, backward_of(case, stretches)) >= 0)


def calls_to_remove(case: Analysis) -> tuple[str, ...]:
    """The calls that switch fused kernels off, as far as the run recorded their switches; otherwise all that can."""
    program = case.run.program if case.run is not None else None
    known = program.switches if program is not None and program.switches is not None else ()
    return tuple(call for switch, call in CALLS.items() if switch in known) or tuple(CALLS.values())


@lru_cache(maxsize=MOST_KEPT)
def _taken(arguments: Arguments, *, dense: bool, bf16: bool) -> tuple[Shape | None, int]:
    """(shape, bytes per element) of an attention that a fused kernel takes; (None, 0) where one may refuse.

    Flash kernels take bf16 and fp16, also with fewer heads of keys, and no mask; memory-efficient ones take fp32 too,
    with one head of keys for each of queries, and a mask whose innermost dimension is contiguous. dense: whether the
    width of a head is the innermost dimension where strides were not recorded. bf16: whether the GPU multiplies in
    bf16; older ones (V100, T4) have no flash kernels in torch, and no memory-efficient ones for bf16.
    """
    nothing = None, 0
    query, key, value = (arguments.tensor(position) for position in range(3))
    mask = arguments.tensor(MASK)
    if query is None or key is None or value is None or (mask is None and arguments.types[MASK : MASK + 1] != ("",)):
        return nothing
    if any(len(one.shape) != 4 for one in (query, key, value)) or key.shape != value.shape:
        return nothing
    (batch, heads, queries, width), (key_batch, key_heads, keys, key_width) = query.shape, key.shape
    causal = arguments.text(CAUSAL) != "False"  # where it was not recorded it may be
    fits = batch == key_batch and width == key_width <= WIDEST_HEAD and width % WIDTH_STEP == 0
    if not fits or min(batch, heads, queries, keys) < 1 or (causal and queries != keys):
        return nothing
    if any(one.strides[-1] != 1 if one.strides else not dense for one in (query, key, value)):
        return nothing
    formats = {format_of(one.type) for one in (query, key, value)}
    flash = bf16 and mask is None and formats in ({"bf16"}, {"fp16"})
    efficient = formats in (({"bf16"},) if bf16 else ()) + ({"fp16"}, {"fp32"}) and heads == key_heads
    if mask is not None:
        efficient = efficient and mask.strides is not None and mask.strides[-1:] == (1,)
    if not (flash or efficient):
        return nothing
    return Shape(batch, heads, queries, keys, width, width), query.element_bytes

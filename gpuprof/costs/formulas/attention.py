"""Scaled dot-product attention: two S × S matmuls forward, five backward, one of them recomputed.

FLOPs as in FlashAttention (Dao et al., 2022): per head and batch 2·Sq·Sk·(D + Dv) forward; backward recomputes the
scores and does four more, 2·Sq·Sk·(3·D + 2·Dv). A causal mask leaves the part of Sq × Sk on and below the diagonal,
which kernels that skip masked blocks hardly exceed. A window of fewer keys is not recorded, and so not considered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof.costs.arguments import Arguments, Tensor
from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import dtype_code
from gpuprof.units import Convention, Published, Share, Tokens


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of an op's arguments."""

    query: int
    """Position of the query; key and value follow it."""
    causal: int
    heads_first: bool
    """[batch, heads, sequence, width], else [batch, sequence, heads, width], packed without the batch."""
    lengths: int | None = None
    """Position of the sequences' cumulative lengths, where they may be packed."""
    backward: bool = False


_OPS = {
    "aten::_cudnn_attention_forward": _Layout(0, 10, True),
    "aten::_cudnn_attention_backward": _Layout(1, 14, True, backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(0, 6, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(1, 14, True, backward=True),
    "aten::_scaled_dot_product_flash_attention": _Layout(0, 4, True),
    "aten::_scaled_dot_product_flash_attention_backward": _Layout(1, 11, True, backward=True),
    "aten::_scaled_dot_product_efficient_attention": _Layout(0, 6, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Layout(1, 11, True, backward=True),
    "aten::_flash_attention_forward": _Layout(0, 8, False, 3),
    "aten::_flash_attention_backward": _Layout(1, 11, False, 6, True),
    "aten::_efficient_attention_forward": _Layout(0, 9, False, 4),
    "aten::_efficient_attention_backward": _Layout(1, 14, False, 6, True),
    "flash_attn::_flash_attn_forward": _Layout(0, 5, False),
    "flash_attn::_flash_attn_backward": _Layout(1, 11, False, backward=True),
    "flash_attn::_flash_attn_varlen_forward": _Layout(0, 9, False, 3),
    "flash_attn::_flash_attn_varlen_backward": _Layout(1, 15, False, 9, True),
    "FlashAttnFunc": _Layout(0, 5, False),
    "FlashAttnVarlenFunc": _Layout(0, 9, False, 3),
}
_ROWS = re.compile(r"dot_do_o|preprocess|delta|dot_kernel", re.IGNORECASE)
_CONVERT = re.compile(r"convert_d?q|postprocess|dq_to", re.IGNORECASE)
_HEADS = re.compile(r"reduce_head|splitkv_combine|combine", re.IGNORECASE)
_FILL = re.compile(r"elementwise|fill|memset|copy|reduce_kernel", re.IGNORECASE)
_ALIGNED_TOKENS: Published[Tokens] = 16
"""Masks are padded to at most the next multiple of this."""
_RECOMPUTED_SHARE: Convention[Share] = 1 / 5
"""One of the five matmuls of a backward pass recomputes the scores; exact for Dv = D."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of an attention."""

    batch: float
    heads: int
    queries: float
    keys: float
    width: int
    value_width: int

    def pairs(self, causal: bool) -> float:
        """Scores computed per head and batch; with a causal mask query i sees keys 0 … i."""
        if not causal:
            return self.queries * self.keys
        seen = min(self.queries, self.keys)
        return seen * (seen + 1) / 2 + max(self.queries - self.keys, 0) * self.keys


def forward_flops(shape: Shape, causal: bool) -> float:
    return 2.0 * shape.batch * shape.heads * shape.pairs(causal) * (shape.width + shape.value_width)


def backward_flops(shape: Shape, causal: bool) -> float:
    return 2.0 * shape.batch * shape.heads * shape.pairs(causal) * (3 * shape.width + 2 * shape.value_width)


def is_attention(name: str) -> bool:
    return name in _OPS


def is_backward(name: str) -> bool:
    """Whether an attention op of this name computes gradients."""
    return _OPS[name].backward


def takes_one_sample(arguments: Arguments) -> bool:
    """Whether the queries of an attention op belong to one sample, neither packed nor a batch."""
    query = arguments.tensor(_OPS[arguments.name].query)
    return query is not None and len(query.shape) == 4 and query.shape[0] == 1


def attention(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of one kernel of an attention op; None if the shapes do not show it."""
    layout = _OPS[arguments.name]
    query, key, value = (arguments.tensor(layout.query + i) for i in range(3))
    if query is None or key is None or value is None:
        return None
    shape = _shape(layout, arguments, query, key, value)
    if shape is None:
        return None
    size = query.element_bytes
    out = query.elements / shape.width * shape.value_width * size
    exact = 4 * query.elements
    if layout.backward:
        if _ROWS.search(kernel.name):  # rows of grad · out, and gradients of the query in fp32 set to zero
            return Cost(read_bytes=2 * out, write_bytes=exact, whole=False)
        if _CONVERT.search(kernel.name):
            return Cost(read_bytes=exact, write_bytes=query.bytes, whole=False)
    if _HEADS.search(kernel.name):  # gradients of shared keys, computed per query head
        return Cost(read_bytes=out, write_bytes=key.bytes, whole=False)
    if _FILL.search(kernel.name):
        return Cost(write_bytes=query.bytes, whole=False)
    causal = arguments.text(layout.causal) in ("True", "1")
    code = dtype_code(query.type)
    rows = 4 * query.elements / shape.width
    if not layout.backward:
        reads = query.bytes + key.bytes + value.bytes
        return Cost(forward_flops(shape, causal), reads, out + rows, code)
    flops = backward_flops(shape, causal)
    grouped = query.elements / max(key.elements / shape.keys * shape.queries, 1)
    reads = query.bytes + key.bytes + value.bytes + out + 2 * rows + exact
    writes = exact + (key.bytes + value.bytes) * max(grouped, 1)
    return Cost(flops, reads, writes, code, repeated_flops=flops * _RECOMPUTED_SHARE)


def _shape(layout: _Layout, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Shape | None:
    q, k, v = query.shape, key.shape, value.shape
    if not (len(q) == len(k) == len(v)) or 0 in q or 0 in k:
        return None
    if len(q) == 4:
        heads, queries, keys = (q[1], q[2], k[2]) if layout.heads_first else (q[2], q[1], k[1])
        packed = arguments.tensor(layout.lengths) if layout.lengths is not None else None
        if packed is not None and q[0] == 1 and packed.elements > 1:
            sequences = packed.elements - 1
            return Shape(sequences, heads, queries / sequences, keys / sequences, q[3], v[3])
        return Shape(q[0], heads, queries, keys, q[3], v[3])
    if len(q) == 3 and layout.lengths is not None:
        # Packed sequences: their number is recorded, their lengths are not; equal lengths are the least work.
        packed = arguments.tensor(layout.lengths)
        if packed is not None and packed.elements > 1:
            sequences = packed.elements - 1
            return Shape(sequences, q[1], q[0] / sequences, k[0] / sequences, q[2], v[2])
    return None


def is_causal(arguments: Arguments) -> bool:
    """Whether an attention op is causal: each token sees only those before it."""
    return arguments.text(_OPS[arguments.name].causal) in ("True", "1")


def attends_packed(arguments: Arguments) -> bool:
    """Whether an attention op gets the lengths of several sequences in one row."""
    layout = _OPS[arguments.name]
    lengths = arguments.tensor(layout.lengths) if layout.lengths is not None else None
    return lengths is not None and lengths.elements > 1


def has_mask(arguments: Arguments) -> bool:
    """Whether an attention op gets a queries × keys mask as a tensor, or one that is the same for all queries. Its
    last dimension may be padded."""
    layout = _OPS[arguments.name]
    query, key = arguments.tensor(layout.query), arguments.tensor(layout.query + 1)
    if query is None or key is None or len(query.shape) != len(key.shape) or len(query.shape) < 4:
        return False
    at = -2 if layout.heads_first else -3
    queries, keys = query.shape[at], key.shape[at]

    def is_mask(shape: tuple[int, ...]) -> bool:
        if len(shape) < 2 or not (shape[-2] == queries or (len(shape) == 4 and shape[-2] == 1)):
            return False
        return 0 <= shape[-1] - keys < _ALIGNED_TOKENS

    like = (query.shape, key.shape)
    return any(one.shape not in like and is_mask(tuple(one.shape)) for one in arguments.tensors)

"""FLOPs and bytes of ops, compared with what torch counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from helpers.op_arguments import H200, PLAIN, arguments

from gpuprof.costs.dtypes import CODE
from gpuprof.costs.formulas.attention import _OPS, attention
from gpuprof.costs.formulas.convolution import convolution
from gpuprof.costs.formulas.elementwise import ARITY
from gpuprof.costs.formulas.gemm import gemm
from gpuprof.costs.formulas.memory_ops import streaming


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


TYPES = {"float32": "float", "bfloat16": "c10::BFloat16", "float16": "c10::Half", "int64": "long int", "bool": "bool"}


def recorded_as(torch, values) -> tuple[list, list, list, list]:
    """Arguments as the profiler writes them."""
    dims, types, strides, concrete = [], [], [], []
    for value in values:
        tensor = isinstance(value, torch.Tensor)
        dims.append(list(value.shape) if tensor else [])
        strides.append(list(value.stride()) if tensor else [])
        types.append(TYPES[str(value.dtype).removeprefix("torch.")] if tensor else "" if value is None else "Scalar")
        concrete.append("" if tensor or value is None else str(value))
    return dims, types, strides, concrete


def counted(torch, call) -> int:
    """The FLOPs of a call as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(64, 128), (128, 96)]),
        ("mm", [(1, 4096), (4096, 7)]),
        ("bmm", [(6, 32, 64), (6, 64, 16)]),
        ("addmm", [(96,), (64, 128), (128, 96)]),
        ("addmm", [(64, 96), (64, 128), (128, 96)]),
        ("baddbmm", [(6, 32, 16), (6, 32, 64), (6, 64, 16)]),
    ],
)
def test_products_cost_what_torch_counts(torch, name, shapes):
    tensors = [torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
    found = gemm(arguments(f"aten::{name}", *recorded_as(torch, tensors)), PLAIN, H200)
    assert found is not None
    out = getattr(torch, name)(*tensors)
    assert found.flops == counted(torch, lambda: getattr(torch, name)(*tensors))
    assert found.write_bytes == out.numel() * 2
    assert found.read_bytes == sum(t.numel() * 2 for t in tensors)  # all of it fits in the L2
    assert found.dtype == CODE["bf16"]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_cost_what_torch_counts(torch, padding, groups, stride):
    x = torch.empty(2, 8, 17, 19, device="meta", requires_grad=True)
    weight = torch.empty(12, 8 // groups, 3, 5, device="meta", requires_grad=True)
    args = (x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    found = convolution(arguments("aten::convolution", *recorded_as(torch, args)), PLAIN)
    assert found is not None
    assert found.flops == counted(torch, lambda: torch.convolution(*args))
    out = torch.convolution(*args)
    back = (
        out.detach(),
        x,
        weight,
        None,
        [stride] * 2,
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        groups,
        [True, True, False],
    )
    found = convolution(arguments("aten::convolution_backward", *recorded_as(torch, back)), PLAIN)
    assert found is not None
    if groups == 1:  # torch's own count of the weights' gradient ignores the groups
        assert found.flops == counted(torch, lambda: out.backward(torch.empty_like(out)))
    assert found.flops == 2 * counted(torch, lambda: torch.convolution(*args))


def test_attention_costs_what_torch_counts(torch):
    """Without a mask, with key heads shared or not, forward and backward."""
    sdpa = torch.ops.aten._scaled_dot_product_flash_attention
    for heads in (8, 2):
        q = torch.empty(2, 8, 40, 16, device="meta")
        k = v = torch.empty(2, heads, 24, 16, device="meta")
        forward = arguments("aten::_cudnn_attention_forward", *recorded_as(torch, (q, k, v)))
        found = attention(forward, PLAIN)
        assert found is not None
        everywhere = torch.empty(2, 8, 24, 16, device="meta")  # torch assumes as many key heads as query heads
        assert found.flops == counted(torch, partial(sdpa, q, everywhere, everywhere))
        back = attention(arguments("aten::_cudnn_attention_backward", *recorded_as(torch, (q, q, k, v, q))), PLAIN)
        assert back is not None
        assert back.flops == 2.5 * found.flops
        assert back.repeated_flops == back.flops / 5


def test_where_attention_ops_hold_their_arguments(torch):
    """Positions of the query, the causal flag and the lengths are those of torch's schemas."""
    checked = 0
    for name, layout in _OPS.items():
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, name.removeprefix("aten::")):
            continue
        schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
        names = [argument.name for argument in schema.arguments]
        assert names[layout.query : layout.query + 3] in (["query", "key", "value"],), name
        assert names[layout.causal] in ("is_causal", "custom_mask_type"), name
        if layout.lengths is not None:
            assert names[layout.lengths] in ("cum_seq_q", "cu_seqlens_q"), name
        checked += 1
    assert checked >= 10


def calls(torch, name: str):
    """Pairs of inputs and output of an op, run by torch on small tensors that broadcast to each other."""
    op = getattr(torch.ops.aten, name, None)
    for overload in op.overloads() if op else ():
        needed = [a for a in getattr(op, overload)._schema.arguments if not a.has_default_value()]
        if any(a.is_out or str(a.type) not in ("Tensor", "number", "float") for a in needed):
            continue
        for dtype in (torch.float32, torch.bfloat16):
            shapes = iter([(4, 6), (6,), (4, 1), (1, 6)])
            values: list[Any] = [
                torch.zeros(next(shapes), dtype=dtype, device="meta") if str(a.type) == "Tensor" else 2.0
                for a in needed
            ]
            if name == "clamp" and len(values) == 1:
                values.append(2.0)
            if name in ("where", "masked_fill"):
                at = ("where", "masked_fill").index(name)
                values[at] = torch.zeros(values[at].shape, dtype=torch.bool, device="meta")
            try:
                out = getattr(op, overload)(*values)
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, IndexError):
                continue  # not for these
            if isinstance(out, torch.Tensor) and str(out.dtype).removeprefix("torch.") in TYPES:
                yield values, out


def test_elementwise_ops_read_and_write_what_torch_says(torch):
    """Bytes of the ops: inputs once, and an output of torch's own shape and type."""
    tried, wrong = set(), []
    losses = {name for name in ARITY if name.endswith(("_loss", "_with_logits"))}
    for name in sorted(ARITY.keys() - losses):  # a separate op reduces a loss, as torch's output shows
        for values, out in calls(torch, name):
            found = streaming(arguments(f"aten::{name}", *recorded_as(torch, values)), PLAIN, H200)
            assert found is not None
            read = sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
            if (found.read_bytes, found.write_bytes) != (read, out.numel() * out.element_size()):
                wrong.append((name, [getattr(v, "dtype", v) for v in values], out.dtype, found))
            tried.add(name)
    assert not wrong, "\n".join(map(str, wrong))
    assert len(tried) > 0.75 * len(ARITY)

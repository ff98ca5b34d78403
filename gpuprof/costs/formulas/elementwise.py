"""Ops that compute each element of their output from the same element of their inputs, including copies and fills."""

from __future__ import annotations

import math
import re

from gpuprof.costs.arguments import Arguments, Tensor
from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import element_bytes, promoted
from gpuprof.units import Assumed, Bytes, Elements, Published


def words(text: str) -> frozenset[str]:
    """Names separated by blanks."""
    return frozenset(text.split())


_ONE = words("""
    abs neg sign sgn sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
    erf erfc erfinv sigmoid relu relu6 silu gelu mish softplus elu selu celu leaky_relu hardtanh hardswish hardsigmoid
    hardshrink softshrink threshold floor ceil round trunc frac logical_not bitwise_not isnan isinf isfinite nan_to_num
    angle real imag conj_physical positive square tril triu log_sigmoid_forward native_dropout logit i0
    digamma lgamma deg2rad rad2deg glu flip roll constant_pad_nd repeat clone contiguous
""")
_TWO = words("""
    add sub rsub mul div true_divide floor_divide remainder fmod atan2 maximum minimum fmax fmin pow eq ne lt le gt ge
    clamp_min clamp_max logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward mish_backward
    elu_backward leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward
    glu_backward native_dropout_backward masked_fill bernoulli polar complex xlogy hypot ldexp copysign
    logaddexp heaviside __and__ __or__ __xor__ __lshift__ __rshift__ huber_loss mse_loss l1_loss smooth_l1_loss
    binary_cross_entropy_with_logits _prelu_kernel
""")
_THREE = words("""
    where clamp lerp addcmul addcdiv log_sigmoid_backward mse_loss_backward huber_loss_backward smooth_l1_loss_backward
""")
ARITY = {**dict.fromkeys(_ONE, 1), **dict.fromkeys(_TWO, 2), **dict.fromkeys(_THREE, 3)}
"""Op (without aten:: and a trailing _) → the most tensors that it reads; a further one is the output argument."""
_GIVES_BOOL = words("eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite")
_MASK_BYTES: Published[dict[str, Bytes]] = {"native_dropout": 1}
"""Bytes per element that an op writes in addition to its result."""
FILLS = words("fill zero normal uniform random bernoulli exponential cauchy geometric log_normal")
CREATES = words("arange linspace logspace full ones zeros randn rand randint randperm eye range")
_PER_THREAD: Assumed[Elements] = 4
"""Most elements that a thread of an elementwise kernel usually works on."""


def elementwise(arguments: Arguments, name: str, in_place: bool) -> Cost | None:
    """Cost of an op in ARITY; None without any tensor among its arguments."""
    tensors = arguments.tensors
    inputs = tensors[: ARITY[name]]
    if not inputs:
        return None
    read = float(sum(t.bytes for t in inputs))
    if in_place:
        return Cost(read_bytes=read, write_bytes=tensors[0].bytes)
    if len(tensors) > ARITY[name]:
        return Cost(read_bytes=read, write_bytes=tensors[-1].bytes)
    size = (element_bytes(output_type(name, inputs)) or 4) + _MASK_BYTES.get(name, 0)
    elements = broadcast(inputs)
    if name == "repeat":
        elements *= math.prod(arguments.integers(1) or [1])
    if name == "glu":
        elements //= 2
    return Cost(read_bytes=read, write_bytes=elements * size)


def output_type(name: str, inputs: list[Tensor]) -> str:
    """Element type of an op's result: tensors with dimensions take precedence over those without, as in torch."""
    if name in _GIVES_BOOL:
        return "bool"
    if name == "where":
        inputs = inputs[1:]
    found = promoted([t.type for t in inputs if t.shape] or [t.type for t in inputs])
    if name == "masked_fill":
        found = inputs[0].type
    integers = not re.search("float|Half|BFloat|double|complex", found)
    if integers and any(re.search("float|double|Half|BFloat", t.type) for t in inputs):
        return "float"  # an integer tensor with a floating number
    return "float" if integers and name in ("div", "true_divide") else found


def broadcast(tensors: list[Tensor]) -> int:
    """Elements of the shape that all of them expand to."""
    sizes = [1] * max((len(t.shape) for t in tensors), default=0)
    for t in tensors:
        for i, n in enumerate(reversed(t.shape)):
            sizes[i] = n if sizes[i] == 1 else sizes[i]
    return math.prod(sizes)


def copy(arguments: Arguments) -> Cost | None:
    """Cost of `copy_(to, from)`, including casts."""
    to, source = arguments.tensor(0), arguments.tensor(1)
    if to is None:
        return None
    return Cost(read_bytes=source.bytes if source else to.bytes, write_bytes=to.bytes)


def fill(arguments: Arguments) -> Cost | None:
    """Cost of filling in place, with a value or with random numbers."""
    to = arguments.tensor(0)
    return None if to is None else Cost(write_bytes=to.bytes)


def create(arguments: Arguments, kernel: Kernel) -> Cost:
    """Cost of creating a tensor; its size is that of the given output, else of the range, limited by the launch."""
    out = [t for t in arguments.tensors if t.elements > 1]
    if out:
        return Cost(write_bytes=out[-1].bytes)
    numbers = [float(v) for v in arguments.concrete if re.fullmatch(r"-?\d+(\.\d*)?", v)]
    span = abs(numbers[1] - numbers[0]) if len(numbers) > 1 else (numbers[0] if numbers else 1.0)
    return Cost(write_bytes=min(span, kernel.blocks * kernel.threads * _PER_THREAD) * 8)

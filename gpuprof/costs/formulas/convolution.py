"""Convolutions: two FLOPs per output element, input channel of its group and filter tap."""

from __future__ import annotations

import math

from gpuprof.costs.arguments import Arguments, Tensor
from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import CODE, dtype_code
from gpuprof.units import Place, Published

_FORWARD: Published[dict[str, tuple[Place, Place, Place]]] = {
    "aten::cudnn_convolution": (2, 3, 4),
    "aten::cudnn_convolution_relu": (4, 3, 5),
    "aten::miopen_convolution": (3, 4, 5),
    "aten::convolution": (4, 3, 5),
    "aten::_convolution": (4, 3, 5),
    "aten::_slow_conv2d_forward": (5, 4, -1),
    "aten::_conv_depthwise2d": (5, 4, 6),
    "aten::conv_depthwise3d": (5, 4, 6),
}
"""Op → positions of padding, stride and dilation among its arguments."""
_BACKWARD = {"aten::convolution_backward", "aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"}
_MASK_AT: Published[Place] = 10


def is_convolution(name: str) -> bool:
    return name in _FORWARD or name in _BACKWARD


def convolution(arguments: Arguments, kernel: Kernel) -> Cost | None:
    """Cost of a convolution or of its gradients; None if stride and padding were not recorded."""
    if kernel.named(r"(?i)nchwToNhwc|nhwcToNchw|transpose|tensorTransform|memset|fill|reduce_kernel|copy|SubTensor"):
        tensors = arguments.tensors
        return Cost(read_bytes=tensors[0].bytes, write_bytes=tensors[0].bytes, whole=False) if tensors else None
    return _backward(arguments) if arguments.name in _BACKWARD else _forward(arguments)


def _forward(arguments: Arguments) -> Cost | None:
    source, weight = arguments.tensor(0), arguments.tensor(1)
    if source is None or weight is None:
        return None
    out = _out_elements(arguments, source, weight)
    if out is None:
        return None
    return Cost(
        flops=2.0 * out * math.prod(weight.shape[1:]),
        read_bytes=source.bytes + weight.bytes,
        write_bytes=out * source.element_bytes,
        dtype=_dtype(source),
    )


def _out_elements(arguments: Arguments, source: Tensor, weight: Tensor) -> int | None:
    padding, stride, dilation = (arguments.integers(i) for i in _FORWARD[arguments.name])
    width = len(weight.shape) - 2
    if padding is None or stride is None or len(source.shape) != width + 2:
        return None
    dilation = dilation or [1]
    sizes = [source.shape[0], weight.shape[0]]
    for i in range(width):
        pad, step, far = (values[i] if i < len(values) else values[0] for values in (padding, stride, dilation))
        sizes.append((source.shape[2 + i] + 2 * pad - far * (weight.shape[2 + i] - 1) - 1) // step + 1)
    return math.prod(sizes)


def _backward(arguments: Arguments) -> Cost | None:
    gradient, source, weight = (arguments.tensor(i) for i in range(3))
    if gradient is None or source is None or weight is None:
        return None
    # Gradients of input and weight each take the matmuls of the forward pass.
    asked = arguments.text(_MASK_AT).count("True", 0, len("[True, True")) or 2
    taps = math.prod(weight.shape[1:])
    return Cost(
        flops=2.0 * asked * gradient.elements * taps,
        read_bytes=asked * gradient.bytes + source.bytes + weight.bytes,
        write_bytes=source.bytes + weight.bytes,
        dtype=_dtype(source),
    )


def _dtype(source: Tensor) -> int:
    code = dtype_code(source.type)
    # cuDNN uses tf32 for fp32 unless that is switched off, which is not recorded.
    return CODE["tf32"] if code == CODE["fp32"] else code

"""Ops over lists of tensors: foreach and fused optimizers.

The tensors are recorded for short lists only. For others the launch shows the size: a block works on one chunk of at
most 65,536 elements of one tensor (`kChunkSize` in ATen's MultiTensorApply.cuh); `fill` is how full chunks are on
average, which follows from the parameters that got gradients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from gpuprof.costs.arguments import Arguments
from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import element_bytes, type_in_kernel_name
from gpuprof.units import Convention, Elements, Published, Tensors

CHUNK_ELEMENTS: Published[Elements] = 65_536
_LISTS = re.compile(r"^aten::_(foreach|fused)_|^aten::_amp_foreach")
_FUSED_STATE: Convention[dict[str, Tensors]] = {"adam": 2, "adamw": 2, "sgd": 1, "adagrad": 1}
"""Optimizer → tensors of state per parameter, in addition to parameter and gradient."""


def is_over_lists(name: str) -> bool:
    return _LISTS.search(name) is not None


def chunk_fill(sizes: Iterable[int]) -> float:
    """Mean share of a chunk that is used, for tensors of these numbers of elements; 1 if there are none."""
    sizes = [n for n in sizes if n > 0]
    return sum(sizes) / (CHUNK_ELEMENTS * sum(math.ceil(n / CHUNK_ELEMENTS) for n in sizes)) if sizes else 1.0


def over_lists(arguments: Arguments, kernel: Kernel, fill: float) -> Cost | None:
    """Cost of one kernel of such an op, from its launch and its lists."""
    size = element_bytes(type_in_kernel_name(kernel.name) or "float") or 4
    given = sum(1 for name in arguments.types if name == "TensorList")
    recorded = [sum(t.elements for t in tensors) for tensors in arguments.lists]
    elements = float(recorded[0]) if recorded and recorded[0] else kernel.blocks * CHUNK_ELEMENTS * fill
    whole = bool(recorded and recorded[0])  # cost of the list, which its kernels share; else of these chunks
    name = arguments.name.removeprefix("aten::")
    if name.startswith("_fused_"):
        states = _FUSED_STATE.get(name.removeprefix("_fused_").rstrip("_"), 2)
        return Cost(read_bytes=elements * size * (2 + states), write_bytes=elements * size * (1 + states), whole=whole)
    if "norm" in name or kernel.named("lpnorm|cleanup"):
        return Cost(read_bytes=elements * size, whole=whole)
    unread = 1 if "copy" in name or "zero" in name else 0
    reads = max(given, 1) - unread
    return Cost(read_bytes=elements * size * reads, write_bytes=elements * size, whole=whole)

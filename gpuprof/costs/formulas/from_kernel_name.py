"""Kernels whose work follows from their name, its template arguments and the launch.

For libraries that launch kernels without torch, so that no op records their inputs.
"""

from __future__ import annotations

import re

from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import element_bytes, type_in_kernel_name
from gpuprof.units import Assumed, Elements

_BLOCKWISE = re.compile(r"kDequantizeBlockwise<[^,]+, *(\d+), *\d+, *\d+, *(\d+)>")
_OPTIMIZER = re.compile(r"kOptimizerStatic8bit([12])StateBlockwise<[^,]+, *\d+, *(\d+), *\d+>")
_GENERAL_8BIT = "0"
_SCALE_BLOCK: Assumed[Elements] = 64
"""Elements that share one fp32 scale: the usual choice, and it matters little."""


def by_name(kernel: Kernel) -> Cost | None:
    """Cost of a bitsandbytes kernel; None for any other.

    `kDequantizeBlockwise<T, TILE, THREADS, PER_THREAD, TYPE>`: a block converts TILE bytes, which hold that many
    elements of 8 bits (TYPE 0) or twice that many of 4 bits. `kOptimizerStatic8bitNStateBlockwise<T, OPTIMIZER, BLOCK,
    PER_THREAD>`: a block updates BLOCK elements with N states of a byte each.
    """
    size = element_bytes(type_in_kernel_name(kernel.name) or "float") or 4
    found = _BLOCKWISE.search(kernel.name)
    if found:
        packed = kernel.blocks * int(found[1])
        elements = packed if found[2] == _GENERAL_8BIT else 2 * packed
        return Cost(read_bytes=packed + 4 * elements / _SCALE_BLOCK, write_bytes=elements * size, whole=False)
    found = _OPTIMIZER.search(kernel.name)
    if found:
        states, elements = int(found[1]), kernel.blocks * int(found[2])
        return Cost(read_bytes=elements * (2 * size + states), write_bytes=elements * (size + states), whole=False)
    return None

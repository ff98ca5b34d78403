"""Kernels whose work can be read from the launch: from their name, its template arguments and how they were launched.

For libraries that launch past torch, so that no op records what went in.
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
"""Elements that share one fp32 scale; the usual choice, and of little weight."""


def by_name(kernel: Kernel) -> Cost | None:
    """Cost of a kernel of bitsandbytes; None for any other.

    `kDequantizeBlockwise<T, TILE, THREADS, PER_THREAD, TYPE>`: a block turns TILE bytes into that many elements of
    8 bit (TYPE 0) or twice as many of 4. `kOptimizerStatic8bitNStateBlockwise<T, OPTIMIZER, BLOCK, PER_THREAD>`: a
    block updates BLOCK elements with N states of a byte each.
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

"""Time of a matrix multiplication in another format, from its FLOPs and bytes alone.

A constant for filling and emptying the GPU, plus the root of the sum of squares of the times of FLOPs and bytes, each
at a share of its ceiling. So small ones reach a small part of the rate of large ones, and if FLOPs and bytes take
equally long they do not overlap completely. Constants and scatter: `python -m benchmarks.matmul_rates`.
"""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.tracefile.trace import F64


def computed_ns(
    flops: F64, moved: F64, flops_per_s: float, bytes_per_s: float, tensor: float, memory: float
) -> F64:  # fmt: skip
    """Time of matrix multiplications, ns, one per row of `flops` and of `moved` (bytes); `tensor`, `memory`: shares of
    the ceilings that they reach apart from the constant."""
    return calibrated.MATMUL_ADDED_NS.value + np.hypot(flops / flops_per_s / tensor, moved / bytes_per_s / memory) * 1e9


def half_precision_ns(flops: F64, moved: F64, flops_per_s: float, bytes_per_s: float, level: int = 1) -> F64:
    """The same in a 16-bit format. level: 0 at best, 1 usually, 2 at worst, by the scatter of recorded matmuls,
    between that of small and of large ones by the constant's share of the time."""
    took = computed_ns(
        flops, moved, flops_per_s, bytes_per_s, calibrated.MATMUL_TENSOR.value, calibrated.MATMUL_MEMORY.value
    )
    small = calibrated.MATMUL_ADDED_NS.value / took
    small_scatter, scatter = calibrated.MATMUL_SMALL_SCATTER.rising[level], calibrated.MATMUL_SCATTER.rising[level]
    return took * (small * small_scatter + (1 - small) * scatter)

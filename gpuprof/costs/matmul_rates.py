"""What a matrix multiplication takes in another format, from its FLOPs and bytes alone."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.tracefile.trace import F64


def half_precision_ns(flops: F64, moved: F64, flops_per_s: float, bytes_per_s: float, level: int = 1) -> F64:
    """Time of matrix multiplications in a 16-bit format, ns, one per row of `flops` and of `moved` (bytes).

    A constant for filling and emptying the chip, and the longer of the times of FLOPs and bytes at a share of the
    ceilings; so small ones reach a small part of what large ones do. level: 0 at best, 1 usually, 2 at worst, by the
    scatter of the recorded ones.
    """
    reached = calibrated.MATMUL_REACHED.value
    roof = np.maximum(flops / flops_per_s, moved / bytes_per_s) / reached
    return calibrated.MATMUL_SCATTER.rising[level] * (calibrated.MATMUL_ADDED_NS.value + roof * 1e9)

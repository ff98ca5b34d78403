"""Time that torch.compile takes before the first compiled step, from the launches of the eager passes."""

from __future__ import annotations

from gpuprof.calibration import compile as calibrated


def compile_ns(kernels: float, lengths_vary: bool, blocks: int = 1) -> tuple[float, float, float]:
    """(low, expected, high) time that compiling takes, ns.

    kernels: launches of one eager forward and backward pass. lengths_vary: a second sequence length makes torch compile
    again, with dynamic lengths. blocks: number of equal blocks, of which only one is compiled. Figures:
    gpuprof/calibration/compile.py.
    """
    once = (calibrated.TIME_S.value + calibrated.TIME_PER_KERNEL_S.value * kernels / max(blocks, 1)) * 1e9
    low, expected, high = (
        once * spread * (1 + again * lengths_vary)
        for spread, again in zip(calibrated.TIME_SPREAD.rising, calibrated.TIME_DYNAMIC.rising, strict=True)
    )
    return low, expected, high

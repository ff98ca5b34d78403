"""Optimizer state that lies in unified memory: what it costs to bring to the GPU and back where it does not fit.

bitsandbytes' paged optimizers leave it to the driver. While all fits nothing moves. With the largest batch there is no
room left for the state, so that all of it comes to the GPU in the optimizer's step and leaves it again.
"""

from __future__ import annotations

from gpuprof.calibration import memory as calibrated
from gpuprof.costs.hardware import Gpu


def moved_ns(gpu: Gpu, state_bytes: float, room_bytes: float = 0.0) -> tuple[float, float, float] | None:
    """What a step takes more for state that comes to a GPU and leaves it, ns: at least, usually, at most; None where
    the GPU's link to the CPU is not known.

    Nothing moves if there is room for all of it. Else at least what has no room does, and usually all of it: the driver
    takes out what was used longest ago, which is what the next step needs first.
    """
    link = gpu.host_link_bytes_per_s
    if not link:
        return None
    if state_bytes <= room_bytes:
        return 0.0, 0.0, 0.0
    low, usual, high = (1e9 * state_bytes / (link * rate) for rate in calibrated.PAGED_RATE.falling)
    return low * (1 - max(room_bytes, 0.0) / state_bytes), usual, high

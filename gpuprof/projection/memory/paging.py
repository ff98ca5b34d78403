"""Optimizer state in unified memory: the cost of moving it to the GPU and back if it does not fit.

bitsandbytes' paged optimizers leave this to the driver. While everything fits nothing moves. With the largest batch
there is no room left for the state, so all of it moves to the GPU in the optimizer's step, and back again.
"""

from __future__ import annotations

from gpuprof.calibration import memory as calibrated
from gpuprof.costs.hardware import Gpu


def moved_ns(gpu: Gpu, state_bytes: float, room_bytes: float = 0.0) -> tuple[float, float, float] | None:
    """How much longer a step takes because state moves to a GPU and back, ns: at least, usually, at most; None if the
    GPU's link to the CPU is not known.

    Nothing moves if there is room for all of it. Else at least the part without room moves, and usually all of it: the
    driver evicts what was used longest ago, which is what the next step needs first.
    """
    link = gpu.host_link_bytes_per_s
    if not link:
        return None
    if state_bytes <= room_bytes:
        return 0.0, 0.0, 0.0
    low, usual, high = (1e9 * state_bytes / (link * rate) for rate in calibrated.PAGED_RATE.falling)
    return low * (1 - max(room_bytes, 0.0) / state_bytes), usual, high

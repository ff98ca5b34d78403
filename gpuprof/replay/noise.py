"""How much steps of one program differ for reasons that a recording does not show.

Each value is half an 80 % interval, as a part of the step: eight of ten steps lie within it on either side.
"""

import math

from gpuprof.calibration import noise as calibrated


def process_noise(host: float) -> float:
    """How much a step differs from one process to the next: what the GPU's part and the CPU's differ by, which are
    independent and add as squares. host: the share of the step that scales with the CPU's time."""
    return math.hypot(calibrated.GPU_PROCESS.value, calibrated.HOST_BOUND.value * math.sqrt(min(max(host, 0.0), 1.0)))


def change_noise(change: float) -> float:
    """Half the 80 % interval of log(measured gain / replayed gain) if a fix makes the step `change` times as fast or
    slow; some processes with and without the fix are measured, and what they differ by is part of it."""
    return min(calibrated.GAIN_SHARE.value * abs(math.log(change)), calibrated.GAIN_MOST.value)


def replay_noise(change: float) -> float:
    """The same of log(step after the fix / replayed step) without what processes differ by: `process_noise` is that,
    and would count twice."""
    return min(calibrated.REPLAY_SHARE.value * abs(math.log(change)), calibrated.GAIN_MOST.value)

"""How much steps of one program differ for reasons that a recording does not show.

Each value is half an 80 % interval, as a part of the step: eight of ten steps lie within it on either side.
"""

import math

from gpuprof.calibration import noise as calibrated


def process_noise(host: float) -> float:
    """How much a step differs from one process to the next, at least by `PROCESS`. host: the share of the step that
    scales with the CPU's time."""
    return max(calibrated.PROCESS.value, calibrated.HOST_BOUND.value * math.sqrt(min(max(host, 0.0), 1.0)))


def change_noise(change: float) -> float:
    """Half the 80 % interval of log(measured step / replayed step) if a fix makes the step `change` times as fast or
    slow; noise between processes is not included."""
    return min(calibrated.GAIN_SHARE.value * abs(math.log(change)), calibrated.GAIN_MOST.value)

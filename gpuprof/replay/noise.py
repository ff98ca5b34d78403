"""How much steps of one program differ for reasons that a recording does not show.

Each value is half an 80 % interval, as a part of the step: eight of ten steps lie within it on either side.
"""

import math

from gpuprof.calibration import noise as calibrated

RUN_NOISE = calibrated.RUN.value
"""Within one process: the GPU's part of a step differs by this much between the baseline of a run and its recorded
steps. What this explains of a measured step says nothing of the host."""
GPU_PROCESS_NOISE = calibrated.GPU_PROCESS.value
"""From one process to the next, of a step that the GPU is the limit (clocks, memory placement); so no interval of a
step is narrower."""
HOST_PROCESS_NOISE = calibrated.HOST_PROCESS.value
"""From one process to the next, of the host's time, where a measured step says what it is."""
PROCESS_NOISE = calibrated.PROCESS.value
"""From one process to the next on the same machine, of any step."""
GAIN_NOISE = calibrated.GAIN.value
"""From the gain that a replay predicts of a small change to the measured one."""
HOST_BOUND_NOISE = calibrated.HOST_BOUND.value
"""From one process to the next, of a step that the CPU alone limits."""
MACHINE_NOISE = calibrated.MACHINE.value
"""From one host to another of the same kind, and from one hour to another."""


def process_noise(host: float) -> float:
    """How much a step differs from one process to the next, where `host` is the share of it that scales with the CPU's
    time: that of any step at least."""
    return max(PROCESS_NOISE, HOST_BOUND_NOISE * math.sqrt(min(max(host, 0.0), 1.0)))


def change_noise(change: float) -> float:
    """Half the 80 % interval by which the logarithm of a step differs from the replayed one, `change` times as fast or
    slow as it is; what processes differ by is another matter."""
    return min(calibrated.GAIN_SHARE.value * abs(math.log(change)), calibrated.GAIN_MOST.value)

"""How well NVML measures energy."""

from __future__ import annotations

from gpuprof.calibration.number import Number

SENSOR = Number(
    0.05, 0.02, 0.1, "", "published",
    "Error of the power sensors of data centre GPUs, which their energy counter adds up: nvidia-smi's power is within "
    "5 % of an external meter on most, and is sampled for a quarter of the time on A100 and H100 (Yang, Adamek, "
    "Armour: Part-time Power Measurements, 2024).",
)  # fmt: skip
UPDATE_S = Number(
    0.1, 0.02, 0.1, "s", "published",
    "From one update of the energy counter or the power to the next (the same source): so much of a stretch may be "
    "counted wrongly at its ends.",
)  # fmt: skip
AVERAGED_S = Number(
    1.0, 0.1, 1.0, "s", "published",
    "Time over which the power that NVML reports is averaged on A100 and H100 (the same source): so much of the "
    "samples of a stretch is of what was before it.",
)  # fmt: skip
OF_FIX = Number(
    0.1, 0.05, 0.2, "", "measured",
    "Half the 80 % interval of the energy of a step with a fix, as a share of it, where the step's time is known: 16 "
    "of 19 changes of twelve programs, timed with and without the fix (python -m benchmarks.fix_energy).",
)  # fmt: skip

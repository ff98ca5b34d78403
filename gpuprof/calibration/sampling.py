"""Python functions of unprofiled steps."""

from __future__ import annotations

from gpuprof.calibration.number import Number

PLACED = Number(
    0.1, 0.05, 0.3, "", "assumed",
    "How far off the gain of a function may be because its samples are placed in the recorded steps by the parts of a "
    "step, as a share of the gain.",
)  # fmt: skip

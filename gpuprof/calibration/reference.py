"""Slow reference implementations: a sequence of ordinary torch ops where a package has one kernel."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEFT = Number(
    0.25, 0.08, 0.5, "", "assumed",
    "Time that is left of a reference implementation where a fused kernel does the same: 0.07 of eager attention was "
    "left on an H200, 0.3 of a norm; kernels of scans and delta rules were not timed.",
    ("scenarios/eager_attention/recording",),
)  # fmt: skip

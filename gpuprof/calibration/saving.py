"""Saving, evaluating and logging."""

from __future__ import annotations

from gpuprof.calibration.number import Number

RARER = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "What is left of the cost of saving, evaluating and logging once it is done a tenth as often: what is advised, "
    "and not known of any program. Chosen with periodic_saving in view.",
    ("scenarios/periodic_saving/recording",),
)  # fmt: skip

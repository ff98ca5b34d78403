"""Saving, evaluating and logging."""

from __future__ import annotations

from gpuprof.calibration.number import Number

RARER = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "What is left of the cost of saving, evaluating and logging once it is done a tenth as often, which is what is "
    "advised. Chosen with periodic_saving in view.",
    ("scenarios/periodic_saving/recording",),
)  # fmt: skip
EVALUATED_AT_ONCE = Number(
    0.65, 0.4, 0.85, "", "assumed",
    "Probability that evaluation gains in larger batches where a training step takes next to no longer for more "
    "samples: evaluation's own batches, which are seldom larger than the training's, were not recorded.",
)  # fmt: skip
EVALUATION_SPREAD = Number(
    1.15, 1.0, 1.5, "", "assumed",
    "How far off the step with evaluation in larger batches may be, both ways: reading results and preparing samples "
    "do not get shorter, and batches of one sample gain more.",
)  # fmt: skip

"""Slow reference implementations: a sequence of ordinary torch ops where a package has one kernel."""

from __future__ import annotations

from gpuprof.calibration.number import Number

REFERENCE_LEFT = Number(
    0.25, 0.08, 0.5, "", "assumed",
    "Time that is left of a reference implementation where a fused kernel does the same: 0.07 of eager attention was "
    "left on an H200, 0.3 of a norm; kernels of scans and delta rules were not timed.",
    ("scenarios/eager_attention/recording",),
)  # fmt: skip
KERNEL_ODDS = Number(
    0.75, 0.6, 0.9, "", "assumed",
    "Probability that a package with the missing kernel installs, and takes this GPU, these types and head sizes.",
)  # fmt: skip
AGAIN_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that a weight that is computed again at each use can be kept for the forward pass: it may be "
    "changed in between.",
)  # fmt: skip
PLAIN_ODDS = Number(
    0.6, 0.4, 0.8, "", "assumed",
    "Probability that a training stays stable without spectral or weight norms, which are there for that.",
)  # fmt: skip
REBUILT_CPU_NS = Number(
    200_000.0, 0.0, 400_000.0, "ns", "measured",
    "CPU time of a step for each weight whose factors are folded into one op instead of built as a whole: 50.3 to 55.1 "
    "ms a step with 12 such weights of a launch-bound MoE on an H200, all of it at worst.",
    ("scenarios/cases/moe_lora_delta/recording",),
)  # fmt: skip

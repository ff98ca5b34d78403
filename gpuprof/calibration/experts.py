"""Experts of a mixture computed by grouped matmuls instead of a loop."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_TIMED = (
    "tests/data/pairs/moe_big.json.gz",
    "tests/data/pairs/moe_small.json.gz",
    "scenarios/expert_loop/recording",
    "scenarios/gpt_oss_20b_unsloth/recording",
    "shared/traces/h200/moe_gptoss_expert_loop.json.gz",
)
_GROUPED = ("scenarios/expert_loop/fixed",)
_REFIT = "python -m benchmarks.calibrate experts"

FORWARD_LAUNCHES = Number(
    33, 26, 42, "kernels", "measured",
    "Kernels of grouped experts per layer and forward pass (sorting rows, offsets, gather, two grouped GEMMs, "
    "activation, masking, weighting, scatter, sum): 31 recorded with frozen experts; fewer on a fused path, more for "
    "experts with biases.",
    _GROUPED,
)  # fmt: skip
BACKWARD_LAUNCHES = Number(
    44, 32, 58, "kernels", "measured",
    "The same for the backward pass: 39 recorded with frozen experts, 11 more where the experts are trained.",
    _GROUPED,
)  # fmt: skip
TENSOR_SHARE = Number(
    0.8, 0.6, 0.9, "", "measured",
    "Share of the tensor ceiling that grouped GEMMs reach: 0.80 to 0.84 with `torch._grouped_mm` on an H200.",
    _GROUPED,
)  # fmt: skip
MEMORY_SHARE = Number(
    0.48, 0.33, 0.6, "", "measured",
    "Share of the memory ceiling that they reach while they stream every expert's weights for few rows: 0.43 to 0.50 "
    "recorded on an H200.",
    _GROUPED,
)  # fmt: skip
ELEMENTWISE_SHARE = Number(
    0.7, 0.5, 0.9, "", "measured",
    "Share of the memory ceiling that activations of the grouped rows reach: 0.5 to 0.9 recorded.",
    _GROUPED,
)  # fmt: skip
ROW_PASSES = Number(
    19.0, 9.5, 38.0, "passes", "fitted",
    "Ordering, masking and combining the rows per layer and pass, in bytes of the rows at the model's width over the "
    "memory ceiling: the masks run at 0.35 of it, and so count 2.8 times. The interval is a guess.",
    _TIMED, _REFIT,
)  # fmt: skip
GATE_PASSES = Number(
    7.6, 3.8, 15.2, "passes", "fitted",
    "The same at the width of the first GEMM.",
    _TIMED, _REFIT,
)  # fmt: skip
SORT_NS = Number(
    30_000.0, 25_000.0, 40_000.0, "ns", "measured",
    "Sorting the rows by expert: 29 µs for 2,048 and for 8,192 rows alike on an H200.",
    _GROUPED,
)  # fmt: skip
UNKNOWN_LEFT = Number(
    0.6, 0.4, 1.0, "", "measured",
    "GPU time that is left of the loops where shapes were not recorded: 0.2 to 0.7 for the loops that ROW_PASSES is "
    "from.",
    _TIMED,
)  # fmt: skip
ROUTED_COST = Number(
    1.4, 1.1, 2.2, "", "assumed",
    "GPU time of grouped experts over the chosen experts' share of what all experts take for all tokens: ordering, "
    "gathering and adding rows, and matrix multiplications over fewer rows.",
)  # fmt: skip
ROUTED_ODDS = Number(
    0.9, 0.6, 0.97, "", "assumed",
    "Probability that the results of experts that a router did not choose are multiplied by zero.",
)  # fmt: skip

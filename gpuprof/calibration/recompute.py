"""Gradient checkpointing: what is left of a step without it."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_TIMED = (
    "tests/data/pairs/checkpoint.json.gz",
    "tests/data/pairs/checkpoint_tiny.json.gz",
    "tests/data/pairs/combined.json.gz",
    "scenarios/checkpointing/recording",
    "scenarios/llama8b_cookbook/recording",
    "scenarios/qwen3_32b_unsloth/recording",
    "scenarios/qwen3_8b_lora/recording",
    "scenarios/tinyllama_cookbook/recording",
)
_REFIT = "python -m benchmarks.calibrate recompute"

SAVED_SHARE = Number(
    0.125, 0.08, 0.18, "", "measured",
    "Of the bytes that the repeated forward pass reads and writes, the share that would stay in memory instead: a "
    "LoRA fine-tune on an H200 kept 7.8 GiB instead of repeating 64.9 GB of traffic.",
    ("scenarios/checkpointing/recording",),
)  # fmt: skip
HOOKED_SHARE = Number(
    0.6, 0.5, 0.8, "", "fitted",
    "What is left of the forward pass's CPU time without the hooks that note each saved tensor "
    "(`use_reentrant=False`). Recordings of two programs with and without show 0.57 and 0.64; launch-bound programs "
    "timed without a profiler took 0.89 to 1.19 times what these shares leave, 0.97 at the median.",
    _TIMED, _REFIT,
)  # fmt: skip
UNPACKED_SHARE = Number(
    0.75, 0.65, 0.95, "", "fitted",
    "The same for the backward pass, where a Python function fetches each saved tensor: 0.79 and 0.84 in recordings.",
    _TIMED, _REFIT,
)  # fmt: skip
READ_BACK = Number(
    0.0, 0.0, 0.1, "", "assumed",
    "Share of the recomputation's time that remains, as kept values are read from memory instead of the cache.",
)  # fmt: skip
USABLE_SHARE = Number(
    0.92, 0.88, 0.96, "", "measured",
    "Share of a GPU's memory that a training can fill; the context, the libraries' workspaces and fragmentation take "
    "the rest. The interval is a guess.",
)  # fmt: skip
IDLE_PART = Number(
    1.0, 0.6, 1.1, "", "assumed",
    "Share of a backward pass that goes away without gradients that no optimizer uses, relative to their share of the "
    "parameters: layers differ in time for each parameter.",
)  # fmt: skip
UNUSED_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that a program does not read gradients itself that no optimizer uses.",
)  # fmt: skip
UNCLEARED_ODDS = Number(
    0.95, 0.6, 0.99, "", "assumed",
    "Probability that nothing uses gradients that are added up over steps, where the only optimizer that steps has "
    "other weights: an optimizer that steps once in many steps may have them.",
)  # fmt: skip
RARE_PENALTY_ODDS = Number(
    0.65, 0.4, 0.85, "", "assumed",
    "Probability that a training stays as stable with a gradient penalty in every 16th step, 16 times as strong, as "
    "StyleGAN2 has it.",
)  # fmt: skip
RARE_PENALTY_LEFT = Number(
    1 / 16, 1 / 16, 1 / 4, "", "assumed",
    "Share of the steps in which a gradient penalty is computed: one in 16, at worst one in 4.",
)  # fmt: skip
SAME_OUTPUT_ODDS = Number(
    0.95, 0.6, 0.99, "", "assumed",
    "Probability that calls of `torch.autograd.grad` which begin at the same node of the graph, each after a sum or a "
    "tensor of ones was made, differentiate the same output along the same direction.",
)  # fmt: skip

"""What torch.compile costs before the first compiled step, from what the eager passes launch."""

from __future__ import annotations

FIXED_S, PER_KERNEL_S = 20.0, 0.0125
"""Seconds for a cold cache, and for each kernel that one eager forward and backward pass launches. Fitted to five
models on an H200 host with 16 cores (torch 2.11): Llama with 4, 12 and 24 layers (544, 1,520 and 2,984 kernels: 21, 33
and 48 s), BERT with 12 layers (704: 40 s) and ResNet-50 (721: 40 s)."""
SPREAD = (0.7, 1.45)
"""Measured over estimated: 0.78 to 1.39 there, and hosts differ."""
DYNAMIC = (1.1, 1.7, 2.1)
"""A second sequence length compiles everything again with dynamic lengths: 1.1, 1.8 and 2.1 times as long as the first
on the three Llamas, and a third length costs nothing."""


def compile_ns(kernels: float, lengths_vary: bool) -> tuple[float, float, float]:
    """(low, expected, high) time that compiling takes, ns.

    kernels: launches of one eager forward and backward pass.
    """
    once = (FIXED_S + PER_KERNEL_S * kernels) * 1e9
    low, expected, high = (once * (1 + again * lengths_vary) for again in DYNAMIC)
    return SPREAD[0] * low, expected, SPREAD[1] * high

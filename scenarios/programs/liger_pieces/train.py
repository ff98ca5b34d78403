"""A Llama of 6 layers, width 2048, 2 × 2048 tokens in bf16, whose norms, rotary embedding, SwiGLU and loss run as small
kernels; each has a fused one in liger-kernel.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main

PIECES = ("rms_norm", "rope", "swiglu", "cross_entropy", "fused_linear_cross_entropy")
TOGETHER = {
    "all": ("rms_norm", "rope", "swiglu", "fused_linear_cross_entropy"),
    "without_losing": ("rms_norm", "rope", "cross_entropy"),
}
"""Fixes of several pieces: all, and without those that take longer than the small kernels."""


def train(run: Run) -> None:
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=6)
    if run.fix:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        chosen = TOGETHER.get(run.fix, (run.fix,))
        apply_liger_kernel_to_llama(model=model, **{piece: piece in chosen for piece in PIECES})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, run.pick(2, 1), run.pick(2048, 16), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

"""Qwen2.5-0.5B cut to 6 layers with its vocabulary of 151,936; 2 × 2048 tokens, of which only a fifth has a label."""

from __future__ import annotations

import itertools

import torch
from torch.utils.checkpoint import checkpoint

from scenarios.support import data, models
from scenarios.support.run import Run, main


def loss_of(hidden: torch.Tensor, labels: torch.Tensor, head: torch.nn.Linear) -> torch.Tensor:
    """The summed cross entropy of these tokens."""
    return torch.nn.functional.cross_entropy(head(hidden).float(), labels, ignore_index=-100, reduction="sum")


def train(run: Run) -> None:
    model = models.build("qwen2.5-0.5b", run.device, tiny=run.tiny, num_hidden_layers=6)
    if run.fix in ("liger_loss", "liger_norms"):
        from liger_kernel.transformers import apply_liger_kernel_to_qwen2

        whole = run.fix == "liger_norms"
        apply_liger_kernel_to_qwen2(model=model, rope=whole, rms_norm=whole, swiglu=whole, cross_entropy=False,
                                    fused_linear_cross_entropy=not whole)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    batch = data.full(model.config.vocab_size, run.pick(2, 1), run.pick(2048, 40), run.device)
    batch["labels"][:, : batch["labels"].shape[1] * 4 // 5] = -100
    batches = itertools.repeat(batch)
    for _ in run.steps():
        if run.fix in ("needed", "chunked"):
            hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
            labels = batch["labels"][:, 1:].flatten()
            wanted = labels != -100
            count = int(wanted.sum()) if run.fix == "needed" else labels.numel() // 5
            if run.fix == "needed":
                loss = loss_of(hidden[wanted], labels[wanted], model.lm_head) / count
            else:
                parts = zip(hidden.chunk(8), labels.chunk(8), strict=True)
                sums = [checkpoint(loss_of, h, y, model.lm_head, use_reentrant=False) for h, y in parts]
                loss = torch.stack(sums).sum() / count
        else:
            loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

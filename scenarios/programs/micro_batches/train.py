"""A GPT-2 (8 layers, width 512) that accumulates 8 micro-batches of one sequence of 512 tokens, bf16 autocast."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    layers, width, length = run.pick((8, 512, 512), (2, 32, 16))
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=8, vocab_size=32_000, n_positions=512, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    model = GPT2LMHeadModel(config).to(run.device).train()
    forward = torch.compile(model) if run.fix == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parts, rows = (1, 8) if run.fix == "one_batch" else (2, 4) if run.fix == "two_batches" else (8, 1)
    tokens = torch.randint(0, config.vocab_size, (parts, rows, length), device=run.device)
    for _ in run.steps():
        for part in tokens:
            with torch.autocast(run.device.split(":")[0], torch.bfloat16):
                loss = forward(input_ids=part, labels=part).loss / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

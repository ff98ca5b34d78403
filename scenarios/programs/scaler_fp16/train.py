"""A GPT-2 under fp16 autocast with a gradient scaler that unscales, clips and steps: it reads whether gradients
overflow.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    layers, width, length, rows = run.pick((12, 512, 256, 4), (2, 32, 16, 1))
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=8, vocab_size=32_000, n_positions=512, use_cache=False)
    model = GPT2LMHeadModel(config).to(run.device).train()
    device = run.device.split(":")[0]
    forward = torch.compile(model) if run.fix == "compile" else model
    bf16 = run.fix in ("bf16", "bf16_fused")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True if run.fix in ("fused", "bf16_fused") else None
    )
    scaler = torch.amp.GradScaler(device, enabled=not bf16)
    tokens = torch.randint(0, config.vocab_size, (rows, length), device=run.device)
    for _ in run.steps():
        with torch.autocast(device, torch.bfloat16 if bf16 or run.tiny else torch.float16):
            loss = forward(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

"""A mixture of experts (Qwen3-MoE, 8 layers, 16 experts, 4 for each token) on rows whose length is new in each step.

Gradient checkpointing is on. cuDNN plans its attention for each length that it has not seen.
"""

from __future__ import annotations

import random

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from scenarios.support.models import randomize
from scenarios.support.run import Run, main


def build(run: Run) -> torch.nn.Module:
    shape = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4}
    experts = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "intermediate_size": 2048}
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= run.pick({}, small | {"head_dim": 16}) | experts | run.pick({}, {"moe_intermediate_size": 32})
    config = Qwen3MoeConfig(**{"head_dim": 64} | shape, vocab_size=32_000, use_cache=False)
    with torch.device(run.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomize(model)
    return model.train()


def train(run: Run) -> None:
    if run.fix == "no_cudnn":
        torch.backends.cuda.enable_cudnn_sdp(False)
    model = build(run)
    if run.fix != "no_checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    rng = random.Random(0)
    for _ in run.steps():
        length = rng.randint(*run.pick((600, 3000), (8, 32)))
        padded = -length % 512 if run.fix == "padded" else 0
        tokens = torch.randint(1, 32_000, (1, length + padded), device=run.device)
        labels = tokens.clone()
        labels[:, length:] = -100
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

"""LoRA with PEFT on the last 4 of 22 layers of a Llama (1.1B, width 2048) in bf16, 4 × 1024 tokens.

Gradient checkpointing and the gradients of inputs are switched on as for LoRA on all layers.
"""

from __future__ import annotations

import itertools

import torch
from peft import LoraConfig, get_peft_model

from scenarios.support import data, loop, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny)
    layers = model.config.num_hidden_layers
    last = list(range(layers - run.pick(4, 1), layers))
    adapters = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, layers_to_transform=last, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    model = get_peft_model(model, adapters)
    if run.fix not in ("no_checkpointing", "both"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if run.fix not in ("no_input_grads", "both"):
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW(loop.trained(model), lr=2e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((4, 1024), (2, 16)), run.device))
    loop.finetune(run, model, batches, optimizer)


if __name__ == "__main__":
    main(train)

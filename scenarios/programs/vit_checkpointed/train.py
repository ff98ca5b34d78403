"""A ViT-B/16 (transformers) under bf16 autocast with gradient checkpointing that it does not need; 32 images."""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTForImageClassification

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    size, width, layers, images = run.pick((224, 768, 12, 32), (32, 32, 2, 2))
    images *= 2 if run.fix == "batch_64" else 1
    config = ViTConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 16 if run.tiny else 12,
                       intermediate_size=4 * width, image_size=size, num_labels=100)  # fmt: skip
    model = ViTForImageClassification(config).to(run.device).train()
    if run.fix != "no_checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True if run.fix == "fused" and not run.tiny else None
    )
    pixels = torch.randn(images, 3, size, size, device=run.device)
    labels = torch.randint(0, 100, (images,), device=run.device)
    forward = torch.compile(model) if run.fix == "compile" else model
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = forward(pixel_values=pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

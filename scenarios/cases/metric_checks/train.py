"""A vision transformer with a mean of each of its losses and the largest of each, kept by torchmetrics, which reads
from the GPU in every update whether a value is not a number. The metrics and the model are the libraries' own code.
"""

from __future__ import annotations

import torch
from torchmetrics import MaxMetric, MeanMetric
from transformers import ViTConfig, ViTModel

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    width, layers, rows, heads = run.pick((384, 12, 48, 8), (32, 2, 2, 2))
    config = ViTConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=run.pick(6, 2),
                       intermediate_size=4 * width, image_size=run.pick(224, 32), patch_size=16)  # fmt: skip
    torch.manual_seed(0)
    model = ViTModel(config, add_pooling_layer=False).to(run.device).train()
    outputs = torch.nn.ModuleList(torch.nn.Linear(width, 100) for _ in range(heads)).to(run.device)
    strategy = "disable" if run.fix == "after" else "warn"
    means = [MeanMetric(nan_strategy=strategy).to(run.device) for _ in range(heads)]
    largest = [MaxMetric(nan_strategy=strategy).to(run.device) for _ in range(heads)]
    optimizer = torch.optim.AdamW([*model.parameters(), *outputs.parameters()], lr=1e-5, fused=not run.tiny)
    size = config.image_size
    pixels = torch.randn(rows, 3, size, size, device=run.device)
    labels = torch.randint(0, 100, (heads, rows), device=run.device)
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            states = model(pixel_values=pixels).last_hidden_state[:, 0]
            losses = [
                torch.nn.functional.cross_entropy(output(states).float(), wanted)
                for output, wanted in zip(outputs, labels, strict=True)
            ]
        for loss, mean, most in zip(losses, means, largest, strict=True):
            mean.update(loss.detach())
            most.update(loss.detach())
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

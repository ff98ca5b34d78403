"""Text-only batches of a vision-language model that still runs its vision tower on an empty picture, times zero, and
reads the packed length from the GPU in every layer.
"""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTModel

from scenarios.support.planted import Model
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    width, blocks, tower, length = run.pick((1024, 24, 4, 12_288), (64, 2, 2, 8))
    reads = run.fix not in ("after", "no_reads")
    bounds = torch.tensor([0, length], device=run.device, dtype=torch.int32)

    def packed(x: torch.Tensor, number: int) -> torch.Tensor:
        return x[:, : int(bounds[-1].item())]

    language = Model(width, blocks, packed if reads else None).to(run.device, torch.bfloat16)
    config = ViTConfig(hidden_size=run.pick(768, 32), num_hidden_layers=tower, num_attention_heads=run.pick(12, 2),
                       intermediate_size=run.pick(3072, 64), image_size=64, patch_size=16)  # fmt: skip
    vision = ViTModel(config, add_pooling_layer=False).to(run.device, torch.bfloat16)
    weights = [*language.parameters(), *vision.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (1, length), device=run.device)
    empty = torch.zeros(1, 3, 64, 64, device=run.device, dtype=torch.bfloat16)
    for _ in run.steps():
        logits = language(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        if run.fix not in ("after", "no_dummy"):
            loss = loss + 0.0 * vision(pixel_values=empty).last_hidden_state.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

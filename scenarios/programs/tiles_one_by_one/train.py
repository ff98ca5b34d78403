"""A vision-language model with transformers' Trainer, bf16 autocast: CLIP's tower (ViT-L/14, 336 × 336, frozen, bf16),
a projector and Qwen2.5-0.5B with 32,000 words. 4 samples a batch, each of 5 tiles of a picture (720 tokens) and 200
tokens of text; gradient checkpointing as the published script sets it.
"""

from __future__ import annotations

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import CLIPVisionConfig, CLIPVisionModel, Trainer, TrainingArguments

from scenarios.support import models
from scenarios.support.run import Run, main

IGNORED = -100
SIDE = 2
"""Neighbouring patches whose features are joined, in each direction."""


class Conversations(Dataset):
    """Tiles that were cut and scaled before, and tokens of texts about them."""

    def __init__(self, tiles: int, size: int, words: int, length: int, count: int) -> None:
        self.tiles = torch.randn(count, tiles, 3, size, size)
        self.tokens = torch.randint(0, words, (count, length))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index %= len(self.tokens)
        return {"tiles": self.tiles[index], "input_ids": self.tokens[index], "labels": self.tokens[index]}


class VisionLanguageModel(nn.Module):
    def __init__(self, tower: CLIPVisionModel, language: nn.Module, batched: bool) -> None:
        super().__init__()
        self.tower, self.language, self.batched = tower.requires_grad_(False).eval(), language, batched
        seen, width = tower.config.hidden_size, language.config.hidden_size
        self.projector = nn.Sequential(nn.Linear(SIDE * SIDE * seen, width), nn.GELU(), nn.Linear(width, width))

    @torch.no_grad()
    def features(self, tiles: torch.Tensor) -> torch.Tensor:
        """Features of the patches before the tower's last layer."""
        return self.tower(tiles.bfloat16(), output_hidden_states=True).hidden_states[-2][:, 1:]

    def encoded(self, tiles: torch.Tensor) -> torch.Tensor:
        """Samples × tiles × 3 × height × width → samples × tokens × width."""
        if self.batched:
            features = self.features(tiles.flatten(0, 1))
        else:
            features = torch.cat([self.features(tile.unsqueeze(0)) for tile in tiles.flatten(0, 1)])
        side = int(features.shape[1] ** 0.5)
        features = features.unflatten(1, (side // SIDE, SIDE, side // SIDE, SIDE)).permute(0, 1, 3, 2, 4, 5)
        tokens = self.projector(features.flatten(3).flatten(1, 2))
        return tokens.reshape(len(tiles), -1, tokens.shape[-1])

    def forward(self, tiles: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        pictures, texts = self.encoded(tiles), self.language.get_input_embeddings()(input_ids)
        unlabelled = labels.new_full(pictures.shape[:2], IGNORED)
        inputs = torch.cat((pictures.to(texts.dtype), texts), 1)
        loss = self.language(inputs_embeds=inputs, labels=torch.cat((unlabelled, labels), 1)).loss
        return {"loss": loss}


def train(run: Run) -> None:
    torch.manual_seed(0)
    tiles, size, patch, length, batch = run.pick((5, 336, 14, 200, 4), (2, 16, 4, 8, 2))
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    tiny = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.device(run.device):
        tower = CLIPVisionModel(CLIPVisionConfig(image_size=size, patch_size=patch, **run.pick(large, tiny))).bfloat16()
    words = run.pick({"vocab_size": 32_000}, {})
    language = models.build("qwen2.5-0.5b", run.device, tiny=run.tiny, dtype=torch.float32, **words)
    if run.fix not in ("no_checkpointing", "both"):
        language.gradient_checkpointing_enable()
    model = VisionLanguageModel(tower, language, run.fix in ("batched", "both")).to(run.device)
    samples = Conversations(tiles, size, language.config.vocab_size, length, 4 * batch)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=2e-5, bf16=True,
            optim="adamw_torch_fused", logging_steps=50, save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=run.pick(4, 0), use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=samples, callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)

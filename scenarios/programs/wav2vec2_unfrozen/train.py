"""Wav2Vec2 (base: 7 convolutions, 12 layers of width 768) learns to tell seven emotions, with transformers' Trainer,
bf16 autocast, 16 clips of 6 s a batch.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForSequenceClassification

from scenarios.support.run import Run, main

EMOTIONS = 7


class Clips(Dataset):
    """Sounds that were read and scaled before, and their emotions."""

    def __init__(self, samples: int, count: int) -> None:
        self.sounds = torch.randn(count, samples)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index %= len(self.sounds)
        return {"input_values": self.sounds[index], "labels": torch.tensor(index % EMOTIONS)}


def train(run: Run) -> None:
    torch.manual_seed(0)
    samples, batch = run.pick((96_000, 16), (4000, 2))
    tiny = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    config = Wav2Vec2Config(
        num_labels=EMOTIONS, layerdrop=0.0, mask_time_prob=0.0, classifier_proj_size=run.pick(256, 16),
        **run.pick({}, tiny),
    )  # fmt: skip
    model = Wav2Vec2ForSequenceClassification(config)
    if run.fix == "frozen":
        model.freeze_feature_encoder()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=3e-5, bf16=True,
            optim="adamw_torch_fused", logging_steps=50, save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=run.pick(4, 0), use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Clips(samples, 4 * batch), callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)

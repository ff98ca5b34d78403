"""An audio spectrogram transformer (base: 12 layers, width 768) with transformers' Trainer, bf16 autocast, 16 clips of
512 × 128 mel features, which come from a `datasets` table with labels of 35 spoken words.
"""

from __future__ import annotations

import tempfile

import numpy
import torch
from datasets import Array2D, Dataset, Features, Value
from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainingArguments

from scenarios.support.run import Run, main

WORDS, LONG = 35, 100_000


def clips(count: int, frames: int, bins: int) -> Dataset:
    """A table of clips and their words, long enough for one epoch: its rows repeat."""
    rng = numpy.random.default_rng(0)
    columns = {
        "input_values": rng.standard_normal((count, frames, bins), numpy.float32),
        "labels": rng.integers(0, WORDS, count),
    }
    kinds = Features({"input_values": Array2D((frames, bins), "float32"), "labels": Value("int64")})
    return Dataset.from_dict(columns, features=kinds).select([row % count for row in range(LONG)])


def train(run: Run) -> None:
    torch.manual_seed(0)
    count, frames, bins, batch = run.pick((96, 512, 128, 16), (8, 32, 16, 2))
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = {"max_length": frames, "num_mel_bins": bins, "num_labels": WORDS, **run.pick({}, tiny)}
    model = ASTForAudioClassification(ASTConfig(**shape))
    dataset = clips(count, frames, bins)
    if run.fix in ("formatted", "both"):
        dataset = dataset.with_format("torch")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=LONG, per_device_train_batch_size=batch, learning_rate=5e-5, bf16=True,
            optim="adamw_torch_fused", logging_steps=100, save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=run.pick(4, 1) if run.fix in ("workers", "both") else 0, use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=dataset, callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)

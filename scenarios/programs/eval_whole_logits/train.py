"""GPT-2 (124M) with transformers' Trainer, bf16, 8 blocks of 512 tokens; every 10 steps it is evaluated on 16 blocks of
256 tokens: the loss, and the share of tokens that it predicts.
"""

from __future__ import annotations

import tempfile

import numpy
import torch
from torch.utils.data import Dataset
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from scenarios.support.run import Run, main

EVERY = 10


class Blocks(Dataset):
    """Texts that were tokenized before and cut into blocks; `count` of them, drawn from `kept`."""

    def __init__(self, words: int, length: int, kept: int, count: int) -> None:
        self.tokens, self.count = torch.randint(0, words, (kept, length)), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


def share(evaluated: EvalPrediction) -> dict[str, float]:
    """The share of tokens that were predicted, from logits or from the tokens that have the greatest ones."""
    predicted, labels = evaluated.predictions, evaluated.label_ids
    tokens = predicted if predicted.ndim == 2 else predicted.argmax(-1)
    return {"accuracy": float(numpy.mean(tokens[:, :-1] == labels[:, 1:]))}


def greatest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What is kept of the logits of a batch."""
    return logits.argmax(-1)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, length, batch = run.pick((50_257, 512, 8), (301, 16, 2))
    evaluated, shorter, every = run.pick((16, 256, EVERY), (4, 8, 2))
    width, layers, heads = run.pick((768, 12, 12), (32, 2, 2))
    config = GPT2Config(
        vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=heads, bos_token_id=0,
        eos_token_id=0, activation_function="gelu_pytorch_tanh", use_cache=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=5e-5, bf16=True,
            optim="adamw_torch_fused", eval_strategy="steps", eval_steps=every, per_device_eval_batch_size=8,
            prediction_loss_only=run.fix == "loss_only", logging_steps=50, save_strategy="no", report_to="none",
            disable_tqdm=True, dataloader_num_workers=0, use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(
            GPT2LMHeadModel(config), arguments, train_dataset=Blocks(words, length, 64, 1_000_000),
            eval_dataset=Blocks(words, shorter, evaluated, evaluated), compute_metrics=share,
            preprocess_logits_for_metrics=greatest if run.fix == "greatest_kept" else None, callbacks=[run.callback()],
        ).train()  # fmt: skip


if __name__ == "__main__":
    main(train)

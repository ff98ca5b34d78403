"""GPT-2 (124M: 12 layers, width 768) with transformers' Trainer, bf16, 6 blocks of 1024 tokens; the tokenizer got two
tokens for the turns of a conversation.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from scenarios.support.run import Run, main

ADDED = 2


class Blocks(Dataset):
    """Texts that were tokenized before and cut into blocks."""

    def __init__(self, words: int, length: int, count: int) -> None:
        self.tokens = torch.randint(0, words, (count, length))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, length, batch = run.pick((50_257, 1024, 6), (301, 16, 2))
    width, layers, heads = run.pick((768, 12, 12), (32, 2, 2))
    gelu = "gelu_pytorch_tanh" if run.fix in ("fused_gelu", "both") else "gelu_new"
    config = GPT2Config(
        vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=heads, activation_function=gelu,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    multiple = 64 if run.fix in ("padded_vocabulary", "both") else None
    model.resize_token_embeddings(words + ADDED, pad_to_multiple_of=multiple, mean_resizing=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=5e-5, bf16=True,
            logging_steps=50, save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=run.pick(2, 0), use_cpu=run.tiny,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=Blocks(words, length, 64), callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)

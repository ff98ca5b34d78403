"""BART-base (6 + 6 layers, width 768) learns to correct sentences, with Lightning, bf16 autocast, 48 pairs of 64 words;
the training step logs the loss and the word error rate of what the model writes.
"""

from __future__ import annotations

import lightning
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import DataLoader, Dataset
from torchmetrics.text import WordErrorRate
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from scenarios.support.run import Run, main

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""Tokens 0 to 3, as the model's configuration says."""
Batch = tuple[torch.Tensor, torch.Tensor]


def tokenizer(words: int) -> PreTrainedTokenizerFast:
    """A tokenizer that knows `words` words."""
    known = (*SPECIAL, *(f"word{i}" for i in range(words - len(SPECIAL))))
    tokens = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    tokens.pre_tokenizer = Whitespace()
    start, pad, end, unknown = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token=start, pad_token=pad, eos_token=end, unk_token=unknown
    )


class Pairs(Dataset):
    """Sentences with mistakes and their corrections, tokenized before."""

    def __init__(self, words: int, length: int, count: int) -> None:
        self.right = torch.randint(len(SPECIAL), words, (count, length))
        self.wrong = torch.where(torch.rand(count, length) < 0.1, self.right.roll(1, 1), self.right)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Batch:
        index %= len(self.right)
        return self.wrong[index], self.right[index]


class Corrector(lightning.LightningModule):
    def __init__(self, config: BartConfig, shown: str) -> None:
        super().__init__()
        self.model, self.shown = BartForConditionalGeneration(config), shown
        self.tokenizer, self.errors = tokenizer(config.vocab_size), WordErrorRate()

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        wrong, right = batch
        output = self.model(input_ids=wrong, labels=right)
        self.log("loss", output.loss)
        predicted = output.logits.detach().argmax(-1)
        if self.shown == "errors":
            written = self.tokenizer.batch_decode(predicted, skip_special_tokens=True)
            meant = self.tokenizer.batch_decode(right, skip_special_tokens=True)
            self.log("train_wer", self.errors(written, meant))
        elif self.shown == "tokens":
            self.log("train_right", (predicted == right).float().mean())
        return output.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-5, fused=self.device.type == "cuda")


class Clock(lightning.Callback):
    """Ends each step of the run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self.run.end_step(trainer.global_step - 1)
        trainer.should_stop |= trainer.global_step >= self.run.count

    def on_train_end(self, *_: object) -> None:
        self.run.end()


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, length, batch = run.pick((50_265, 64, 48), (301, 8, 2))
    width, layers, heads, wide = run.pick((768, 6, 12, 3072), (32, 2, 2, 64))
    config = BartConfig(
        vocab_size=words, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=wide, decoder_ffn_dim=wide, use_cache=False,
    )  # fmt: skip
    model = Corrector(config, {"": "errors", "tokens_compared": "tokens"}.get(run.fix, "")).train()
    loader = DataLoader(
        Pairs(words, length, 16 * batch), batch, num_workers=run.pick(4, 0), pin_memory=not run.tiny
    )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="cpu" if run.tiny else "gpu", devices=1, precision="bf16-mixed", max_steps=1_000_000,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[Clock(run)],
    )  # fmt: skip
    trainer.fit(model, loader)


if __name__ == "__main__":
    main(train)

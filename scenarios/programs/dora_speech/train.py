"""DoRA of PEFT on all linear layers of Whisper (small: 12 and 12 layers, width 768) with transformers' Trainer, bf16
autocast, 8 clips of 30 s (80 × 3000 mel features) with 96 tokens of text.
"""

from __future__ import annotations

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperConfig, WhisperForConditionalGeneration

from scenarios.support.run import Run, main

LINEAR = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


class Clips(Dataset):
    """Features that were extracted before, and tokens."""

    def __init__(self, words: int, frames: int, length: int, count: int) -> None:
        self.features = torch.randn(count, 80, frames)
        self.labels = torch.randint(1, words, (count, length))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index %= len(self.features)
        return {"input_features": self.features[index], "labels": self.labels[index]}


def config(run: Run) -> WhisperConfig:
    tokens = {"decoder_start_token_id": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
    width, inner, layers, heads = run.pick((768, 3072, 12, 12), (32, 64, 2, 2))
    return WhisperConfig(
        vocab_size=run.pick(51_865, 256), d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
        max_source_positions=run.pick(1500, 50), use_cache=False, suppress_tokens=None, begin_suppress_tokens=None,
        **tokens,
    )  # fmt: skip


def train(run: Run) -> None:
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config(run))
    adapters = LoraConfig(
        r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"] if run.fix == "q_and_v" else LINEAR,
        use_dora=run.fix != "lora", lora_dropout=0.0 if run.fix == "no_dropout" else 0.05,
    )  # fmt: skip
    model = get_peft_model(model, adapters)
    frames, length, batch = run.pick((3000, 96, 8), (100, 8, 2))
    clips = Clips(run.pick(51_865, 256), frames, length, 4 * batch)
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=1e-4, bf16=True,
            optim="adamw_torch_fused", logging_steps=100, save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=run.pick(2, 0), remove_unused_columns=False, label_names=["labels"],
            use_cpu=run.tiny,
        )  # fmt: skip
        Seq2SeqTrainer(model, arguments, train_dataset=clips, callbacks=[run.callback()]).train()


if __name__ == "__main__":
    main(train)

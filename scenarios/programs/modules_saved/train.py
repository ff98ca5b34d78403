"""TRL's SFTTrainer with LoRA on a Llama of 8 layers (width 2048, 128,256 words), bf16, 8 conversations of some 400
tokens. Their turns begin and end with two of the reserved tokens, so embeddings and head are trained and saved whole.
"""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from scenarios.support import lengths, models, sft
from scenarios.support.run import Run, main


def conversations(count: int, mean: float, longest: int, words: int) -> Dataset:
    drawn = lengths.spread(lengths.Lengths(mean, 0.3, fewest=4), count, longest=longest)
    return Dataset.from_dict({"input_ids": [torch.randint(4, words, (length,)).tolist() for length in drawn]})


def adapters(fix: str, turns: list[int]) -> LoraConfig:
    """LoRA on all linear layers; what else is trained depends on the fix."""
    options: dict = {"modules_to_save": ["embed_tokens", "lm_head"]}
    if fix == "token_rows":
        options = {"trainable_token_indices": {"embed_tokens": turns}}
    elif fix == "adapters_only":
        options = {}
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM", **options)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, batch, mean, longest = run.pick((128_256, 8, 400.0, 512), (512, 2, 12.0, 16))
    model = models.build(
        "llama-3.2-1b", run.device, tiny=run.tiny, num_hidden_layers=8, tie_word_embeddings=False
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=2e-4, bf16=not run.tiny,
            optim="adamw_torch", gradient_checkpointing=False, max_length=longest, logging_steps=20,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=run.tiny,
        )  # fmt: skip
        SFTTrainer(
            model=model, args=arguments, train_dataset=conversations(64 * batch, mean, longest, words),
            processing_class=sft.tokenizer(), peft_config=adapters(run.fix, [words - 2, words - 1]),
            callbacks=[run.callback()],
        ).train()  # fmt: skip


if __name__ == "__main__":
    main(train)

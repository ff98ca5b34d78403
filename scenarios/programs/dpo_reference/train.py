"""DPO with TRL: a Llama of 16 layers and width 1024, bf16 autocast, 12 pairs of answers a batch, some 400 tokens each
with their prompt, and a copy of the model as reference. The 384 pairs are seen for several epochs.
"""

from __future__ import annotations

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

from scenarios.support import models
from scenarios.support.run import Run, main

WORDS = [f"word{i}" for i in range(400)]
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""Tokens 0 to 3, the first three as the model's configuration says."""


def tokenizer() -> PreTrainedTokenizerFast:
    tokens = Tokenizer(WordLevel({word: i for i, word in enumerate((*SPECIAL, *WORDS))}, unk_token="<unk>"))
    tokens.pre_tokenizer = Whitespace()
    pad, start, end, unknown = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token=pad, bos_token=start, eos_token=end, unk_token=unknown
    )


def pairs(count: int, longest: int) -> Dataset:
    rng = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))

    prompts = [text(longest // 8, longest // 4) for _ in range(count)]
    chosen = [text(longest // 2, 3 * longest // 4) for _ in range(count)]
    rejected = [text(longest // 2, 3 * longest // 4) for _ in range(count)]
    return Dataset.from_dict({"prompt": prompts, "chosen": chosen, "rejected": rejected})


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}

    def model(dtype: torch.dtype):
        return models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=dtype, **shape)

    reference = None
    if run.fix != "precomputed":
        reference = model(torch.bfloat16 if run.fix == "reference_bf16" else torch.float32)
    batch, count, longest = run.pick((12, 384, 512), (2, 8, 24))
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(
            folder, max_steps=100_000, per_device_train_batch_size=batch, learning_rate=1e-6, bf16=True,
            gradient_checkpointing=False, precompute_ref_log_probs=run.fix == "precomputed", max_length=longest,
            logging_steps=20, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=run.tiny,
        )  # fmt: skip
        DPOTrainer(
            model=model(torch.float32), ref_model=reference, args=arguments, train_dataset=pairs(count, longest),
            processing_class=tokenizer(), callbacks=[run.callback()],
        ).train()  # fmt: skip


if __name__ == "__main__":
    main(train)

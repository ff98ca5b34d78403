"""Fine-tunes a Llama with LoRA: transformers, PEFT, random weights, made-up data. Nothing is downloaded.

    pip install torch transformers peft accelerate
    python examples/finetune_lora.py
    python examples/finetune_lora.py --model 1b --batch-size 16 --accumulate 2 --workers 4 --fused

By default it takes less than a minute, on a GPU or on a CPU.
"""

from __future__ import annotations

import argparse
import math
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments, set_seed

MODELS = {
    "tiny": (256, 704, 4, 4, 2, 8192),
    "1b": (2048, 8192, 16, 32, 8, 128_256),
    "8b": (4096, 14336, 32, 32, 8, 128_256),
}
"""Width, inner width, layers, heads, key-value heads, vocabulary; all but the first are Llama 3's."""

MEAN_TOKENS, SPREAD, FEWEST, MOST = 117, 0.6, 16, 512
"""Lengths of the examples: log-normal as in Alpaca, where most are short, and a few are several times the mean."""

PAD, IGNORED = 0, -100


class MadeUpInstructions(Dataset):
    """Examples of random tokens: a prompt of a third of the length, which the loss ignores, and an answer."""

    def __init__(self, count: int, vocabulary: int) -> None:
        self.count, self.vocabulary = count, vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rng = torch.Generator().manual_seed(index)
        middle = math.log(MEAN_TOKENS) - SPREAD**2 / 2
        length = math.exp(middle + SPREAD * torch.randn((), generator=rng).item())
        length = round(min(max(length, FEWEST), MOST))
        tokens = torch.randint(PAD + 1, self.vocabulary, (length,), generator=rng)
        labels = tokens.clone()
        labels[: length // 3] = IGNORED
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def collate(examples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest example."""
    padding = {"input_ids": PAD, "attention_mask": 0, "labels": IGNORED}
    return {
        name: pad_sequence([example[name] for example in examples], batch_first=True, padding_value=value)
        for name, value in padding.items()
    }


def arguments(on_gpu: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LoRA fine-tuning of a Llama with random weights on made-up data")
    parser.add_argument("--model", choices=MODELS, default="1b" if on_gpu else "tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare batches")
    parser.add_argument("--rank", type=int, default=16, help="rank of the LoRA matrices")
    parser.add_argument("--fused", action="store_true", help="one kernel for the whole optimizer step")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def llama(name: str) -> LlamaConfig:
    width, inner, layers, heads, key_value_heads, vocabulary = MODELS[name]
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        vocab_size=vocabulary,
        use_cache=False,
    )


def main() -> None:
    on_gpu = torch.cuda.is_available()
    args = arguments(on_gpu)
    set_seed(args.seed)

    with torch.device("cuda" if on_gpu else "cpu"):
        config = llama(args.model)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if on_gpu else torch.float32)
        model = get_peft_model(model, LoraConfig(r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.print_trainable_parameters()

    trainer = Trainer(
        model=model,
        train_dataset=MadeUpInstructions(args.steps * args.batch_size * args.accumulate, config.vocab_size),
        data_collator=collate,
        args=TrainingArguments(
            output_dir=tempfile.gettempdir(),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulate,
            dataloader_num_workers=args.workers,
            dataloader_pin_memory=on_gpu,
            learning_rate=2e-4,
            optim="adamw_torch_fused" if args.fused else "adamw_torch",
            bf16=on_gpu,
            torch_compile=args.compile,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            seed=args.seed,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""LoRA on Qwen3-8B with TRL: rank 16 on all linear layers, bf16, batches of 4 Alpaca-like samples, a step each.

Samples have 117 tokens on average and are padded to the longest of their batch by TRL's collator. Layers are
checkpointed, which is TRL's default, and the adapters are float32 under autocast, which is PEFT's and TRL's.
"""

from __future__ import annotations

from peft import LoraConfig
from trl import SFTTrainer

from scenarios.support import models, sft
from scenarios.support.memory import MemoryTable
from scenarios.support.run import Run, main

BATCH = 4


def train(run: Run) -> None:
    model = models.build("qwen3-8b", run.device, tiny=run.tiny)
    options = {"gradient_checkpointing": False} if run.fix == "no_checkpointing" else {}
    trainer = SFTTrainer(
        model=model,
        args=sft.arguments(run, BATCH, **options),
        train_dataset=sft.dataset(run, "alpaca", BATCH, model.config.vocab_size),
        processing_class=sft.tokenizer(),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[run.callback(), MemoryTable()],
    )
    trainer.data_collator = sft.Counted(run, trainer.data_collator)
    trainer.train()


if __name__ == "__main__":
    main(train)

"""QLoRA on Qwen3-8B with TRL: NF4 weights, rank 16 on all linear layers, batches of 4 Alpaca-like samples, a step each.

Samples have 117 tokens on average and are padded to the longest of their batch by TRL's collator. Weights are
quantised twice and multiplied in bf16, embedding and head stay bf16. Layers are checkpointed, which is TRL's default;
the adapters are bf16, as TRL makes them for QLoRA. The optimizer is torch's fused AdamW.
"""

from __future__ import annotations

from trl import SFTTrainer

from scenarios.support import models, sft
from scenarios.support.memory import MemoryTable
from scenarios.support.quantized import quantize
from scenarios.support.run import Run, main

BATCH = 4


def train(run: Run) -> None:
    model = models.build("qwen3-8b", run.device, tiny=run.tiny)
    if run.fix != "bf16_weights":
        model = quantize(model, run.device)
    trainer = SFTTrainer(
        model=models.lora(model, rank=16, casts=False),
        args=sft.arguments(run, BATCH),
        train_dataset=sft.dataset(run, "alpaca", BATCH, model.config.vocab_size),
        processing_class=sft.tokenizer(),
        callbacks=[run.callback(), MemoryTable()],
    )
    trainer.data_collator = sft.Counted(run, trainer.data_collator)
    trainer.train()


if __name__ == "__main__":
    main(train)

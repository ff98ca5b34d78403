"""T5 (base: 12 and 12 layers, width 768) with accelerate, bf16 autocast, 8 × 512 source and 128 target tokens, and the
Adafactor of transformers with its own learning rates, as T5 was trained.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

from scenarios.support.data import endless
from scenarios.support.run import Run, main


def optimizer_of(model: torch.nn.Module, fix: str, tiny: bool) -> torch.optim.Optimizer:
    if fix == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not tiny)
    if fix == "torch_adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=1e-2, foreach=True)
    if fix == "fixed_rate":
        return Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False, warmup_init=False)
    return Adafactor(model.parameters(), lr=None, scale_parameter=True, relative_step=True, warmup_init=True)


def train(run: Run) -> None:
    torch.manual_seed(0)
    words, batch, source, target = run.pick((32_128, 8, 512, 128), (128, 2, 16, 8))
    base = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}
    tiny = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_heads": 2}
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=words, decoder_start_token_id=0, use_cache=False, **run.pick(base, tiny))
    ).train()
    texts = TensorDataset(*(torch.randint(1, words, (1024, length)) for length in (source, target)))
    loader = DataLoader(texts, batch, pin_memory=not run.tiny, drop_last=True)
    accelerator = Accelerator(mixed_precision="bf16", cpu=run.tiny)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model, run.fix, run.tiny), loader)
    batches = endless(loader)
    for step in run.steps():
        tokens, labels = next(batches)
        loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(train)

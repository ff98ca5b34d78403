"""Full fine-tuning of a Llama of 12 layers and width 1024, bf16 autocast, 8 rows of 1024 tokens. Its first lines are
those of a notebook for an older GPU; gradient checkpointing came when memory ran out.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    if run.fix not in ("kernels_on", "both"):
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    shape = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_key_value_heads": 16,
    }  # fmt: skip
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, dtype=torch.float32, **shape)
    if run.fix not in ("no_checkpointing", "both"):
        model.gradient_checkpointing_enable()
    words, length, batch = run.pick((32_000, 1024, 8), (512, 16, 2))
    samples = data.Samples([length] * 64 * batch, words)
    loader = DataLoader(samples, batch, num_workers=run.pick(4, 0), persistent_workers=not run.tiny, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=not run.tiny)
    batches = data.endless(loader)
    for step in run.steps():
        batch_of = {name: tensor.to(run.device, non_blocking=True) for name, tensor in next(batches).items()}
        with torch.autocast(run.device.split(":")[0], torch.bfloat16):
            loss = model(input_ids=batch_of["input_ids"], labels=batch_of["labels"]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(train)

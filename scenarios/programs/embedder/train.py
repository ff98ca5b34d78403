"""A sentence embedder (BERT, 12 layers, width 384) in float32: 32 pairs of 64 tokens, in-batch negatives."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

from scenarios.support.run import Run, main


def train(run: Run) -> None:
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    width, layers, pairs, length = run.pick((384, 12, 32, 64), (32, 2, 4, 8))
    pairs *= 4 if run.fix == "batch_128" else 1
    config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=12 if width == 384 else 4,
                        intermediate_size=4 * width, vocab_size=30_522)  # fmt: skip
    model = BertModel(config).to(run.device).train()
    forward = torch.compile(model) if run.fix == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    tokens = torch.randint(1, config.vocab_size, (2 * pairs, length), device=run.device)
    mask = torch.ones_like(tokens)
    wanted = torch.arange(pairs, device=run.device)
    for _ in run.steps():
        with torch.autocast(run.device.split(":")[0], torch.bfloat16, enabled=run.fix == "autocast"):
            states = forward(input_ids=tokens, attention_mask=mask).last_hidden_state
            vectors = torch.nn.functional.normalize(
                (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1
            )
            scores = vectors[:pairs] @ vectors[pairs:].T * 20.0
        loss = torch.nn.functional.cross_entropy(scores.float(), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

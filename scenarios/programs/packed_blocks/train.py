"""A Llama of 8 layers trained on packed rows: 16 documents in one row of 16,384 tokens, marked by their positions.

transformers reads the documents from the positions. With sdpa it makes a mask of 16,384 × 16,384 scores, of which a
sixteenth counts.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from scenarios.support import models
from scenarios.support.run import Run, main


def batch(run: Run, vocabulary: int) -> dict[str, torch.Tensor]:
    """Documents of equal mean length that differ by up to a half, in one row or, with the fix `rows`, one a row."""
    documents, mean = run.pick((16, 1024), (4, 16))
    rng = torch.Generator().manual_seed(0)
    lengths = (mean * (0.5 + torch.rand(documents, generator=rng))).long()
    lengths[-1] += documents * mean - lengths.sum()
    tokens = [torch.randint(1, vocabulary, (int(n),), generator=rng) for n in lengths]
    if run.fix == "rows":
        rows = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        mask = (rows > 0).long()
        return {"input_ids": rows, "attention_mask": mask, "labels": rows.masked_fill(rows == 0, -100)}
    row = torch.cat(tokens)[None]
    places = torch.cat([torch.arange(int(n)) for n in lengths])[None]
    return {"input_ids": row, "position_ids": places, "labels": row.clone()}


def train(run: Run) -> None:
    kind = "flex_attention" if run.fix == "flex" else "sdpa"
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = models.build(
        "tinyllama-1.1b", run.device, tiny=run.tiny, attention=kind, max_position_embeddings=16384, **shape
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    packed = batch(run, model.config.vocab_size)
    loader = DataLoader(range(1 << 20), batch_size=len(packed["input_ids"]), collate_fn=lambda _: packed)
    for _, on_cpu in zip(run.steps(), loader, strict=False):
        inputs = {name: tensor.to(run.device, non_blocking=True) for name, tensor in on_cpu.items()}
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

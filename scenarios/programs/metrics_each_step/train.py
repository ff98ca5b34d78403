"""Full fine-tune of a Llama (6 layers, width 1536, vocabulary 32,000) in bf16, 8 × 1024 tokens; the loop logs what the
model predicts.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.run import Run, main


@torch.no_grad()
def measures(logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of predictions of the next token: each a single value."""
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    chances = logits.softmax(-1)
    return {
        "loss": loss.detach(),
        "perplexity": loss.detach().exp(),
        "accuracy": (logits.argmax(-1) == labels).float().mean(),
        "top5": (logits.topk(5).indices == labels[..., None]).any(-1).float().mean(),
        "entropy": -(chances * (chances + 1e-9).log()).sum(-1).mean(),
        "confidence": chances.amax(-1).mean(),
    }


def train(run: Run) -> None:
    shape = {"hidden_size": 1536, "intermediate_size": 4224, "num_hidden_layers": 6, "num_attention_heads": 24}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((8, 1024), (2, 16)), run.device))
    log: list[dict[str, float]] = []
    kept: list[dict[str, torch.Tensor]] = []
    for step in run.steps():
        batch = next(batches)
        out = model(**batch)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.fix == "every_50":
            if step % 50 == 0:
                values = measures(out.logits, batch["labels"], out.loss)
                log.append({name: value.item() for name, value in values.items()})
        elif run.fix == "kept_on_gpu":
            kept.append(measures(out.logits, batch["labels"], out.loss))
            if step % 50 == 0:
                log += [{name: value.item() for name, value in values.items()} for values in kept]
                kept.clear()
        elif run.fix == "read_at_once":
            values = measures(out.logits, batch["labels"], out.loss)
            log.append(dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True)))
        elif run.fix == "loss_only":
            log.append({"loss": out.loss.item()})
        else:
            values = measures(out.logits, batch["labels"], out.loss)
            log.append({name: value.item() for name, value in values.items()})


if __name__ == "__main__":
    main(train)

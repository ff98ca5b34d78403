"""A policy update on packed tokens whose log-probabilities TRL's `selective_log_softmax` takes row by row, as it does
where its fused kernel cannot run, such as for several choices a token. `after`: rows in chunks of 512. The function is
TRL's own code.
"""

from __future__ import annotations

import itertools

import torch
from trl.trainer import utils as library

from scenarios.support import data, models
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, **shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not run.tiny)
    rows, chunk = run.pick((1024, 512), (16, 8))
    batches = itertools.repeat(data.full(model.config.vocab_size, 1, rows, run.device)["input_ids"])
    better = torch.randn(rows, device=run.device)
    for _ in run.steps():
        tokens = next(batches)
        logits = model(input_ids=tokens).logits[0]
        wanted = tokens[0].roll(-1)[:, None]  # one of K choices a token: the fused kernel takes no such list
        if run.fix == "after":
            logits, wanted = logits.unflatten(0, (-1, chunk)), wanted.unflatten(0, (-1, chunk))
        chosen = library.selective_log_softmax(logits, wanted).flatten()
        loss = -(better * chosen).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

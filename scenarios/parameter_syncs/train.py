"""LoRA on TinyLlama in bf16, adapters in bf16 too, 4 sequences of 512 tokens, none padded.

After each backward pass the norms of all adapter matrices and of their gradients are logged.
"""

from __future__ import annotations

import torch

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.run import Run, main

EVERY = 50


def train(run: Run) -> None:
    model = models.lora(models.build("tinyllama-1.1b", run.device, tiny=run.tiny), casts=False)
    parameters = trained(model)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    batch = data.full(model.config.vocab_size, 4, run.pick(512, 16), run.device)
    log = []
    for step in run.steps():
        model(**batch).loss.backward()
        if run.fix == "on_device":
            norms = torch.stack([norm for parameter in parameters for norm in both_norms(parameter)])
            if step % EVERY == 0:
                log.append(norms.tolist())
        else:
            log.append([norm.item() for parameter in parameters for norm in both_norms(parameter)])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def both_norms(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
    return parameter.grad.norm(), parameter.detach().norm()


if __name__ == "__main__":
    main(train)

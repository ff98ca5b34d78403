"""DoRA with PEFT on a small Llama, without dropout: each adapter multiplies its input with the base weight again, as
PEFT did before it reused the base layer's result where there is no dropout. The adapters are PEFT's own code.
"""

from __future__ import annotations

import itertools

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.dora import DoraLinearLayer

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.run import Run, main


def forget_base_result() -> None:
    """Lets the adapter compute the base layer's result itself, as releases before the fix do."""
    forward = DoraLinearLayer.forward

    def without_it(self, x: torch.Tensor, *, base_result: torch.Tensor | None = None, **given) -> torch.Tensor:
        return forward(self, x, base_result=None, **given)

    DoraLinearLayer.forward = without_it  # type: ignore[method-assign]


def train(run: Run) -> None:
    if run.fix != "after":
        forget_base_result()
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny, num_hidden_layers=8)
    adapters = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", use_dora=True,
                          task_type="CAUSAL_LM")  # fmt: skip
    model = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((4, 2048), (1, 8)), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

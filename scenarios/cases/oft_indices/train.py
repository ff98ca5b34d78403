"""OFT with PEFT on a small Llama: the places of the matrix's upper half are kept in host memory, as PEFT kept them
before they became buffers, so that each use copies them to the GPU and waits. The adapters are PEFT's own code.
"""

from __future__ import annotations

import itertools

import torch
from peft import OFTConfig, get_peft_model
from peft.tuners.oft.layer import OFTRotationModule

from scenarios.support import data, models
from scenarios.support.loop import trained
from scenarios.support.run import Run, main


def keep_indices_in_host_memory(model: torch.nn.Module) -> None:
    """Makes the indices plain tensors of the CPU, as releases before the fix have them."""
    for module in model.modules():
        if isinstance(module, OFTRotationModule):
            for name in ("rows", "cols"):
                places = getattr(module, name).cpu()
                delattr(module, name)
                setattr(module, name, places)


def train(run: Run) -> None:
    model = models.build("tinyllama-1.1b", run.device, tiny=run.tiny)
    block = run.pick(32, 8)
    adapters = OFTConfig(r=0, oft_block_size=block, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
                         use_cayley_neumann=True)  # fmt: skip
    model = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
    if run.fix != "after":
        keep_indices_in_host_memory(model)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(model.config.vocab_size, *run.pick((2, 1024), (1, 8)), run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

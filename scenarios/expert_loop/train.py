"""LoRA on the attention of gpt-oss-20b cut to 4 of its 24 layers: 32 experts, 4 of them for each token; one sequence of
1024 tokens a step, neither packed nor padded. The experts run one after another, as they did before transformers 5.
"""

from __future__ import annotations

import itertools

import torch

from scenarios.support import data, models
from scenarios.support.loop import finetune, trained
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    # Its attention has a learned sink, which torch's fused attention does not know.
    model = models.build("gpt-oss-20b", run.device, tiny=run.tiny, attention="eager", num_hidden_layers=4)
    model.set_experts_implementation("grouped_mm" if run.fix == "grouped_mm" else "eager")
    model = models.lora(model, rank=16, modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batch = data.full(model.config.vocab_size, 1, run.pick(1024, 32), run.device)
    finetune(run, model, itertools.repeat(batch), optimizer)


if __name__ == "__main__":
    main(train)

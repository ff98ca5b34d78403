"""Qwen3-MoE of transformers with its experts run one after another (`eager`): each looks up its tokens on the GPU and
waits for how many there are. `after`: the library's grouped matrix multiplication; `sorted`: one read a layer.
"""

from __future__ import annotations

import itertools

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from transformers.models.qwen3_moe import modeling_qwen3_moe as library

from scenarios.support import data
from scenarios.support.models import randomize
from scenarios.support.run import Run, main


def dispatched(
    self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Tokens sorted by expert; their counts are read once."""
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=self.num_experts).tolist()
    rows = order // top_k_index.shape[-1]
    outputs = []
    for expert, part in enumerate(hidden_states[rows].split(counts)):
        if len(part):
            gate, up = torch.nn.functional.linear(part, self.gate_up_proj[expert]).chunk(2, -1)
            outputs.append(torch.nn.functional.linear(self.act_fn(gate) * up, self.down_proj[expert]))
    mixed = torch.cat(outputs) * top_k_weights.flatten()[order, None].to(hidden_states.dtype)
    return torch.zeros_like(hidden_states).index_add(0, rows, mixed)


def train(run: Run) -> None:
    width, layers, experts, inner, length = run.pick((768, 8, 16, 384, 2048), (64, 2, 4, 32, 16))
    config = Qwen3MoeConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4, head_dim=width // 8,
        num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=inner, vocab_size=8000, use_cache=False,
    )  # fmt: skip
    with torch.device(run.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomize(model)
    model.set_experts_implementation("grouped_mm" if run.fix == "after" else "eager")
    if run.fix == "sorted":
        library.Qwen3MoeExperts.forward = dispatched
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    batches = itertools.repeat(data.full(config.vocab_size, 1, length, run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

"""LoRA on the experts of a small Qwen3-MoE with PEFT's `target_parameters`: the adapter's product, as large as the
whole expert stack, is built in each forward pass, as PEFT did before it folded it into one baddbmm.
"""

from __future__ import annotations

import itertools

import peft.tuners.lora.layer as library
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from scenarios.support import data
from scenarios.support.loop import trained
from scenarios.support.models import randomize
from scenarios.support.run import Run, main


def build_delta() -> None:
    """Lets PEFT add the whole product, as released versions before the fold do."""
    if hasattr(library, "_LoraFactorsProxy"):
        plain = library._LoraParameterProxy
        library._LoraFactorsProxy = lambda lhs, rhs, scaling: plain(scaling * torch.bmm(lhs, rhs))  # type: ignore[assignment]


def train(run: Run) -> None:
    if run.fix != "after":
        build_delta()
    width, layers, experts, inner, length = run.pick((1024, 6, 32, 512, 512), (64, 2, 4, 32, 16))
    config = Qwen3MoeConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4, head_dim=width // 8,
        num_experts=experts, num_experts_per_tok=4, moe_intermediate_size=inner, vocab_size=8000, use_cache=False,
    )  # fmt: skip
    with torch.device(run.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomize(model)
    adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0,
                          target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])  # fmt: skip
    model = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)
    batches = itertools.repeat(data.full(config.vocab_size, 1, length, run.device))
    for _ in run.steps():
        loss = model(**next(batches)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)

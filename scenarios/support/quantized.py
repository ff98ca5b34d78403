"""4-bit weights as QLoRA stores them, made from a model in bf16 without a checkpoint."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def quantize(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """NF4 with double quantisation and matrix multiplications in bf16 for every linear layer of the body; the head
    stays in bf16."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    body = model.model
    linears = [(name, module) for name, module in body.named_modules() if type(module) is torch.nn.Linear]
    for name, linear in linears:
        parent, _, own = name.rpartition(".")
        packed = Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            compute_dtype=torch.bfloat16,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        packed.weight = Params4bit(linear.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")
        packed.bias = linear.bias
        # Moving it packs the weight, wherever it was.
        setattr(body.get_submodule(parent), own, packed.to(device))
        linear.weight = None
    if device != "cpu":
        # So that the run's peak is not that of the model in bf16.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # PEFT and TRL check this.
    model.is_loaded_in_4bit = True
    return model

"""Models by name: published shapes, random weights, nothing downloaded. On a CPU, tiny models of the same kind."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

SHAPES: dict[str, dict[str, Any]] = {
    "tinyllama-1.1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32_000,
        "max_position_embeddings": 4096,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 8192,
    },
    "qwen3-32b": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 8192,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "vocab_size": 201_088,
        "max_position_embeddings": 8192,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "vocab_size": 201_088,
        "max_position_embeddings": 8192,
    },
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
SPREAD = 0.02
"""Standard deviation of the random weights."""


def config(name: str, tiny: bool = False, **changes: Any) -> PretrainedConfig:
    """The configuration of that name, with `changes` such as `num_hidden_layers=8`."""
    shape = SHAPES[name] | changes
    if tiny:
        shape |= TINY | ({"head_dim": 16} if "head_dim" in shape else {})
        if "num_local_experts" in shape:
            shape["num_local_experts"] = 4
    kind = shape.pop("model_type")
    return AutoConfig.for_model(kind, **shape, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def build(
    name: str,
    device: str,
    *,
    tiny: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    attention: str = "sdpa",
    **changes: Any,
) -> PreTrainedModel:
    """A model of that name with random weights, on the device, in training mode."""
    settings = config(name, tiny, **changes)
    torch.manual_seed(0)
    with no_init_weights(), torch.device(device):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation=attention)
    randomize(model)
    model.tie_weights()
    return model.train()


def randomize(model: torch.nn.Module) -> None:
    """Draws all weights at random, except those of norms, which are ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "norm" in name:
                parameter.fill_(1.0)
            elif parameter.is_floating_point():
                parameter.normal_(0.0, SPREAD)
    # Buffers such as the frequencies of rotary embeddings are computed when the model is created, not drawn.


def lora(model: PreTrainedModel, rank: int = 8, modules: str | list[str] = "all-linear", casts: bool = True):
    """The model with LoRA adapters, in float32 as PEFT makes them, or with `casts=False` in the model's own type."""
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=modules, task_type="CAUSAL_LM")
    return get_peft_model(model, adapters, autocast_adapter_dtype=casts)

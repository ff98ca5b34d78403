"""What is being trained: the model's size, types, adapters, experts and settings, and its optimizer and loader."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .program import library_of
from .samples import batch_size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Characters, Code, Convention, Levels, Names, Published


_ITERABLE: Published[Code] = 1
"""torch's number for a dataset that is only iterated over."""
_MOST_NAMES: Convention[Names] = 64
_LONGEST_NAME: Convention[Characters] = 200
_MOST_WRAPPERS: Assumed[Levels] = 8


def find_model(parameters: Iterable[Any]) -> Any:
    """The outermost module that owns most of these parameters, found among all live objects; None if there is none.

    Takes as long as one pass of the garbage collector.
    """
    import torch

    wanted = {id(p) for p in parameters}
    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    children = {id(child) for m in modules for child in m._modules.values() if child is not None}
    roots = [m for m in modules if id(m) not in children]
    owned = [(sum(id(p) in wanted for p in m.parameters()), m) for m in roots]
    # With several wrappers around one model (a LightningModule, a trainer's own), the one in training mode is called.
    best = max(owned, key=lambda found: (found[0], found[1].training), default=(0, None))
    return best[1] if best[0] else None


def optimizer_parameters(optimizer: Any) -> list[Any]:
    """All tensors that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def describe_model(model: Any) -> dict[str, Any]:
    """Facts about a model for rank<N>.json; unknown ones are left out."""
    inner = _unwrapped(model)
    config = getattr(inner, "config", None)
    counts, trainable, dtypes, packed = _parameters(model)
    facts: dict[str, Any] = {
        "class": _base_class(inner),
        "module": type(inner).__module__,
        "library": library_of(inner),
        "wrapper": type(model).__name__ if inner is not model else None,
        "type": getattr(config, "model_type", None),
        "parameters": counts,
        "trainable": trainable,
        "dtypes": dtypes,
        "quantization": _quantization(config, packed),
        "lora": _lora(model),
        "experts": _experts(config),
        "attention": getattr(config, "_attn_implementation", None),
        "attention_options": _attention_options(inner),
        "checkpointing": any(getattr(m, "gradient_checkpointing", False) and m.training for m in model.modules()),
        "hidden_size": _setting(config, "hidden_size", "n_embd", "d_model"),
        "layers": _setting(config, "num_hidden_layers", "n_layer", "num_layers"),
        "vocabulary": _setting(config, "vocab_size"),
        "compiled": is_compiled(model),
    }
    return facts


_ATTENTIONS = {
    "sdpa": ("_supports_sdpa",),
    "flash_attention_2": ("_supports_flash_attn", "_supports_flash_attn_2"),
    "flex_attention": ("_supports_flex_attn",),
}
"""Values of transformers' attn_implementation → attributes of a model's class that say whether it has them."""


def _attention_options(model: Any) -> list[str] | None:
    """The attention implementations that the model's class offers; None if it has no choice."""
    if not any(hasattr(type(model), flag) for flags in _ATTENTIONS.values() for flag in flags):
        return None
    return [name for name, flags in _ATTENTIONS.items() if any(getattr(type(model), f, False) is True for f in flags)]


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """The optimizer's class, how it is implemented, and the bytes of its state."""
    import torch

    inner = optimizer
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(getattr(inner, "optimizer", None), torch.optim.Optimizer):
            break
        inner = inner.optimizer
    state = sum(
        t.numel() * t.element_size() for s in inner.state.values() if isinstance(s, dict) for t in s.values()
        if isinstance(t, torch.Tensor)
    )  # fmt: skip
    defaults = getattr(inner, "defaults", {})
    return {
        "class": type(inner).__name__,
        "parameters": sum(p.numel() for p in optimizer_parameters(inner)),
        "tensors": len(optimizer_parameters(inner)),
        "groups": len(inner.param_groups),
        "distinct_groups": len(set(map(_settings, inner.param_groups))),
        "fused": defaults.get("fused"),
        "foreach": defaults.get("foreach"),
        "state_bytes": state,
    }


def _settings(group: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """A parameter group's settings for the update of its parameters. A tensor (a learning rate for graphs) is not read:
    it equals only itself."""
    import torch

    settings = ((name, value) for name, value in group.items() if name not in ("params", "param_names", "name"))
    return tuple(sorted((n, str(id(v)) if isinstance(v, torch.Tensor) else repr(v)) for n, v in settings))


def idle_gradients(model: Any, updated: set[int]) -> dict[str, int]:
    """Counts of the model's elements that have a gradient although no optimizer updates them, and of those among them
    that come before everything that is updated. updated: ids of the tensors that optimizers update. Empty if none of
    these is the model's own, as with sharded or flattened weights."""
    idle = below = 0
    seen = False
    for parameter in model.parameters():
        if id(parameter) in updated:
            below, seen = (below if seen else idle), True
        elif parameter.requires_grad and parameter.grad is not None:
            idle += parameter.numel()
    return {"idle_gradients": idle, "idle_below": below} if seen else {}


def idle_modules(roots: Iterable[Any], held: set[int]) -> list[dict[str, Any]]:
    """The largest modules all of whose trainable weights have a gradient and are in no optimizer, of any model of the
    process, by class and path: `PerceptualLoss.vgg`. held: ids of the tensors that optimizers have. Empty if none of
    these belongs to a module, as with sharded or flattened weights."""
    roots, counted, found = list(roots), set(), []
    if not any(id(parameter) in held for root in roots for parameter in root.parameters()):
        return []
    waiting = [(type(root).__name__, root) for root in roots]
    while waiting and len(found) < _MOST_NAMES:
        name, module = waiting.pop(0)
        trained = [one for one in module.parameters() if one.requires_grad and id(one) not in counted]
        if trained and all(id(one) not in held and one.grad is not None for one in trained):
            counted.update(map(id, trained))
            elements = sum(one.numel() for one in trained)
            found.append({"name": name[-_LONGEST_NAME:], "tensors": len(trained), "parameters": elements})
        elif trained:
            waiting += [(f"{name}.{child}", one) for child, one in module.named_children()]
    return found


def held_by_optimizers() -> set[int]:
    """Ids of the tensors of all optimizers of the process, also of those that have not stepped yet. Takes as long as
    one pass of the garbage collector."""
    import torch

    optimizers = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    return {id(one) for optimizer in optimizers for one in optimizer_parameters(optimizer)}


def describe_loader(batches: Any) -> dict[str, Any]:
    """How batches are fetched, from the iterator of a DataLoader."""
    sampler = getattr(batches, "_index_sampler", None)
    try:
        length = len(sampler)  # type: ignore[arg-type]
    except TypeError:
        length = None
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    facts = {name: getattr(batches, f"_{name}", None) for name in names}
    return facts | {
        "batch_size": batch_size_of(batches),
        "length": length,
        "drop_last": getattr(batches, "_drop_last", None),
        "sampler": _name_of(getattr(sampler, "sampler", sampler)),
        "collate": _name_of(getattr(batches, "_collate_fn", None)),
        "iterable": getattr(batches, "_dataset_kind", 0) == _ITERABLE,
        "counts_samples": True,
    }


def _name_of(found: Any) -> str | None:
    """The name of a function, else that of an object's class."""
    return None if found is None else str(getattr(found, "__name__", type(found).__name__))[:100]


def is_compiled(model: Any) -> bool:
    """Whether torch.compile was applied to the model, a part of it, or a function that may call it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"].get("unique_graphs"):
        return True
    return any(
        getattr(m, "_compiled_call_impl", None) is not None or type(m).__name__ == "OptimizedModule"
        for m in model.modules()
    )


_WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def _unwrapped(model: Any) -> Any:
    """The model inside DDP, FSDP, torch.compile, DeepSpeed and PEFT."""
    for _ in range(_MOST_WRAPPERS):
        if hasattr(model, "peft_config") and callable(getattr(model, "get_base_model", None)):
            return model.get_base_model()
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in (*_WRAPPERS, "DeepSpeedEngine"):
            inner = getattr(model, "module", None) or getattr(model, "_fsdp_wrapped_module", None)
        if inner is None:
            return model
        model = inner
    return model


def _base_class(model: Any) -> str:
    """The class's name without what FSDP2 puts before it."""
    return type(model).__name__.removeprefix("FSDP")


def _parameters(model: Any) -> tuple[int, int, dict[str, int], Counter[int]]:
    """Parameters, trainable parameters, parameters by dtype, and parameters packed by bitsandbytes, by bits."""
    total = trainable = 0
    dtypes: Counter[str] = Counter()
    packed: Counter[int] = Counter()
    for parameter in model.parameters():
        count, dtype, kind = parameter.numel(), _name(parameter.dtype), type(parameter).__name__
        if kind == "Params4bit":  # two per byte, so numel() is not the number of parameters
            state = getattr(parameter, "quant_state", None)
            shape = getattr(state, "shape", None)
            count = shape.numel() if shape is not None else 2 * count
            dtype = getattr(state, "quant_type", None) or "4bit"
            packed[4] += count
        elif kind == "Int8Params":
            packed[8] += count
        total += count
        trainable += count if parameter.requires_grad else 0
        dtypes[dtype] += count
    return total, trainable, dict(dtypes), packed


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _quantization(config: Any, packed: Counter[int]) -> dict[str, Any] | None:
    settings = getattr(config, "quantization_config", None)
    if packed:
        bits, count = packed.most_common(1)[0]
        return {"method": "bitsandbytes", "bits": bits, "parameters": count}
    if settings is None:
        return None
    get = settings.get if isinstance(settings, dict) else lambda name: getattr(settings, name, None)
    method = get("quant_method")
    bits = 4 if get("load_in_4bit") else 8 if get("load_in_8bit") else get("bits")
    return {"method": str(getattr(method, "value", method)), "bits": bits, "parameters": None}


def _lora(model: Any) -> dict[str, Any] | None:
    """PEFT's configuration, and the modules that really got adapters: the two may differ."""
    holder = next((m for m in model.modules() if isinstance(getattr(m, "peft_config", None), dict)), None)
    adapted: Counter[str] = Counter()
    parameters = 0
    for name, module in model.named_modules():
        if getattr(module, "lora_A", None) is not None and getattr(module, "lora_B", None) is not None:
            adapted[name.rpartition(".")[2]] += 1
    if not adapted and holder is None:
        return None
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameters += parameter.numel()
    config = next(iter(holder.peft_config.values()), None) if holder is not None else None
    requested = getattr(config, "target_modules", None)
    if isinstance(requested, (set, list, tuple)):
        requested = sorted(map(str, requested))[:_MOST_NAMES]
    return {
        "r": getattr(config, "r", None),
        "alpha": getattr(config, "lora_alpha", None),
        "requested": requested if isinstance(requested, (list, str)) else None,
        "adapted": dict(adapted.most_common(_MOST_NAMES)),
        "parameters": parameters,
    }


def _experts(config: Any) -> dict[str, Any] | None:
    count = _setting(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if not count or count < 2:
        return None
    return {"count": count, "active": _setting(config, "num_experts_per_tok", "experts_per_token", "moe_top_k")}


def _setting(config: Any, *names: str) -> int | None:
    """The first of these settings that exists, in the config or its text config."""
    for holder in (config, getattr(config, "text_config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None

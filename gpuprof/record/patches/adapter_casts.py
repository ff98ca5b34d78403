"""LoRA adapters get the dtype of the weights that they adapt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, wrap

PATCH = Patch(
    name="adapter_casts",
    does="PEFT adapters stay in the base model's type instead of fp32, so that no activation is cast for them",
    line="get_peft_model(model, config, autocast_adapter_dtype=False)",
    cannot="adapters that are not PEFT's",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Configures PEFT to keep the dtype, and casts fp32 adapters over a half-precision base once."""
    models: list[Any] = []
    cast = [0]

    def module(found: Any) -> None:
        def make(init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
                kwargs["autocast_adapter_dtype"] = False
                if len(args) > 3:  # model, config, adapter name, this one
                    args = args[:3]
                init(self, *args, **kwargs)
                cast[0] += _match(self)
                models[:] = [self]

            return wrapper

        wrap(found.PeftModel, "__init__", make)

    context.on_import("peft.peft_model", module)

    def proof() -> Proof:
        if not models:
            return Proof(False, "no PEFT model was made")
        kinds = {str(p.dtype).removeprefix("torch.") for n, p in models[0].named_parameters() if "lora_" in n}
        if not kinds:
            return Proof(False, "the PEFT model has no LoRA adapters")
        if kinds == {"float32"}:
            return Proof(False, "the base model is in float32, as its adapters are")
        if len(kinds) > 1:
            return Proof(False, f"adapters are {' and '.join(sorted(kinds))}: the program casts them after the patch")
        return Proof(True, f"adapters are {kinds.pop()}")

    return proof


def _match(model: Any) -> int:
    """Casts adapters to the type of the weight that they adapt; returns the number of tensors."""
    count = 0
    for layer in model.modules():
        base = getattr(layer, "base_layer", None)
        weight = getattr(base, "weight", None)
        if weight is None or not weight.is_floating_point():
            continue
        for name in ("lora_A", "lora_B"):
            part = getattr(layer, name, None)
            for parameter in part.parameters() if part is not None else ():
                if parameter.dtype != weight.dtype and weight.element_size() == 2:
                    parameter.data = parameter.data.to(weight.dtype)
                    count += 1
    return count

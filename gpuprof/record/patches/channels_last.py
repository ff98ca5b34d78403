"""2-D convolutions get the memory layout that tensor cores prefer: channels last."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof

PATCH = Patch(
    name="channels_last",
    does="weights of 2-D convolutions, and so their outputs, are laid out in memory with the channels last",
    line="model = model.to(memory_format=torch.channels_last)",
    cannot="models without 2-D convolutions",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Converts the weights in place after the first step; activations follow them."""
    seen: dict[str, Any] = {}

    def convert(models: list[Any]) -> None:
        torch = sys.modules["torch"]
        for model in models:
            layers = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
            for layer in layers:
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
            wide = next((one for one in layers if one.in_channels > 1 and one.kernel_size != (1, 1)), None)
            if wide is not None:
                seen["handle"] = wide.register_forward_hook(look)

    def look(_: Any, __: Any, output: Any) -> None:
        torch = sys.modules["torch"]
        seen["last"] = output.is_contiguous(memory_format=torch.channels_last)
        seen["handle"].remove()

    def guarded(models: list[Any]) -> None:
        try:
            convert(models)
        except Exception as error:
            context.refuse(f"{type(error).__name__}: {error}")

    context.hub.on_first_models(guarded)

    def proof() -> Proof:
        if context.refusal or "last" not in seen:
            return Proof(False, context.refusal or "the model has no 2-D convolution to convert")
        if not seen["last"]:
            return Proof(False, "a convolution's output still has its channels first")
        return Proof(True, "a convolution's output has its channels last")

    return proof

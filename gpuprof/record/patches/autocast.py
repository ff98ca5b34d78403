"""Forward passes run under bf16 autocast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..model.trainer_arguments import BF16, CLASS, FP16
from .context import Context, Patch, Proof

PATCH = Patch(
    name="autocast",
    does="forward passes compute matrix multiplications in bf16 (autocast); weights stay as they are",
    line=f'with torch.autocast("cuda", dtype=torch.bfloat16): ...   ({CLASS}({BF16}=True))',
    cannot="models that are in bf16 already",
    fields=lambda value, known: ({BF16: True}, {}),
)


def apply(context: Context) -> Callable[[], Proof]:
    """A trainer gets bf16=True; a model called without autocast gets it around its forward pass."""
    seen: dict[str, Any] = {}

    def arguments(found: Any) -> dict[str, Any]:
        if not hasattr(found, BF16) or getattr(found, BF16) or context.only_looks:
            return {}
        return {BF16: True, FP16: False}

    def wrap_models(models: list[Any]) -> None:
        torch = sys.modules["torch"]
        for model in models:
            parameter = next(model.parameters(), None)
            if parameter is None:
                continue
            if parameter.dtype != torch.float32:
                context.refuse(f"the model's weights are {str(parameter.dtype).removeprefix('torch.')}")
                return
            kind = parameter.device.type
            if not torch.is_autocast_enabled(kind) and context.hub.arguments is None and not context.only_looks:
                model.forward = _under_autocast(torch, model.forward, kind)
            linear = next((m for m in model.modules() if isinstance(m, torch.nn.Linear)), None)
            if linear is not None:
                seen["handle"] = linear.register_forward_hook(look)

    def look(_: Any, __: Any, output: Any) -> None:
        seen["dtype"] = str(output.dtype).removeprefix("torch.")
        seen["handle"].remove()

    def guarded(models: list[Any]) -> None:
        try:
            wrap_models(models)
        except Exception as error:
            context.refuse(f"{type(error).__name__}: {error}")

    context.hub.set_arguments(arguments)
    context.hub.on_first_models(guarded)

    def proof() -> Proof:
        dtype = seen.get("dtype")
        if dtype == "bfloat16":
            return Proof(True, "a linear layer's output is bfloat16")
        return Proof(False, context.refusal or (f"a linear layer's output is {dtype}" if dtype else "no linear layer"))

    return proof


def _under_autocast(torch: Any, forward: Any, kind: str) -> Any:
    import functools

    @functools.wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, dtype=torch.bfloat16):
            return _in_float(torch, forward(*args, **kwargs))

    return wrapper


def _in_float(torch: Any, value: Any) -> Any:
    """A model's outputs cast to fp32: the loss is computed outside of autocast."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_in_float(torch, one) for one in value)
    if isinstance(value, dict):
        for key, one in list(value.items()):
            value[key] = _in_float(torch, one)
    return value

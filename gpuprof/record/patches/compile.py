"""Compiles the model, after it has been wrapped for several GPUs (DDP, FSDP)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..base.hooks import named_blocks
from .context import Context, Known, Patch, Proof, Settings
from .graph_replays import keep_between_replays

_MODES = ("default", "reduce-overhead", "blocks")


def _fields(value: str, known: Known) -> tuple[Settings, Settings] | None:
    if value == "blocks":
        return None
    return {"torch_compile": True} | ({} if value == "default" else {"torch_compile_mode": value}), {}


PATCH = Patch(
    name="compile",
    does="torch.compile on the model, or on each of its repeated blocks, from the second step on",
    line="model.compile()  # {value}",
    cannot="code outside of the model, such as your own loss function",
    default="default",
    values=", ".join(_MODES),
    check=lambda value: value in _MODES,
    fields=_fields,
    group="compiler",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Compiles in place the models called in the first step: by then DDP and FSDP have wrapped them."""
    compiled: list[str] = []
    mode = context.value

    def compile_models(models: list[Any]) -> None:
        for model in models if not context.only_looks else ():
            for module in _blocks(model) if mode == "blocks" else [model]:
                if (
                    getattr(module, "_compiled_call_impl", None) is not None
                    or type(module).__name__ == "OptimizedModule"
                ):
                    context.refuse("the program compiles its model already")
                    return
                module.compile(**({} if mode in ("default", "blocks") else {"mode": mode}))
                if mode == "reduce-overhead":
                    keep_between_replays(module)
                compiled.append(type(module).__name__)

    def guarded(models: list[Any]) -> None:
        try:
            compile_models(models)
        except Exception as error:
            context.refuse(f"{type(error).__name__}: {error}")

    context.hub.on_first_models(guarded)

    def proof() -> Proof:
        if context.refusal or not (compiled or context.only_looks):
            return Proof(False, context.refusal or "no model was seen in the first step")
        dynamo = sys.modules.get("torch._dynamo.utils")
        graphs = dynamo.counters["stats"].get("unique_graphs", 0) if dynamo is not None else 0
        if not graphs:
            return Proof(False, "torch.compile captured no graph of the model")
        if context.only_looks:
            return Proof(True, f"torch.compile captured {graphs} graphs")
        what = compiled[0] if len(compiled) == 1 else f"{len(compiled)} × {compiled[0]}"
        return Proof(True, f"{what} compiled, {graphs} graphs")

    return proof


def _blocks(model: Any) -> list[Any]:
    """The model's repeated blocks; the model itself if it has none."""
    found = [module for module, name in named_blocks(model, 1) if name.rpartition("_")[2].isdigit()]
    return found or [model]

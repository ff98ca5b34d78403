"""Batches are in pinned memory and are copied to the GPU asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, has_gpu, wrap
from .input_workers import bound

PATCH = Patch(
    name="pageable_copies",
    does="DataLoaders pin their batches, and copies of pinned tensors to the GPU do not wait",
    line='DataLoader(..., pin_memory=True), then batch.to("cuda", non_blocking=True)',
    cannot="tensors that no DataLoader makes: pin those once, before the training",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets pin_memory of every DataLoader as it is made; `.to` and `.cuda` of a pinned tensor get non_blocking."""
    counts = {"pinned": 0, "copied": 0}

    def loader(module: Any) -> None:
        def make(init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
                given = bound(init, self, args, kwargs)
                if has_gpu():
                    given["pin_memory"] = True
                    counts["pinned"] += 1
                given.pop("self", None)
                init(self, **given)

            return wrapper

        wrap(module.DataLoader, "__init__", make)

    def tensors(torch: Any) -> None:
        compiling = torch.compiler.is_compiling

        def make(copy: Any, goes: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                if not compiling() and self.is_cpu and goes(args, kwargs) and self.is_pinned():
                    counts["copied"] += 1
                    kwargs["non_blocking"] = True
                return copy(self, *args, **kwargs)

            return wrapper

        wrap(torch.Tensor, "to", lambda copy: make(copy, goes_to_gpu))
        wrap(torch.Tensor, "cuda", lambda copy: make(copy, lambda args, kwargs: len(args) < 2))

    context.on_import("torch.utils.data.dataloader", loader)
    context.on_import("torch", tensors)

    def proof() -> Proof:
        if not has_gpu():
            return Proof(False, "there is no GPU to copy to")
        if not counts["pinned"]:
            return Proof(False, "no DataLoader was made")
        if not counts["copied"]:
            return Proof(False, "no pinned tensor was copied to the GPU by .to or .cuda")
        return Proof(True, f"{counts['copied']:,} copies from pinned memory")

    return proof


def goes_to_gpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether these arguments of `Tensor.to` name a GPU and leave non_blocking open."""
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, bool) or target is None or "non_blocking" in kwargs:
        return False
    if any(isinstance(one, bool) for one in args[1:]):
        return False
    if isinstance(target, (str, int)):
        return isinstance(target, int) or target.startswith("cuda")
    device = getattr(target, "device", target)
    return getattr(device, "type", None) == "cuda"

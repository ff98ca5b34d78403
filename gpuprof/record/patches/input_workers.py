"""DataLoaders get worker processes, which stay alive between epochs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, whole_number, wrap

PATCH = Patch(
    name="input_workers",
    does="DataLoaders prepare batches in N worker processes, which stay alive between epochs",
    line="DataLoader(..., num_workers={value}, persistent_workers=True)",
    cannot="batches that no DataLoader makes; an IterableDataset that does not split itself among workers",
    default="4",
    values="the number of workers",
    check=whole_number(1, 256),
    fields=lambda value, known: ({"dataloader_num_workers": int(value)}, {"dataloader_persistent_workers": True}),
)

_ORDER = (
    "self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
    "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
"""Parameters of DataLoader that may be given by position."""


def apply(context: Context) -> Callable[[], Proof]:
    """Raises num_workers of every DataLoader as it is made, or keeps the workers between epochs if there are as many;
    generator, worker_init_fn and sampler stay as they are."""
    wanted = int(context.value)
    raised: list[int] = []
    enough: list[int] = []
    kept: list[int] = []
    met: dict[str, Any] = {}

    def loader(module: Any) -> None:
        def make(init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
                given = bound(init, self, args, kwargs)
                before = given.get("num_workers") or 0
                if before == wanted and not (
                    context.only_looks or given.get("persistent_workers") or _is_rebuilt(self)
                ):
                    kept.append(before)
                    given.pop("self", None)
                    init(self, **given | {"persistent_workers": True})
                    return
                if before >= wanted or context.only_looks or _is_rebuilt(self):
                    enough.append(before)
                    init(self, *args, **kwargs)
                    return
                raised.append(before)
                given |= {"num_workers": wanted, "persistent_workers": True}
                given.pop("self", None)
                init(self, **given)

            return wrapper

        wrap(module.DataLoader, "__init__", make)
        wrap(module._MultiProcessingDataLoaderIter, "__init__", seen)

    def seen(init: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            met["iterator"] = self

        return wrapper

    context.on_import("torch.utils.data.dataloader", loader)

    def proof() -> Proof:
        iterator = met.get("iterator")
        alive = sum(worker.is_alive() for worker in getattr(iterator, "_workers", ()))
        if context.only_looks:
            return Proof(alive >= wanted, f"{alive} workers alive")
        if alive >= wanted and raised:
            return Proof(True, f"{alive} workers alive, before: {raised[0]}")
        if alive >= wanted and kept:
            return Proof(True, f"{alive} workers alive, which now stay alive between epochs")
        if alive and enough and not raised:
            return Proof(False, f"the DataLoader has {max(enough)} workers already")
        if not raised and not enough and not kept:
            return Proof(False, "no DataLoader was made")
        return Proof(False, "no worker process is alive: the training takes its batches from elsewhere")

    return proof


def bound(init: Any, self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A DataLoader's arguments by name."""
    try:
        return dict(inspect.signature(init).bind(self, *args, **kwargs).arguments)
    except (TypeError, ValueError):  # wrapped by other code; DataLoader's own order applies
        return dict(zip(_ORDER, (self, *args), strict=False)) | kwargs


def _is_rebuilt(loader: Any) -> bool:
    """Whether this class passes everything on to another DataLoader, which is patched itself."""
    return type(loader).__name__ == "DataLoaderDispatcher"

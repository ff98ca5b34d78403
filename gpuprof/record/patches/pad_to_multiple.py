"""Batches are padded to a multiple of N tokens, so that few different lengths occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, whole_number, wrap

PATCH = Patch(
    name="pad_to_multiple",
    does="transformers' and TRL's collators pad lengths to a multiple of N",
    line="pad_to_multiple_of={value} in the collator (TRL: SFTConfig(pad_to_multiple_of={value}))",
    cannot="your own collator; packing, which changes what a batch holds: SFTConfig(packing=True)",
    default="64",
    values="the length that all lengths are a multiple of",
    check=whole_number(2, 65536),
    fields=lambda value, known: ({"pad_to_multiple_of": int(value)}, {}),
    group="shapes",
)
_FIELD = "pad_to_multiple_of"


def apply(context: Context) -> Callable[[], Proof]:
    """Sets the field of every collator that has it unset, and looks at the length of each batch."""
    multiple = int(context.value)
    changed: list[str] = []
    already: list[int] = []
    lengths = {"multiple": 0, "other": 0}

    def patch(cls: Any) -> None:
        def init(before: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
                before(self, *args, **kwargs)
                if type(self) is not cls and "__init__" in vars(type(self)):
                    return  # the subclass is patched itself
                if getattr(self, _FIELD, multiple) is None and not context.only_looks:
                    object.__setattr__(self, _FIELD, multiple)
                    changed.append(type(self).__name__)
                elif getattr(self, _FIELD, None):
                    already.append(getattr(self, _FIELD))

            return wrapper

        wrap(cls, "__init__", init)

    def collators(module: Any) -> None:
        for found in list(vars(module).values()):
            if isinstance(found, type) and found.__module__ == module.__name__ and _has_field(found):
                patch(found)

    def arguments(found: Any) -> dict[str, Any]:
        return {_FIELD: multiple} if getattr(found, _FIELD, multiple) is None and not context.only_looks else {}

    def batches(module: Any) -> None:
        def make(fetch: Any) -> Any:
            def wrapper(iterator: Any) -> Any:
                batch = fetch(iterator)
                ids = batch.get("input_ids") if hasattr(batch, "get") else None
                if ids is not None and getattr(ids, "ndim", 0) == 2:
                    lengths["other" if ids.shape[1] % multiple else "multiple"] += 1
                return batch

            return wrapper

        wrap(module._BaseDataLoaderIter, "__next__", make)

    for name in ("transformers.data.data_collator", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer"):
        context.on_import(name, collators)
    context.on_import("torch.utils.data.dataloader", batches)
    context.hub.set_arguments(arguments)

    def proof() -> Proof:
        if lengths["multiple"] and not lengths["other"] and (changed or not already or context.only_looks):
            return Proof(True, f"{lengths['multiple']:,} batches have a length that is a multiple of {multiple}")
        if already:
            return Proof(False, f"the collator pads to a multiple of {already[0]} already")
        if lengths["other"]:
            return Proof(False, "batches have other lengths: the collator is the program's own")
        return Proof(False, "no collator of transformers or TRL was used")

    return proof


def _has_field(cls: type) -> bool:
    return any(_FIELD in getattr(base, "__annotations__", {}) for base in cls.__mro__)

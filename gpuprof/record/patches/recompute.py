"""Activations are kept instead of being computed a second time in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Known, Patch, Proof, Settings, wrap


def _fields(value: str, known: Known) -> tuple[Settings, Settings]:
    """The field's name depends on the version of transformers."""
    newer = "activation_checkpointing" in known.fields
    return {"activation_checkpointing" if newer else "gradient_checkpointing": False}, {}


PATCH = Patch(
    name="recompute",
    does="torch.utils.checkpoint keeps activations instead of recomputing them",
    line="gradient_checkpointing=False",
    cannot="checkpointing of other libraries, such as unsloth's",
    fields=_fields,
)
_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def apply(context: Context) -> Callable[[], Proof]:
    """A checkpointed call becomes a plain call."""
    calls = [0]

    def module(found: Any) -> None:
        def make(checkpoint: Any) -> Any:
            def wrapper(function: Any, *args: Any, **kwargs: Any) -> Any:
                calls[0] += 1
                if context.only_looks:
                    return checkpoint(function, *args, **kwargs)
                return function(*args, **{name: one for name, one in kwargs.items() if name not in _OPTIONS})

            return wrapper

        wrap(found, "checkpoint", make)

    context.on_import("torch.utils.checkpoint", module)

    def proof() -> Proof:
        if context.only_looks:
            return Proof(
                not calls[0], f"{calls[0]:,} calls were checkpointed" if calls[0] else "nothing is checkpointed"
            )
        if not calls[0]:
            return Proof(False, "nothing was checkpointed by torch.utils.checkpoint")
        return Proof(True, f"{calls[0]:,} checkpointed calls ran without")

    return proof

"""transformers' mixture-of-experts layers compute all experts in one grouped matrix multiplication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import implementation
from .context import Context, Patch, Proof

_KNOWN = ("grouped_mm", "batched_mm", "eager")
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
PATCH = Patch(
    name="expert_loop",
    does="transformers' experts run as grouped matrix multiplications instead of a loop",
    line='AutoModelForCausalLM.from_pretrained(..., experts_implementation="{value}")',
    cannot="experts in your own code, and transformers before version 5",
    default="grouped_mm",
    values=", ".join(_KNOWN),
    check=lambda value: value in _KNOWN,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets it when a model has been built."""
    return implementation.choose(context, "experts", _why_not)


def _why_not(model: Any) -> str | None:
    if any(getattr(model.config, name, 0) for name in _COUNTS):
        return None
    return f"{type(model).__name__} has no experts"

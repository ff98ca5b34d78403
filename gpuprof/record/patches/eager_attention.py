"""transformers models use another attention implementation."""

from __future__ import annotations

from collections.abc import Callable

from . import implementation
from .context import Context, Patch, Proof

_KNOWN = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "eager")
PATCH = Patch(
    name="eager_attention",
    does="transformers models compute attention with another implementation",
    line='AutoModelForCausalLM.from_pretrained(..., attn_implementation="{value}")',
    cannot="models that are not transformers': call F.scaled_dot_product_attention there",
    default="sdpa",
    values=", ".join(_KNOWN),
    check=lambda value: value in _KNOWN,
    fields=lambda value, known: ({"attn_implementation": value}, {}),
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets it when a model has been built."""
    return implementation.choose(context, "attn")

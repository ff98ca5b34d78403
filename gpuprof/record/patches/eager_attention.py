"""transformers models use another attention implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, wrap

_KNOWN = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "eager")
PATCH = Patch(
    name="eager_attention",
    does="transformers models compute attention with another implementation",
    line='AutoModelForCausalLM.from_pretrained(..., attn_implementation="{value}")',
    cannot="models that are not transformers': call F.scaled_dot_product_attention there",
    default="sdpa",
    values=", ".join(_KNOWN),
    check=lambda value: value in _KNOWN,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets it when a model has been built: every model's `__init__` ends with `post_init`."""
    wanted = context.value
    models: list[Any] = []
    before: list[str] = []

    def module(found: Any) -> None:
        def make(post_init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = post_init(self, *args, **kwargs)
                now = getattr(self.config, "_attn_implementation", None)
                if now != wanted:
                    try:
                        self.set_attn_implementation(wanted)
                        before.append(str(now))
                    except Exception as error:  # not every model has every implementation
                        context.refuse(f"{type(self).__name__}: {error}")
                models[:] = [self]  # the outermost is the last to be built
                return result

            return wrapper

        wrap(found.PreTrainedModel, "post_init", make)

    context.on_import("transformers.modeling_utils", module)

    def proof() -> Proof:
        if not models:
            transformers = "transformers.modeling_utils" in sys.modules
            return Proof(False, "no transformers model was built" if transformers else "transformers is not used")
        if context.refusal:
            return Proof(False, context.refusal)
        now = getattr(models[0].config, "_attn_implementation", None)
        if now != wanted:
            return Proof(False, f"the program chose {now} after the patch")
        if not before:
            return Proof(False, f"the model uses {wanted} already")
        return Proof(True, f"{type(models[0]).__name__} went from {before[0]} to {now}")

    return proof

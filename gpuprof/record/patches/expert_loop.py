"""transformers' mixture-of-experts layers compute all experts in one grouped multiplication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, wrap

_KNOWN = ("grouped_mm", "batched_mm", "eager")
PATCH = Patch(
    name="expert_loop",
    does="transformers' experts run as grouped matrix multiplications instead of a loop",
    line='AutoModelForCausalLM.from_pretrained(..., experts_implementation="{value}")',
    cannot="experts in code of one's own, and transformers before version 5",
    default="grouped_mm",
    values=", ".join(_KNOWN),
    check=lambda value: value in _KNOWN,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets it when a model has been built."""
    wanted = context.value
    models: list[Any] = []
    before: list[str] = []

    def module(found: Any) -> None:
        if not hasattr(found.PreTrainedModel, "set_experts_implementation"):
            context.refuse("this version of transformers has one way to compute experts")
            return

        def make(post_init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = post_init(self, *args, **kwargs)
                now = getattr(self.config, "_experts_implementation", None)
                try:
                    if now != wanted:
                        self.set_experts_implementation(wanted)
                        before.append(str(now))
                except Exception as error:  # a model without experts
                    context.refuse(f"{type(self).__name__}: {error}")
                models[:] = [self]
                return result

            return wrapper

        wrap(found.PreTrainedModel, "post_init", make)

    context.on_import("transformers.modeling_utils", module)

    def proof() -> Proof:
        if not models:
            return Proof(False, context.refusal or "no transformers model was built")
        config = models[0].config
        experts = any(getattr(config, name, 0) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
        if not experts:
            return Proof(False, f"{type(models[0]).__name__} has no experts")
        now = getattr(config, "_experts_implementation", None)
        if context.refusal or now != wanted:
            return Proof(False, context.refusal or f"the program chose {now} after the patch")
        if not before:
            return Proof(False, f"the model uses {wanted} already")
        return Proof(True, f"experts went from {before[0]} to {now}")

    return proof

"""Makes transformers models use another implementation of attention or of experts; shared by two patches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .context import Context, Proof, wrap


def choose(context: Context, part: str, why_not: Callable[[Any], str | None] = lambda _: None) -> Callable[[], Proof]:
    """Calls `set_<part>_implementation` of every model that is built; returns the proof.

    part: attn or experts. why_not(model): why the choice has no effect on this model. Every model's `__init__` ends
    with `post_init`.
    """
    wanted, setter, attribute = context.value, f"set_{part}_implementation", f"_{part}_implementation"
    models: list[Any] = []
    before: list[str] = []

    def module(found: Any) -> None:
        if not hasattr(found.PreTrainedModel, setter):
            context.refuse(f"this version of transformers has no {setter}")
            return

        def make(post_init: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = post_init(self, *args, **kwargs)
                now = getattr(self.config, attribute, None)
                if now != wanted and not context.only_looks:
                    try:
                        getattr(self, setter)(wanted)
                        before.append(str(now))
                    except Exception as error:  # not every model has every implementation, or the part
                        context.refuse(f"{type(self).__name__}: {error}")
                models[:] = [self]  # the outermost model is built last
                return result

            return wrapper

        wrap(found.PreTrainedModel, "post_init", make)

    context.on_import("transformers.modeling_utils", module)

    def proof() -> Proof:
        if not models:
            used = "transformers.modeling_utils" in sys.modules
            none = "no transformers model was built" if used else "transformers is not used"
            return Proof(False, context.refusal or none)
        why = why_not(models[0]) or context.refusal
        if why:
            return Proof(False, why)
        name, now = type(models[0]).__name__, getattr(models[0].config, attribute, None)
        if now != wanted:
            return Proof(False, f"the program chose {now} after the patch")
        if context.only_looks:
            return Proof(True, f"{name} uses {now}")
        if not before:
            return Proof(False, f"the model uses {wanted} already")
        return Proof(True, f"{name} went from {before[0]} to {now}")

    return proof

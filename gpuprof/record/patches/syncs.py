"""A trainer's own looks at the loss do not wait for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context, Known, Patch, Proof, Settings

_SELDOM = 100


def _fields(value: str, known: Known) -> tuple[Settings, Settings]:
    steps = known.now.get("logging_steps")
    seldom = {"logging_steps": _SELDOM} if isinstance(steps, (int, float)) and 0 < steps < _SELDOM else {}
    return {"logging_nan_inf_filter": False}, seldom


PATCH = Patch(
    name="syncs",
    does="the trainer does not look for NaN in every loss, and logs every 100 steps at most",
    line="TrainingArguments(logging_nan_inf_filter=False, logging_steps=100)",
    cannot="`.item()` and the like in the program's own code: the recording names their places",
    fields=_fields,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Through the trainer's arguments."""
    changed: dict[str, Any] = {}

    def choose(arguments: Any) -> dict[str, Any]:
        new: dict[str, Any] = {}
        if getattr(arguments, "logging_nan_inf_filter", False):
            new["logging_nan_inf_filter"] = False
        steps = getattr(arguments, "logging_steps", None)
        if isinstance(steps, (int, float)) and 0 < steps < _SELDOM:
            new["logging_steps"] = _SELDOM
        changed.update(new)
        return {} if context.only_looks else new

    context.hub.set_arguments(choose)

    def proof() -> Proof:
        found = context.hub.arguments
        if found is None:
            return Proof(False, "the program makes no TrainingArguments")
        if context.only_looks:
            return context.as_flagged(found)
        kept = [f"{name}={value}" for name, value in changed.items() if getattr(found, name, None) == value]
        return Proof(True, ", ".join(kept)) if kept else Proof(False, "it logs seldom and without a filter already")

    return proof

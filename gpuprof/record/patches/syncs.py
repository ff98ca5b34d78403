"""Keeps a trainer from synchronising with the GPU in every step to read the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.trainer_arguments import CLASS, LOGGING_STEPS, LOSS_FILTER
from .context import Context, Known, Patch, Proof, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Steps


_STEPS_BETWEEN: Assumed[Steps] = 100


def _fields(value: str, known: Known) -> tuple[Settings, Settings]:
    steps = known.now.get(LOGGING_STEPS)
    seldom = {LOGGING_STEPS: _STEPS_BETWEEN} if isinstance(steps, (int, float)) and 0 < steps < _STEPS_BETWEEN else {}
    return {LOSS_FILTER: False}, seldom


PATCH = Patch(
    name="syncs",
    does="the trainer does not check every loss for NaN, and logs at most every 100 steps",
    line=f"{CLASS}({LOSS_FILTER}=False, {LOGGING_STEPS}={_STEPS_BETWEEN})",
    cannot="`.item()` and the like in the program's own code: the recording names their places",
    fields=_fields,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Through the trainer's arguments."""
    changed: dict[str, Any] = {}

    def choose(arguments: Any) -> dict[str, Any]:
        new: dict[str, Any] = {}
        if getattr(arguments, LOSS_FILTER, False):
            new[LOSS_FILTER] = False
        steps = getattr(arguments, LOGGING_STEPS, None)
        if isinstance(steps, (int, float)) and 0 < steps < _STEPS_BETWEEN:
            new[LOGGING_STEPS] = _STEPS_BETWEEN
        changed.update(new)
        return {} if context.only_looks else new

    context.hub.set_arguments(choose)

    def look(found: Any) -> Proof:
        kept = [f"{name}={value}" for name, value in changed.items() if getattr(found, name, None) == value]
        return Proof(True, ", ".join(kept)) if kept else Proof(False, "it already logs rarely and without a filter")

    return context.proof_of_arguments(look)

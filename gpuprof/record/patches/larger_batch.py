"""Larger micro-batches and fewer of them: the same samples for every optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.trainer_arguments import ACCUMULATION, BATCH
from .context import Context, Known, Patch, Proof, Settings, whole_number


def _fields(value: str, known: Known) -> tuple[Settings, Settings] | None:
    """Batch and accumulation, if the run knows both and the accumulation can be divided."""
    batch, accumulation, factor = known.now.get(BATCH), known.now.get(ACCUMULATION), int(value)
    if not isinstance(batch, int) or not isinstance(accumulation, int) or accumulation % factor:
        return None
    return {BATCH: batch * factor, ACCUMULATION: accumulation // factor}, {}


PATCH = Patch(
    name="larger_batch",
    does="micro-batches are N times as large, with 1/N of the accumulation: the samples per step stay the same",
    line=f"{BATCH} × {{value}}, {ACCUMULATION} ÷ {{value}}",
    cannot="your own training loop; steps of one micro-batch, where a larger batch changes the training",
    default="2",
    values="how many times the micro-batch",
    check=whole_number(2, 1024),
    fields=_fields,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Through the trainer's arguments, where the accumulation can be divided."""
    factor = int(context.value)
    changed: dict[int, tuple[int, int]] = {}
    kept: list[Any] = []

    def choose(arguments: Any) -> dict[str, Any]:
        batch, accumulation = getattr(arguments, BATCH, None), getattr(arguments, ACCUMULATION, None)
        if id(arguments) in changed or not isinstance(batch, int) or not isinstance(accumulation, int):
            return {}
        kept.append(arguments)  # or its id may be reused
        copied = next((one for one in changed.values() if (batch, accumulation) == _larger(one, factor)), None)
        if copied is not None:  # `dataclasses.replace` of arguments that were changed already
            changed[id(arguments)] = copied
            return {}
        if context.only_looks:
            return {}
        if accumulation % factor:
            context.refuse(f"{ACCUMULATION} is {accumulation}: a batch {factor} times as large changes the training")
            return {}
        changed[id(arguments)] = batch, accumulation
        return dict(zip((BATCH, ACCUMULATION), _larger((batch, accumulation), factor), strict=True))

    context.hub.set_arguments(choose)

    def look(found: Any) -> Proof:
        if id(found) not in changed:
            return Proof(False, context.refusal or "the arguments were replaced after the patch")
        batch, accumulation = changed[id(found)]
        now = getattr(found, BATCH), getattr(found, ACCUMULATION)
        if now != _larger((batch, accumulation), factor):
            return Proof(False, "the program changed the batch after the patch")
        return Proof(True, f"{batch} × {accumulation} became {now[0]} × {now[1]} samples")

    return context.proof_of_arguments(look)


def _larger(sizes: tuple[int, int], factor: int) -> tuple[int, int]:
    """Micro-batch and accumulation with the same number of samples."""
    return sizes[0] * factor, sizes[1] // factor

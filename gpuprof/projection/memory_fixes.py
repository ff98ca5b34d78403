"""The changes of a training that its recording offers to save memory, each with what it does to the footprint.

One list, for what `gpuprof memory` and reports advise and for what `gpuprof project` says still fits with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof.projection import memory_changes as changes
from gpuprof.projection.activations import Recorded
from gpuprof.projection.footprint import Footprint, footprint
from gpuprof.projection.memory import RecordedMemory, usage
from gpuprof.projection.memory_changes import MemoryChange

UNEVEN = 1.1
"""The longest pass over the mean one from which passes of equal length are worth naming."""
EVERY_SECOND = 0.5


@dataclass(frozen=True, slots=True)
class MemoryFix:
    """One change, for one recording."""

    id: str
    title: str
    change: MemoryChange | None
    """None: what it does here is not known, and `unknown` says why."""
    changes_training: str = ""
    """What it changes about the training itself; empty: nothing but rounding."""
    unknown: str = ""
    replaces: str = ""
    """Of changes that replace the same thing only one can be made; empty: it goes with all others."""
    share: float = 0.0
    """Of the layers that it checkpoints."""
    moved_bytes: float = 0.0
    """Of the optimizer's state, which moves between CPU and GPU in each step that needs the room."""
    with_other_state: MemoryChange | None = None
    """What it does next to a change that replaces the optimizer; None: the same."""


OPTIMIZER, CHECKPOINTING = "optimizer", "checkpointing"
"""What changes replace."""
EVERY = re.compile(r"checkpointing_every_([1-9]\d{0,2})")
"""The id of checkpointing every k-th layer."""
PAGED_STATE = 8.0
"""Bytes per parameter of two moments in single precision, in which bitsandbytes keeps those that are not in 8 bits."""


LEAST_PAGED = 1e5
"""Parameters of a tensor from which on bitsandbytes pages its state. (Adapters are often smaller.)"""


def recorded_footprint(memory: RecordedMemory) -> Footprint:
    """The parts of the recorded peak."""
    return footprint(memory.recorded, usage(memory))


def memory_fixes(memory: RecordedMemory, mean_tokens: float | None = None) -> tuple[MemoryFix, ...]:
    """The changes that have something to act on; mean_tokens: of a pass, padding included."""
    recorded = memory.recorded
    found = [
        *_checkpointing(recorded),
        *_loss(recorded),
        *_attention(recorded),
        *_optimizer(memory),
        *_adapters(memory),
        *_passes(memory, mean_tokens),
    ]
    return tuple(found)


def _checkpointing(recorded: Recorded) -> list[MemoryFix]:
    layers, hidden = recorded.layers, recorded.hidden
    if not layers or not hidden:
        return []
    if not recorded.checkpointing:
        return [
            MemoryFix("checkpointing", "checkpoint all layers", changes.checkpointed(layers, hidden),
                      replaces=CHECKPOINTING, share=1.0),
            MemoryFix("checkpointing_half", "checkpoint every 2nd layer",
                      changes.checkpointed(layers, hidden, EVERY_SECOND), replaces=CHECKPOINTING, share=EVERY_SECOND),
            MemoryFix("offloaded_activations", "activations on the CPU", changes.offloaded_activations(layers, hidden),
                      replaces=CHECKPOINTING),
        ]  # fmt: skip
    if recorded.layer_bytes is None:
        why = "what its layers would keep cannot be counted from the recorded ops"
        return [MemoryFix("no_checkpointing", "no gradient checkpointing", None, unknown=why)]
    inputs = layers * recorded.kept_bytes
    without = changes.without_checkpointing(layers, recorded.layer_bytes, inputs)
    return [MemoryFix("no_checkpointing", "no gradient checkpointing", without)]


def checkpointing_every(memory: RecordedMemory, name: str) -> MemoryFix | None:
    """Checkpointing of every k-th layer, by its id (`checkpointing_every_3`); None where it is no such id, or nothing
    for this recording."""
    recorded, found = memory.recorded, EVERY.fullmatch(name)
    if found is None or recorded.checkpointing or not recorded.hidden or int(found[1]) > recorded.layers:
        return None
    step = int(found[1])
    share = (recorded.layers // step) / recorded.layers
    title = f"checkpoint one of {step} layers"
    change = changes.checkpointed(recorded.layers, recorded.hidden, share)
    return MemoryFix(name, title, change, replaces=CHECKPOINTING, share=share)


def _loss(recorded: Recorded) -> list[MemoryFix]:
    if not recorded.hidden or recorded.loss is None or not recorded.loss.whole:
        return []
    return [MemoryFix("chunked_loss", "chunked or fused loss", changes.chunked_loss(recorded.hidden))]


def _attention(recorded: Recorded) -> list[MemoryFix]:
    if not recorded.score_bytes or recorded.checkpointing:
        return []
    return [MemoryFix("fused_attention", "fused attention", changes.fused_attention())]


def _optimizer(memory: RecordedMemory) -> list[MemoryFix]:
    trained, found = memory.trained, []
    if recorded_footprint(memory).likely.floor_bytes and memory.recorded.temporary_bytes:
        found.append(MemoryFix("fused_optimizer", "fused optimizer", changes.no_temporaries(), replaces=OPTIMIZER))
    if trained is None or not trained.state_bytes:
        return found
    away = changes.less_static(trained.state_bytes, without_temporaries=True)
    if trained.adam:
        eight_bytes = changes.EIGHT_BIT_STATE * trained.parameters
        rounded = "the optimizer's state is rounded"
        wide = trained.state_bytes > 2 * eight_bytes * 0.9
        if wide:
            eight = changes.eight_bit_state(trained.state_bytes, trained.parameters)
            found.append(MemoryFix("eight_bit_optimizer", "8-bit optimizer", eight, rounded, replaces=OPTIMIZER))
        if trained.tensors and trained.parameters / trained.tensors >= LEAST_PAGED:
            moved = PAGED_STATE * trained.parameters
            if wide:
                found.append(MemoryFix("paged_optimizer", "paged optimizer", away, replaces=OPTIMIZER,
                                       moved_bytes=moved))  # fmt: skip
            found.append(MemoryFix("paged_eight_bit_optimizer", "paged 8-bit optimizer", away, rounded,
                                   replaces=OPTIMIZER, moved_bytes=eight_bytes))  # fmt: skip
    offloaded = MemoryFix("offloaded_optimizer", "optimizer state on the CPU", away, replaces=OPTIMIZER)
    return [*found, offloaded]


def _adapters(memory: RecordedMemory) -> list[MemoryFix]:
    trained = memory.trained
    if trained is None or not trained.single_adapters:
        return []
    says = "adapters are trained in half precision"
    if memory.cast_bytes is None and not memory.recorded.checkpointing:
        why = "which inputs are cast for the adapters cannot be counted from the recorded ops"
        return [MemoryFix("half_adapters", "adapters in bf16", None, says, why)]
    # With checkpointing casts live as long as one layer is recomputed.
    cast = 0.0 if memory.recorded.checkpointing else memory.cast_bytes or 0.0
    own, state_left = (changes.half_adapters(trained.parameters, cast, with_state) for with_state in (True, False))
    return [MemoryFix("half_adapters", "adapters in bf16", own, says, with_other_state=state_left)]


def _passes(memory: RecordedMemory, mean_tokens: float | None) -> list[MemoryFix]:
    gradients = memory.trained.gradient_bytes if memory.trained else 0.0
    found = [
        MemoryFix("half_micro_batch", "half micro-batch, 2× passes",
                  changes.smaller_passes(2, gradients)),
        MemoryFix("half_length", "cut sequences in half", changes.shorter_passes(0.5),
                  "longer samples lose their end"),
    ]  # fmt: skip
    if mean_tokens and memory.recorded.tokens > UNEVEN * mean_tokens:
        equal = changes.shorter_passes(mean_tokens / memory.recorded.tokens)
        found.append(MemoryFix("equal_passes", "packing (equal passes)", equal))
    return found

"""The changes of a training that its recording offers to save memory, each with what it does to the footprint.

One list, for what `gpuprof memory` and reports advise and for what `gpuprof project` says still fits with them.
"""

from __future__ import annotations

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
            MemoryFix("checkpointing", "checkpoint all layers", changes.checkpointed(layers, hidden)),
            MemoryFix("checkpointing_half", "checkpoint every 2nd layer",
                      changes.checkpointed(layers, hidden, EVERY_SECOND)),
        ]  # fmt: skip
    if recorded.layer_bytes is None:
        why = "what its layers would keep cannot be counted from the recorded ops"
        return [MemoryFix("no_checkpointing", "no gradient checkpointing", None, unknown=why)]
    inputs = layers * recorded.kept_bytes
    without = changes.without_checkpointing(layers, recorded.layer_bytes, inputs)
    return [MemoryFix("no_checkpointing", "no gradient checkpointing", without)]


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
        found.append(MemoryFix("fused_optimizer", "fused optimizer", changes.no_temporaries()))
    if trained is None or not trained.state_bytes:
        return found
    if trained.adam and trained.state_bytes > 2 * changes.EIGHT_BIT_STATE * trained.parameters * 0.9:
        eight = changes.eight_bit_state(trained.state_bytes, trained.parameters)
        found.append(MemoryFix("eight_bit_optimizer", "8-bit optimizer", eight, "the optimizer's state is rounded"))
    away = changes.less_static(trained.state_bytes, without_temporaries=True)
    return [*found, MemoryFix("offloaded_optimizer", "optimizer state on the CPU", away)]


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
    return [MemoryFix("half_adapters", "adapters in bf16", changes.half_adapters(trained.parameters, cast), says)]


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

"""The changes that would save memory in a recording, collected from what the findings declare."""

from __future__ import annotations

from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.projection.memory.memory_fixes import EVERY, MemoryFix
from gpuprof.projection.memory.recorded_memory import RecordedMemory

ORDER = (
    "checkpointing", "checkpointing_half", "offloaded_activations", "no_checkpointing", "chunked_loss",
    "fused_attention", "fused_optimizer", "eight_bit_optimizer", "paged_optimizer", "paged_eight_bit_optimizer",
    "offloaded_optimizer", "half_adapters", "half_micro_batch", "half_length", "equal_passes",
)  # fmt: skip
"""Order of changes that save the same; others follow."""


def memory_fixes(memory: RecordedMemory, mean_tokens: float | None = None) -> tuple[MemoryFix, ...]:
    """The changes that apply to this recording; mean_tokens: tokens of a pass, padding included."""
    found = [fix for one in declarations() if one.memory is not None for fix in one.memory.offers(memory, mean_tokens)]
    return tuple(sorted(found, key=lambda fix: ORDER.index(fix.id) if fix.id in ORDER else len(ORDER)))


def offered_by(fix: MemoryFix) -> Declaration:
    """The finding that declares a change. Raises KeyError if none does."""
    name = "checkpointing" if EVERY.fullmatch(fix.id) else fix.id
    for one in declarations():
        if one.memory is not None and name in one.memory.ids:
            return one
    raise KeyError(fix.id)

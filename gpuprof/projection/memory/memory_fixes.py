"""A change of a training that saves memory, and its effect on the footprint. Findings declare these changes, in one
list for the advice of `gpuprof memory` and reports, and for what `gpuprof project` says fits with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.footprint import Footprint, footprint
from gpuprof.projection.memory.recorded_memory import RecordedMemory, usage

if TYPE_CHECKING:
    from gpuprof.projection.memory.memory_changes import MemoryChange


@dataclass(frozen=True, slots=True)
class MemoryFix:
    """One change, for one recording."""

    id: str
    title: str
    change: MemoryChange | None
    """None: its effect here is not known, and `unknown` says why."""
    changes_training: str = ""
    """What it changes about the training itself; empty: nothing but rounding."""
    unknown: str = ""
    replaces: str = ""
    """What it replaces; of changes that replace the same thing only one can be made. Empty: it combines with all."""
    share: float = 0.0
    """Share of the layers that it checkpoints."""
    moved_bytes: float = 0.0
    """Optimizer state that moves between CPU and GPU in each step that needs the room."""
    with_other_state: MemoryChange | None = None
    """Its effect in combination with a change that replaces the optimizer; None: the same."""


OPTIMIZER, CHECKPOINTING = "optimizer", "checkpointing"
"""Values of `replaces`."""
EVERY = re.compile(r"checkpointing_every_([1-9]\d{0,2})")
"""The id of checkpointing every k-th layer."""


def recorded_footprint(memory: RecordedMemory) -> Footprint:
    """The parts of the recorded peak."""
    return footprint(memory.recorded, usage(memory))


def checkpointing_every(memory: RecordedMemory, name: str) -> MemoryFix | None:
    """Checkpointing of every k-th layer, by its id (`checkpointing_every_3`); None for another id, or if it does not
    apply to this recording."""
    recorded, found = memory.recorded, EVERY.fullmatch(name)
    if found is None or recorded.checkpointing or not recorded.hidden or int(found[1]) > recorded.layers:
        return None
    step = int(found[1])
    share = (recorded.layers // step) / recorded.layers
    title = f"checkpoint one of {step} layers"
    change = changes.checkpointed(recorded.layers, recorded.hidden, share)
    return MemoryFix(name, title, change, replaces=CHECKPOINTING, share=share)

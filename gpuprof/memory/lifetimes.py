"""When each piece of memory was allocated and freed, from the allocator's events and the blocks at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.memory.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_STACK,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Blocks,
    DeviceMemory,
    Events,
)
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Code, Convention

UNRECORDED_START: Convention[Code] = -1
"""`start` of memory that was allocated before the recorded history."""


@dataclass(frozen=True, slots=True)
class Allocations:
    """One row per piece of memory; moments are rows of the events, and the number of events means never.

    Memory is in use after the event t where start <= t < end; the moment before the first event is -1.
    """

    address: I64
    size: I64
    stack: I32
    """Number of its stack; NO_STACK: allocated before the history, and freed in it."""
    start: I64
    """The event that allocated it; UNRECORDED_START: before the history."""
    requested: I64
    """The event that asked for it to be freed; another stream may use it until `end`."""
    end: I64

    def __len__(self) -> int:
        return len(self.size)

    def live(self, moment: int) -> np.ndarray:
        """Mask of the memory in use after the event of this row."""
        return (self.start <= moment) & (moment < self.end)


def allocations(memory: DeviceMemory) -> Allocations:
    """All memory of a device in the history or among the blocks at the end."""
    return _with_blocks(_of_events(memory.events, memory.blocks), memory.blocks, len(memory.events))


def _of_events(events: Events, blocks: Blocks) -> Allocations:
    """Pairs allocations with their frees: the events of one address, in order."""
    never = len(events)
    rows = np.flatnonzero(events.action <= FREE_COMPLETED)
    if not len(rows):
        none, stacks = np.empty(0, np.int64), np.empty(0, np.int32)
        return Allocations(none, none, stacks, none, none, none)
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    address, action = events.address[rows], events.action[rows]
    first = np.ones(len(rows), bool)
    first[1:] = (address[1:] != address[:-1]) | (action[1:] == ALLOC)
    begins = np.flatnonzero(first)
    allocated = action[begins] == ALLOC
    opening = rows[begins]

    def earliest(kind: int) -> I64:
        return np.minimum.reduceat(np.where(action == kind, rows, never), begins)

    requested, completed = earliest(FREE_REQUESTED), earliest(FREE_COMPLETED)
    if not (action == FREE_COMPLETED).any():  # a history that leaves them out, or in which all still wait
        last = np.append(address[begins][1:] != address[begins][:-1], True)
        completed = np.where(last & np.isin(address[begins], blocks.address[blocks.awaiting]), never, requested)
    # Memory whose first event is that it was freed had been asked for before the history.
    requested = np.where((completed < requested) & ~allocated, UNRECORDED_START, np.minimum(requested, completed))
    # Freed at once: there is no event in between, and nothing waited for it.
    requested = np.where((requested != UNRECORDED_START) & (completed == requested + 1), completed, requested)
    return Allocations(
        address=address[begins],
        size=events.size[opening],
        stack=np.where(allocated, events.stack[opening], NO_STACK).astype(np.int32),
        start=np.where(allocated, opening, UNRECORDED_START),
        requested=requested,
        end=completed,
    )


def _with_blocks(found: Allocations, blocks: Blocks, never: int) -> Allocations:
    """Adds the blocks that were in use all along, and the stacks of those that the history only saw freed."""
    if not len(blocks.address):
        return found
    still = np.flatnonzero(found.end == never)
    place = dict(zip(found.address[still].tolist(), still.tolist(), strict=True))
    rows = np.fromiter((place.get(address, -1) for address in blocks.address.tolist()), np.int64, len(blocks.address))
    stack, requested = found.stack.copy(), found.requested.copy()
    met, new = np.flatnonzero(rows >= 0), rows < 0
    unknown = met[found.stack[rows[met]] == NO_STACK]
    stack[rows[unknown]] = blocks.stack[unknown]
    count = int(new.sum())
    return Allocations(
        address=np.concatenate([found.address, blocks.address[new]]),
        size=np.concatenate([found.size, blocks.size[new]]),
        stack=np.concatenate([stack, blocks.stack[new]]),
        start=np.concatenate([found.start, np.full(count, UNRECORDED_START)]),
        requested=np.concatenate([requested, np.where(blocks.awaiting[new], UNRECORDED_START, never)]),
        end=np.concatenate([found.end, np.full(count, never)]),
    )


def in_use(found: Allocations, events: int) -> I64:
    """Bytes in use, events + 1 numbers: before the first event and after each."""
    change = np.zeros(events + 2, np.int64)
    np.add.at(change, found.start + 1, found.size)
    np.subtract.at(change, found.end + 1, found.size)
    return np.cumsum(change[:-1])


def reserved(memory: DeviceMemory) -> I64 | None:
    """Bytes that the allocator reserved, events + 1 of them; None if the snapshot has no segments."""
    if memory.reserved_bytes is None:
        return None
    action, size = memory.events.action, memory.events.size
    grows = (action == SEGMENT_ALLOC) | (action == SEGMENT_MAP)
    shrinks = (action == SEGMENT_FREE) | (action == SEGMENT_UNMAP)
    change = np.where(grows, size, np.where(shrinks, -size, 0))
    held = np.concatenate([[0], np.cumsum(change)])
    return held + (memory.reserved_bytes - held[-1])

"""What whole stacks say: the phase, the owner of the memory, and the line of Python."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.memory import frames as f
from gpuprof.memory.snapshot import Frame, Stacks
from gpuprof.tracefile.trace import I32
from gpuprof.units import Code, Convention

UNKNOWN, SETUP, FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER = range(6)
PHASES = ("other", "setup", "forward", "recompute", "backward", "optimizer")
"""Names of the phases, by number."""

(
    WEIGHTS, ADAPTERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, LOGITS, KV_CACHE, INPUTS, BACKWARD_TEMPORARIES,
    COMMUNICATION, WORKSPACE, AWAITING_FREE, BEFORE_HISTORY, OTHER,
) = range(14)  # fmt: skip
OWNERS = (
    "weights", "adapters", "gradients", "optimizer_state", "activations", "logits", "kv_cache", "inputs",
    "backward_temporaries", "communication", "workspace", "awaiting_free", "before_history", "other",
)  # fmt: skip
"""Keys of what holds allocated memory, by number."""

BY_LIFETIME: Convention[Code] = -1
"""What the memory is for depends on how long it lives."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What each stack says, by its number."""

    phase: I32
    owner: I32
    """Index into OWNERS, or BY_LIFETIME."""
    bare: np.ndarray
    """Whether it has no Python frames: autograd's own threads run no Python."""
    linear: np.ndarray
    """Whether a linear layer allocated it."""
    place: tuple[Frame | None, ...]
    """The innermost frame of Python outside of torch, else the innermost of Python; None without any."""


def read_stacks(stacks: Stacks) -> Readings:
    """Reads every distinct stack once."""
    marks = [f.marks(frame) for frame in stacks.frames]
    rows = [_read(stack, marks) for stack in stacks.stacks]
    phase = np.array([phase for phase, _ in rows], np.int32)
    owner = np.array([owner for _, owner in rows], np.int32)
    owner[_heads(stacks, marks, phase, owner)] = LOGITS
    linear = [any(marks[row] & f.LINEAR for row in stack[:8]) for stack in stacks.stacks]
    bare = [all(marks[row] & f.NATIVE for row in stack) for stack in stacks.stacks]
    place = tuple(_place(stack, stacks.frames, marks) for stack in stacks.stacks)
    return Readings(phase, owner, np.array(bare, bool), np.array(linear, bool), place)


def _read(stack: tuple[int, ...], marks: list[int]) -> tuple[int, int]:
    """(phase, owner) of one stack."""
    every = 0
    for row in stack:
        every |= marks[row]
    phase = _phase(every)
    if every & f.COMMUNICATION:
        return phase, COMMUNICATION
    if every & f.WORKSPACE:
        return phase, WORKSPACE
    return phase, _owner(stack, marks, every, phase)


def _phase(every: int) -> int:
    for mark, phase in (
        (f.RECOMPUTE, RECOMPUTE),
        (f.BACKWARD, BACKWARD),
        (f.OPTIMIZER, OPTIMIZER),
        (f.CALL | f.LOSS, FORWARD),
        (f.LOAD | f.ADAPTER, SETUP),
    ):
        if every & mark:
            return phase
    return UNKNOWN


def _owner(stack: tuple[int, ...], marks: list[int], every: int, phase: int) -> int:
    if phase == BACKWARD:
        if every & f.ACCUMULATE:
            return GRADIENTS
        return LOGITS if every & f.LOSS_GRADIENT else BY_LIFETIME
    if phase == OPTIMIZER:
        return OPTIMIZER_STATE if every & f.STATE else BY_LIFETIME
    if phase in (FORWARD, RECOMPUTE):
        if every & f.CACHE:
            return KV_CACHE
        return LOGITS if _loss_frame(stack, marks) is not None else ACTIVATIONS
    if phase == SETUP:
        return ADAPTERS if every & f.ADAPTER else WEIGHTS
    if every & f.CACHE:
        return KV_CACHE
    return INPUTS if every & f.INPUT else OTHER


_BETWEEN = f.CALL | f.LOSS_MODULE | f.INSIDE
"""Marks of frames that may come between two frames of a loss."""


def _loss_frame(stack: tuple[int, ...], marks: list[int]) -> int | None:
    """Position of the outermost frame of a loss; None where a module other than a loss is called inside of it."""
    found = None
    inside_loss_module = False
    for position, row in enumerate(stack):
        mark = marks[row]
        if mark & f.LOSS_MODULE:
            inside_loss_module = True
        if mark & f.LOSS:
            found = position
        elif (mark & f.CALL and not inside_loss_module) or (found is not None and not mark & _BETWEEN):
            break
    return found


def _heads(stacks: Stacks, marks: list[int], phase: I32, owner: I32) -> list[int]:
    """Stacks of the linear layer whose output the loss takes: the one called by the same call as the loss."""
    callers: set[tuple[str, str, tuple[int, ...]]] = set()
    for number in np.flatnonzero(owner == LOGITS).tolist():
        stack = stacks.stacks[number]
        at = _loss_frame(stack, marks)
        if at is None:
            continue
        at += 1
        while at < len(stack) and marks[stack[at]] & (f.CALL | f.LOSS_MODULE):
            at += 1
        if at < len(stack):
            caller = stacks.frames[stack[at]]
            callers.add((caller.filename, caller.name, stack[at + 1 :]))
    if not callers:
        return []
    found = []
    for number in np.flatnonzero((owner == ACTIVATIONS) & (phase == FORWARD)).tolist():
        stack = stacks.stacks[number]
        at, linear = 0, False
        while at < len(stack) and marks[stack[at]] & (f.CALL | f.LINEAR | f.NATIVE):
            linear |= bool(marks[stack[at]] & f.LINEAR)
            at += 1
        if linear and at < len(stack):
            caller = stacks.frames[stack[at]]
            if (caller.filename, caller.name, stack[at + 1 :]) in callers:
                found.append(number)
    return found


def _place(stack: tuple[int, ...], frames: tuple[Frame, ...], marks: list[int]) -> Frame | None:
    innermost = None
    for row in stack:
        if not marks[row] & f.NATIVE:
            innermost = innermost or frames[row]
            if not marks[row] & f.INSIDE:
                return frames[row]
    return innermost

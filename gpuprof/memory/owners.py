"""What each allocation is for: from its stack, or from its lifetime if the stack does not say."""

from __future__ import annotations

import numpy as np

from gpuprof.memory.lifetimes import UNRECORDED_START, Allocations
from gpuprof.memory.passes import MemoryPhases, ends_of
from gpuprof.memory.snapshot import NO_STACK, OOM, Events
from gpuprof.memory.stacks import (
    ACTIVATIONS,
    ADAPTERS,
    BACKWARD,
    BACKWARD_TEMPORARIES,
    BEFORE_HISTORY,
    BY_LIFETIME,
    FORWARD,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OTHER,
    RECOMPUTE,
    WEIGHTS,
    WORKSPACE,
    Readings,
)
from gpuprof.tracefile.trace import I32
from gpuprof.units import Assumed, Bytes, Published

CUBLAS_WORKSPACES: Published[tuple[Bytes, Bytes]] = (33_554_432, 8_519_680)
"""Bytes of torch's default workspace for cuBLAS, one for each handle and stream: 32 MiB on Hopper, else :4096:2:16:8 of
CUBLAS_WORKSPACE_CONFIG (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
LARGE_ALLOCATION_BYTES: Assumed[Bytes] = 1 << 20
"""Allocations of at least this many bytes and equal size are treated as the same thing."""


def owners(found: Allocations, readings: Readings, passes: MemoryPhases, events: Events) -> I32:
    """Index into OWNERS for each piece of memory. events: the device's, which include failed requests."""
    known = found.stack != NO_STACK
    owner = np.full(len(found), BEFORE_HISTORY, np.int32)
    owner[known] = readings.owner[found.stack[known]]
    phase = _phase(found, readings, passes)
    bare = known & readings.bare[found.stack]
    owner[bare & (phase == BACKWARD) & (owner == OTHER)] = BY_LIFETIME
    owner[bare & (found.start == UNRECORDED_START) & (owner == OTHER)] = BEFORE_HISTORY
    _logits_by_size(owner, found, readings, phase, known, events)
    owner = _by_lifetime(owner, found, passes, phase)
    _libraries(owner, found, passes)
    return owner


def _phase(found: Allocations, readings: Readings, passes: MemoryPhases) -> I32:
    """The phase in which each piece of memory was allocated."""
    phase = np.where(found.stack != NO_STACK, readings.phase[found.stack], 0).astype(np.int32)
    recorded = found.start >= 0
    phase[recorded] = passes.own[found.start[recorded]]
    return phase


def _logits_by_size(
    owner: I32, found: Allocations, readings: Readings, phase: I32, known: np.ndarray, events: Events
) -> None:
    """Marks logits: a large output of a linear layer of the size of what the loss allocates, or half of that before it
    is converted to fp32.

    A failed request of the loss counts too: often it is the loss for which memory no longer suffices.
    """
    in_vain = (events.action == OOM) & (readings.owner[events.stack] == LOGITS)
    asked = np.append(found.size[owner == LOGITS], events.size[in_vain])
    sizes = np.unique(asked[asked >= LARGE_ALLOCATION_BYTES])
    if not len(sizes):
        return
    same = np.isin(found.size, sizes)
    half = np.isin(found.size * 2, sizes)
    linear = known & readings.linear[found.stack]
    owner[(owner == ACTIVATIONS) & (phase == FORWARD) & linear & (same | half)] = LOGITS
    owner[(owner == BY_LIFETIME) & (phase == BACKWARD) & same] = LOGITS


def _by_lifetime(owner: I32, found: Allocations, passes: MemoryPhases, phase: I32) -> I32:
    """Memory of a backward pass that outlives it is a gradient; memory of an optimizer that outlives it is its
    state."""
    weights = np.unique(found.size[owner == WEIGHTS])
    for which, phases, lasting, passing in (
        (BACKWARD, (BACKWARD, RECOMPUTE), GRADIENTS, BACKWARD_TEMPORARIES),
        (OPTIMIZER, (OPTIMIZER,), OPTIMIZER_STATE, WORKSPACE),
    ):
        rows = np.flatnonzero((owner == BY_LIFETIME) & (phase == which))
        if not len(rows):
            continue
        never = len(passes.phase)
        after = np.full(len(rows), UNRECORDED_START)  # from before the history: it has outlived its phase
        recorded = found.start[rows] >= 0
        after[recorded] = ends_of(passes.phase, phases)[found.start[rows[recorded]]]
        decided = (after < never) | (found.end[rows] < never)
        stays = decided & (found.end[rows] >= after) & (after < never)
        stays[~decided] = _as_before(found, rows, decided, stays)[~decided]
        if which == BACKWARD:
            unseen = ~decided & ~np.isin(_keys(found, rows), _keys(found, rows[decided]))
            stays[unseen] = np.isin(found.size[rows[unseen]], weights)
        owner[rows] = np.where(stays, lasting, passing)
    owner[owner == BY_LIFETIME] = OTHER
    return owner


def _libraries(owner: I32, found: Allocations, passes: MemoryPhases) -> None:
    """Workspaces of cuBLAS if no C++ frame names them: of its size, allocated once in a pass, and kept past the end of
    that step to the end of the history. No other memory of that size may be a weight: it could be the weight's
    gradient."""
    if not len(passes.boundaries):
        return
    sizes = np.setdiff1d(CUBLAS_WORKSPACES, found.size[np.isin(owner, (WEIGHTS, ADAPTERS))])
    asked = np.isin(owner, (ACTIVATIONS, GRADIENTS)) & np.isin(found.size, sizes) & (found.start >= 0)
    rows = np.flatnonzero(asked)
    _, which, often = np.unique(_keys(found, rows), return_inverse=True, return_counts=True)
    lasting = (found.end[rows] >= len(passes.phase)) & (found.start[rows] < passes.boundaries[-1])
    owner[rows[lasting & (often[which] == 1)]] = WORKSPACE


def _keys(found: Allocations, rows: np.ndarray) -> np.ndarray:
    """A number for each stack and size."""
    return found.size[rows] * (1 << 20) + (found.stack[rows].astype(np.int64) & ((1 << 20) - 1))


def _as_before(found: Allocations, rows: np.ndarray, decided: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """What most of the earlier memory of the same stack and size did."""
    keys, inverse = np.unique(_keys(found, rows), return_inverse=True)
    stayed = np.bincount(inverse[decided & stays], minlength=len(keys))
    seen = np.bincount(inverse[decided], minlength=len(keys))
    return (2 * stayed > seen)[inverse]

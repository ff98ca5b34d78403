"""The CPU's work around copies that hooks make: what a layer waits for before it launches its next kernel."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.timeline.runtime_calls import ALLOCATOR_CALL
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Entries, Launches, Share

FREES = re.compile("Free|Release|Unmap")
FREES_PER_COPY: Assumed[Share] = 0.1
"""Calls that free memory for each that copies, from which on the hooks empty the allocator's cache."""
LAUNCHES_FROM_COPY: Assumed[Launches] = 8
"""Launches of kernels from a copy within which hooks run around modules that have nothing to copy, too."""
FEWEST_STRETCHES: Assumed[Entries] = 5
"""Stretches without a copy, at least, whose median is what is usual."""


def left_around(graph: Graph, copies: Mask, copying: Mask) -> F64:
    """Per node the share that is left of it without the copies that hooks make (`accelerate`'s offloading,
    `save_on_cpu`): Python and ops that place tensors go with them; 1 elsewhere.

    Between the launches of two kernels a thread does something of its own. Where a copy is in between, that is taken to
    shrink to what it usually is on this thread where none is. Hooks run around modules without weights, too: where
    copies are near, what a thread does before an op launches shrinks to what it usually is before an op of that name
    far from copies. Hooks that empty the cache for each layer free memory between kernels, too, and what is freed is
    allocated again. `copies`: nodes on the GPU; `copying`: nodes of the CPU
    in the calls that launch them.
    """
    allocating, freeing = _allocator(graph)
    if freeing.sum() >= FREES_PER_COPY * copying.sum():
        copying = copying | freeing
    else:
        allocating = np.zeros(len(graph), bool)
    launchers = launcher_of(graph)[graph.on_gpu & ~copies]
    launches = np.zeros(len(graph), bool)
    launches[launchers[launchers >= 0]] = True
    launches &= ~copying
    left = np.ones(len(graph))
    for lane in np.unique(graph.lane[copying & (graph.lane >= 0)]).tolist():
        mine = np.flatnonzero(graph.lane == lane)
        mine = mine[np.argsort(graph.recorded_start_ns[mine], kind="stable")]
        stretch = np.cumsum(launches[mine])
        own = mine[~launches[mine] & ~graph.waits[mine]]
        of_own = stretch[~launches[mine] & ~graph.waits[mine]]
        count = int(stretch[-1]) + 1
        took = np.bincount(of_own, weights=graph.duration_ns[own], minlength=count)
        copied = np.bincount(stretch[copying[mine]], minlength=count) > 0
        others = took[~copied & (took > 0)]
        usual = float(np.median(others)) if len(others) >= FEWEST_STRETCHES else 0.0
        share = np.where(copied, np.minimum(usual / np.maximum(took, 1.0), 1.0), 1.0)
        name = np.full(count, -1, np.int64)
        name[stretch[launches[mine]] - 1] = _names(graph, mine[launches[mine]])
        share *= _left_near(took.astype(np.float64), copied, name)
        left[own] = share[of_own]
    left[allocating & ~graph.waits] = 0.0
    return left


def _names(graph: Graph, nodes: I64) -> I64:
    """Name of the op that each node lies in."""
    return np.append(graph.timeline.trace.ops.name, -1)[graph.scope[nodes]].astype(np.int64)


def _left_near(took: F64, copied: Mask, name: I64) -> F64:
    """Share that is left of stretches without a copy that stand near one: what those before ops of the same name take
    that stand near none. 1 for others, and where there are too few of these. `name`: of the op that ends a stretch."""
    before = np.concatenate(([0], np.cumsum(copied)))
    at = np.arange(len(took))
    near = before[np.minimum(at + LAUNCHES_FROM_COPY + 1, len(took))] > before[np.maximum(at - LAUNCHES_FROM_COPY, 0)]
    left = np.ones(len(took))
    hooked = near & ~copied & (name >= 0)
    for one in np.unique(name[hooked]).tolist():
        like = took[~near & (name == one)]
        if len(like) >= FEWEST_STRETCHES:
            mine = hooked & (name == one)
            left[mine] = np.minimum(float(np.median(like)) / np.maximum(took[mine], 1.0), 1.0)
    return left


def _allocator(graph: Graph) -> tuple[Mask, Mask]:
    """Nodes in calls that allocate or free memory, and of these those that free it."""
    trace = graph.timeline.trace
    calls = trace.rows_named(trace.calls.name, ALLOCATOR_CALL.search)
    frees = calls & trace.rows_named(trace.calls.name, FREES.search)
    allocating, freeing = (np.append(rows, False)[graph.call] & ~graph.on_gpu for rows in (calls, frees))
    return allocating, freeing

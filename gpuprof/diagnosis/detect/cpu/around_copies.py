"""The CPU's work around copies made by hooks, which delays a layer's next kernel launch."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.timeline.cpu.runtime_calls import ALLOCATOR_CALL
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, I64, Mask
from gpuprof.units import Assumed, Entries, Launches, Share

FREES = re.compile("Free|Release|Unmap")
FREES_PER_COPY: Assumed[Share] = 0.1
"""Smallest ratio of calls that free memory to calls that copy, if hooks empty the allocator's cache."""
LAUNCHES_FROM_COPY: Assumed[Launches] = 8
"""Hooks without a copy of their own are looked for within this number of kernel launches of a copy."""
FEWEST_STRETCHES: Assumed[Entries] = 5
"""Fewest stretches without a copy whose median is used as the usual time."""


def left_around(graph: Graph, copies: Mask, copying: Mask) -> F64:
    """Share of each node's time that remains without the copies of hooks (`accelerate`'s offloading, `save_on_cpu`):
    Python and ops that place tensors disappear with the copies; 1 elsewhere.

    A thread does work of its own between two kernel launches. If a copy is in between, this work is assumed to shrink
    to the usual amount on this thread without a copy. Hooks also run around modules without weights: near copies, the
    work before an op launches shrinks to the usual amount before an op of that name far from copies. Hooks that empty
    the cache for each layer also free memory between kernels, which is then allocated again. `copies`: nodes on the
    GPU; `copying`: CPU nodes in the calls that launch them."""
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


def left_of_freeing(graph: Graph) -> F64:
    """Share of each node's time that remains if autograd's engine frees no copies in host memory: what it does around a
    node of the backward pass, outside of its ops, shrinks to the usual amount. Large host tensors are unmapped when
    they are freed, page by page. 1 elsewhere."""
    trace = graph.timeline.trace
    engine = np.append(trace.rows_named(trace.ops.name, lambda name: name.startswith(AUTOGRAD_ENGINE)), False)
    own = np.flatnonzero(engine[graph.scope] & (graph.lane >= 0) & ~graph.waits)
    left = np.ones(len(graph))
    rows, at = np.unique(graph.scope[own], return_inverse=True)
    if len(rows) >= FEWEST_STRETCHES:
        took = np.bincount(at, weights=graph.duration_ns[own])
        left[own] = np.minimum(float(np.median(took)) / np.maximum(took, 1.0), 1.0)[at]
    return left


def _names(graph: Graph, nodes: I64) -> I64:
    """String id of the name of the op that contains each node."""
    return np.append(graph.timeline.trace.ops.name, -1)[graph.scope[nodes]].astype(np.int64)


def _left_near(took: F64, copied: Mask, name: I64) -> F64:
    """Remaining share of stretches without a copy that are near one: the median of stretches before ops of the same
    name that are not near a copy, over their own time. 1 for others, and if there are too few of those. `name`: of the
    op that ends a stretch."""
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
    """(nodes in calls that allocate or free memory, those that free it)."""
    trace = graph.timeline.trace
    calls = trace.rows_named(trace.calls.name, ALLOCATOR_CALL.search)
    frees = calls & trace.rows_named(trace.calls.name, FREES.search)
    allocating, freeing = (np.append(rows, False)[graph.call] & ~graph.on_gpu for rows in (calls, frees))
    return allocating, freeing

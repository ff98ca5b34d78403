"""A change of the graph that replaces the work of some stretches by fewer kernels and less CPU work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import Removing, scaled
from gpuprof.tracefile.trace import F64, I64, Mask


@dataclass(frozen=True, slots=True)
class Replacement:
    """Groups of nodes and their replacement."""

    group: I64
    """Group of each node; -1: unchanged."""
    host: I64
    """The groups' CPU nodes."""
    host_left: F64
    """Share of the time of each of them that remains."""
    gpu: I64
    """The groups' kernels and copies."""
    before_ns: F64
    """Total time of the group's GPU work before."""
    gpu_ns: F64
    """Total time of the group's GPU work afterwards."""
    kept: I64
    """Nodes that represent the new kernels."""
    removing: Removing
    """Takes out the groups' other nodes."""


def replacement_of(
    graph: Graph,
    group: I64,
    host_ns: F64,
    gpu_ns: F64,
    launches: I64,
    carriers: Mask | None = None,
    slower: bool = False,
) -> Replacement:
    """The replacement, given the CPU time afterwards, ns per group; it may exceed today's only with `slower`.

    carriers: kernels and copies that may represent the new ones, all of a group's if it has none of them; they should
    be of the same kind, so that other changes to such work also apply to the new kernels.
    """
    on_gpu = (group >= 0) & graph.on_gpu
    host, gpu = np.flatnonzero((group >= 0) & ~graph.on_gpu), np.flatnonzero(on_gpu)
    took = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=len(gpu_ns)).astype(np.float64)
    before = np.bincount(group[host], weights=graph.duration_ns[host], minlength=len(host_ns))
    share = np.divide(host_ns, before, out=np.ones(len(host_ns)), where=before > 0)
    of = on_gpu if carriers is None else on_gpu & carriers
    has = np.bincount(group[of], minlength=len(gpu_ns)) > 0
    kept = _spread(of | (on_gpu & ~np.append(has, False)[group]), group, launches)
    gone = group >= 0
    gone[kept] = False
    return Replacement(
        group,
        host,
        (share if slower else np.minimum(share, 1.0))[group[host]],
        gpu,
        took,
        gpu_ns,
        kept,
        Removing(gone),
    )


def with_replacement(graph: Graph, replacement: Replacement) -> Graph:
    """The graph with the groups' work replaced: without waits for the device, and launches spread over the groups'
    time."""
    host, gpu, kept = replacement.host, replacement.gpu, replacement.kept
    shorter = replacement.removing(graph)
    duration = shorter.duration_ns.copy()
    duration[host] = graph.duration_ns[host] * replacement.host_left
    counts = np.bincount(replacement.group[kept], minlength=len(replacement.gpu_ns))
    now = np.bincount(replacement.group[gpu], weights=graph.duration_ns[gpu], minlength=len(counts))
    scale = np.divide(now, replacement.before_ns, out=np.ones(len(counts)), where=replacement.before_ns > 0)
    each = np.divide(scale * replacement.gpu_ns, counts, out=np.zeros(len(counts)), where=counts > 0)
    duration[kept] = each[replacement.group[kept]]
    return shorter.with_durations(duration)


def with_walk(graph: Graph, replacement: Replacement, factor: F64) -> Graph:
    """The graph with the groups' work replaced, and the time of other nodes times a factor per node."""
    return scaled(with_replacement(graph, replacement), replacement.group < 0, factor)


def _spread(gpu: Mask, groups: I64, launches: I64) -> I64:
    """Nodes of the mask that represent each group's launches, evenly spread over its kernels and copies."""
    rows = np.flatnonzero(gpu)
    rows = rows[np.argsort(groups[rows], kind="stable")]
    group = groups[rows]
    total = np.bincount(group, minlength=len(launches))
    rank = np.arange(len(rows)) - np.concatenate([[0], np.cumsum(total)])[group]
    wanted = np.minimum(launches, total)[group]
    number = np.maximum(total[group], 1)
    kept = (rank + 1) * wanted // number > rank * wanted // number
    return np.sort(rows[kept])

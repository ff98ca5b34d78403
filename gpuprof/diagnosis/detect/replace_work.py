"""A change of the graph: what some stretches do is done by fewer, other kernels and host segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed
from gpuprof.tracefile.trace import F64, I64, Mask


@dataclass(frozen=True, slots=True)
class Replacement:
    """Groups of nodes and what becomes of each; columns by group."""

    group: I64
    """Per node its group; -1: as it was."""
    host_share: F64
    """Of a group's host time, what is left."""
    before_ns: F64
    """What the group's GPU work took, all pieces together."""
    gpu_ns: F64
    """What it takes afterwards."""
    launches: I64
    """Pieces that it is launched in."""
    carriers: Mask
    """Nodes that may stand for the new pieces, where a group has any; else all of its."""


def replacement_of(
    graph: Graph,
    group: I64,
    host_ns: F64,
    gpu_ns: F64,
    launches: I64,
    carriers: Mask | None = None,
    slower: bool = False,
) -> Replacement:
    """From the host's time afterwards, ns per group, against that of this graph; more than that only with `slower`.

    carriers: kernels and copies that stand for the new ones: of their kind, so that what another change does to such
    work it does to the new one.
    """
    host, gpu = (group >= 0) & ~graph.on_gpu, (group >= 0) & graph.on_gpu
    took = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=len(gpu_ns)).astype(np.float64)
    before = np.bincount(group[host], weights=graph.duration_ns[host], minlength=len(host_ns))
    share = np.divide(host_ns, before, out=np.ones(len(host_ns)), where=before > 0)
    of = gpu if carriers is None else gpu & carriers
    has = np.bincount(group[of], minlength=len(gpu_ns)) > 0
    return Replacement(
        group,
        share if slower else np.minimum(share, 1.0),
        took,
        gpu_ns,
        launches,
        of | (gpu & ~np.append(has, False)[group]),
    )


def with_replacement(graph: Graph, replacement: Replacement) -> Graph:
    """The graph with the groups' work done again: no waits for the device in them, the launches spread over their
    time."""
    inside = replacement.group >= 0
    kept = _spread(replacement.carriers, replacement)
    shorter = removed(graph, inside & ~kept)
    host = inside & ~graph.on_gpu
    duration = shorter.duration_ns.copy()
    duration[host] = graph.duration_ns[host] * replacement.host_share[replacement.group[host]]
    counts = np.bincount(replacement.group[kept], minlength=len(replacement.gpu_ns))
    gpu = inside & graph.on_gpu
    now = np.bincount(replacement.group[gpu], weights=graph.duration_ns[gpu], minlength=len(counts))
    scale = np.divide(now, replacement.before_ns, out=np.ones(len(counts)), where=replacement.before_ns > 0)
    each = np.divide(scale * replacement.gpu_ns, counts, out=np.zeros(len(counts)), where=counts > 0)
    duration[kept] = each[replacement.group[kept]]
    return shorter.with_durations(duration)


def _spread(gpu: Mask, replacement: Replacement) -> Mask:
    """Per group as many of its kernels and copies as will be launched, evenly over all that there are."""
    rows = np.flatnonzero(gpu)
    rows = rows[np.argsort(replacement.group[rows], kind="stable")]
    group = replacement.group[rows]
    total = np.bincount(group, minlength=len(replacement.launches))
    rank = np.arange(len(rows)) - np.concatenate([[0], np.cumsum(total)])[group]
    wanted = np.minimum(replacement.launches, total)[group]
    number = np.maximum(total[group], 1)
    kept = (rank + 1) * wanted // number > rank * wanted // number
    mask = np.zeros(len(gpu), bool)
    mask[rows[kept]] = True
    return mask

"""CPU work that grows with the samples of a step: preparing them one after another.

Launching kernels takes as long for a batch of any size; decoding, resizing or tokenising takes its time for each
sample. It shows as long stretches in which a thread launches nothing: in a phase that loads data, in ops that work on
the CPU, or in Python code that prepares samples.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.replay.graph import HOST, Graph, launcher_of
from gpuprof.timeline.intervals import Cover, join, union
from gpuprof.timeline.nesting import climb, inherit
from gpuprof.timeline.phases import DATA, FORWARD
from gpuprof.timeline.startup import start_up_spans
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import OP, Mask, Trace
from gpuprof.units import Assumed, Share, WholeNs

SHORTEST_PREPARATION_NS: Assumed[WholeNs] = 2_000_000
"""Shortest stretch without a launch that can be preparation: between two launches a thread that runs a model spends up
to some 100 µs, and up to a millisecond in Python."""
PREPARING_SHARE: Assumed[Share] = 0.3
"""Share of a stretch that must be ops on the CPU, or Python code that prepares samples. The rest is Python between
them."""

READS_OR_TOKENISES = re.compile(
    r"pre_?process|image_process|feature_extract|tokeniz|processing_\w+\.py|(^|/)(PIL|av|cv2|decord|librosa|albumentations"
    r"|torchaudio|soundfile)/|torchvision/(transforms|io)|(read|load|decode)_(video|image|audio|batch)",
    re.IGNORECASE,
)
"""Python code that makes a sample from a file or a text, by its path or name."""
PREPARING = re.compile(f"{READS_OR_TOKENISES.pattern}|collat", re.IGNORECASE)
"""Python code that prepares samples, by its path or name."""
_COMPUTES = re.compile(
    r"^(?!c10d::|autograd::|torch::|prim::|record_|nccl)\w+::"
    r"(?!slice|narrow|view|as_strided|_?reshape|_unsafe_view|t$|transpose|permute|expand|select|(un)?squeeze|unbind|split"
    r"|chunk|detach|alias|empty|flatten|unflatten|resize_|set_|item|is_|size|stride|numel|lift_fresh|record_stream|result_)"
)
"""Matches ops that work on elements: not views and queries, which take a microsecond for any batch, and not the ranges
of compiled code and of Dynamo."""


@remembered
def preparing(graph: Graph) -> Mask:
    """CPU nodes that prepare samples on a thread that launches the model's work; a DataLoader's nodes are `INPUT`
    anyway."""
    found = _on_host(graph) & (graph.phase == DATA)
    rows, stretch = _stretches(graph, _on_host(graph) & np.isin(graph.phase, (FORWARD, DATA)))
    if not len(rows):
        return found
    took = graph.recorded_end_ns[rows] - graph.recorded_start_ns[rows]
    known = np.maximum(_in_preparing_code(graph, rows), np.where(_in_cpu_ops(graph, rows), took, 0.0))
    whole, preparing_ns = (np.bincount(stretch, weights=ns) for ns in (took, known))
    found[rows[(preparing_ns >= PREPARING_SHARE * whole)[stretch]]] = True
    return found


def in_stretches_with(graph: Graph, nodes: Mask) -> Mask:
    """CPU nodes of the long stretches that contain one of `nodes`: all that belongs to these, including the Python
    between them."""
    rows, stretch = _stretches(graph, _on_host(graph) & np.isin(graph.phase, (FORWARD, DATA)))
    found = np.zeros(len(graph), bool)
    if len(rows):
        found[rows[(np.bincount(stretch, weights=nodes[rows]) > 0)[stretch]]] = True
    return found


def _on_host(graph: Graph) -> Mask:
    return (graph.lane >= 0) & ~graph.waits & (graph.resource == HOST)


def _stretches(graph: Graph, wanted: Mask) -> tuple[np.ndarray, np.ndarray]:
    """(nodes, number of the stretch of each): those of long stretches without a launch, a wait or another phase."""
    launches = np.zeros(len(graph), bool)
    source = launcher_of(graph)
    launches[source[source >= 0]] = True
    rows = np.flatnonzero(graph.lane >= 0)
    rows = rows[np.lexsort((graph.recorded_start_ns[rows], graph.lane[rows]))]
    inside = wanted[rows] & ~launches[rows]
    begins = inside & ~np.append(False, inside[:-1] & (graph.lane[rows][1:] == graph.lane[rows][:-1]))
    number = np.cumsum(begins) - 1
    rows, number = rows[inside], number[inside]
    ns = np.bincount(number, weights=(graph.recorded_end_ns - graph.recorded_start_ns)[rows])
    long = ns >= SHORTEST_PREPARATION_NS
    kept = long[number] if len(number) else np.zeros(0, bool)
    return rows[kept], (np.cumsum(long) - 1)[number[kept]]


def _in_cpu_ops(graph: Graph, rows: np.ndarray) -> Mask:
    """Whether nodes are in an op that launches nothing and computes something."""
    timeline = graph.timeline
    ops, parent = timeline.trace.ops, timeline.nesting.parent
    launching = np.zeros(len(ops) + 1, bool)
    for column in (timeline.links.op, timeline.links.scope):
        above = column[column >= 0]
        while len(above):
            above = np.unique(above[~launching[above]])
            launching[above] = True
            above = parent[above]
            above = above[above >= 0]
    outer = np.where((parent < 0) | (ops.kind[parent] != OP), np.arange(len(ops)), -1)
    root = np.append(inherit(np.where(ops.kind == OP, outer, -1), parent, -1), -1)
    inner = climb(graph.scope[rows], parent, ops.kind == OP)
    top = root[inner]
    computes = np.append(timeline.trace.rows_named(ops.name, _COMPUTES.search), False)[inner]
    return (inner >= 0) & (top >= 0) & ~launching[top] & computes


def _in_preparing_code(graph: Graph, rows: np.ndarray) -> np.ndarray:
    """How long each node was in Python code that prepares samples, ns; none while the program still starts."""
    timeline = graph.timeline
    trace, low = timeline.trace, timeline.window[0]
    spent = np.zeros(len(rows))
    named = trace.rows_named(trace.frames.name, PREPARING.search)
    if not named.any():
        return spent
    starting = Cover(_starting(trace, graph))
    for lane in np.unique(graph.lane[rows]).tolist():
        frames = named & (trace.frames.thread == lane)
        cover = Cover(union(trace.frames.start_ns[frames], trace.frames.end_ns[frames]))
        mine = np.flatnonzero(graph.lane[rows] == lane)
        start, end = (
            np.round(ns[rows[mine]]).astype(np.int64) + low for ns in (graph.recorded_start_ns, graph.recorded_end_ns)
        )
        spent[mine] = np.maximum(cover.between(start, end) - starting.between(start, end), 0)
    return spent


def _starting(trace: Trace, graph: Graph):
    return join(*(spans for _, spans in start_up_spans(trace, graph.timeline.links, allocations=False)))

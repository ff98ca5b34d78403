"""Loops over experts: which of their GPU work scales with the rows that an expert gets, and which with all tokens."""

from __future__ import annotations

import math

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.replay.graph import Graph
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, NO_TEXT, Mask


def expert_events(graph: Graph, nodes: Mask) -> Mask:
    """Mask of the GPU events of some nodes."""
    found = np.zeros(len(graph.timeline.trace.gpu), bool)
    found[graph.gpu_row[nodes & graph.on_gpu]] = True
    return found


def forward_tokens(timeline: Timeline) -> frozenset[int]:
    """Tokens of each forward pass in the window, padding included: the indices that are embedded."""
    trace, ops = timeline.trace, timeline.trace.ops
    low, high = timeline.window
    embeds = trace.rows_named(ops.name, lambda text: text == "aten::embedding")
    rows = np.flatnonzero(embeds & (ops.start_ns >= low) & (ops.start_ns < high) & (ops.dims != NO_TEXT))
    found = set()
    for dims, types in {(int(ops.dims[row]), int(ops.types[row])) for row in rows.tolist()}:
        tensors = parse("", trace.text(dims), trace.text(types), None, None).tensors
        if len(tensors) > 1:
            found.add(math.prod(tensors[1].shape))
    return frozenset(found)


def over_all_tokens(timeline: Timeline, tokens: frozenset[int]) -> Mask:
    """Mask of the GPU events whose op has a tensor with a row for each token of the batch; an expert's ops have fewer
    rows."""
    trace, ops = timeline.trace, timeline.trace.ops
    op = timeline.links.op
    known = np.flatnonzero((op >= 0) & (np.append(ops.dims, NO_TEXT)[op] != NO_TEXT))
    if not len(known) or not tokens:
        return np.zeros(len(op), bool)
    texts, which = np.unique(np.stack([ops.dims[op[known]], ops.types[op[known]]]), axis=1, return_inverse=True)
    whole = np.zeros(texts.shape[1], bool)
    for i, (dims, types) in enumerate(texts.T.tolist()):
        tensors = parse("", trace.text(dims), trace.text(types), None, None).tensors
        whole[i] = any(t.shape and t.elements // max(t.shape[-1], 1) in tokens for t in tensors)
    result = np.zeros(len(op), bool)
    result[known] = whole[which.reshape(-1)]
    return result


def rows_and_factor(
    graph: Graph, nodes: Mask | None, tokens: float | None, factor: float, share: float, wider: float
) -> tuple[F64 | float | None, F64 | float]:
    """For each GPU event (rows of its matrix multiplication, factor by which they grow).

    nodes: those of loops over experts. share: the share of tokens that an expert gets on average as recorded; with
    `wider` times the experts it gets 1/`wider` of that.
    """
    if nodes is None:
        return tokens, factor
    events = expert_events(graph, nodes) & ~over_all_tokens(graph.timeline, forward_tokens(graph.timeline))
    rows = None if tokens is None else np.where(events, tokens * share, tokens)
    return rows, np.where(events, factor / wider, factor)

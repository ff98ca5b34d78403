"""Groups nodes by the name of the op or range that contains them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.sentences import listed
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Convention, Entries, Share

MOST_GROUPS: Convention[Entries] = 4
"""Most groups that are listed separately; the others are combined."""
LEAST_GROUP_SHARE: Convention[Share] = 0.002
"""Smallest share of the step of a separate group, and of the combined others."""
OTHERS = "other ops"
MOST_NAMED: Convention[Entries] = 2
"""Most groups that an item of several is named after."""
_NUMBER = re.compile(r"#\d+")


def by_name(case: Analysis, nodes: Mask, outside: str = "Python code") -> list[tuple[str, Mask]]:
    """(name, nodes) for each op that contains some of the nodes; `outside`: name for nodes outside all ops and
    ranges. The one with the longest nodes comes first."""
    graph, trace = case.graph, case.trace
    rows = np.flatnonzero(nodes)
    if not len(rows):
        return []
    scope = graph.scope[rows]
    op = climb(scope, case.timeline.nesting.parent, trace.ops.kind == OP)
    at = np.where(op >= 0, op, scope)
    name = np.append(trace.ops.name, -1)[at]
    found: dict[str, Mask] = {}
    for one in np.unique(name).tolist():
        text = trace.strings[one] if one >= 0 else outside
        text = outside if text.startswith("ProfilerStep") else _NUMBER.sub("", text)
        mask = found.setdefault(text, np.zeros(len(graph), bool))
        mask[rows[name == one]] = True
    return sorted(found.items(), key=lambda one: (-float(graph.duration_ns[one[1]].sum()), one[0]))


def of_one_cause(
    case: Analysis, groups: list[tuple[str, Mask]], waiting: bool = False
) -> Iterator[tuple[str, Mask]]:  # fmt: skip
    """All groups as one, named after the largest; empty if there are none. `waiting`: sizes are waiting times."""
    alone = largest_first(case, groups, waiting)
    if not alone:
        return
    names = [name for name, _ in alone if name != OTHERS][:MOST_NAMED]
    more = [OTHERS] if len(alone) > len(names) else []
    yield listed([*names, *more]), np.logical_or.reduce([nodes for _, nodes in groups])


def largest_first(
    case: Analysis, groups: list[tuple[str, Mask]], waiting: bool = False, others: str = OTHERS
) -> list[tuple[str, Mask]]:
    """The largest groups first, the small ones combined; `waiting`: sizes are waiting times."""
    graph = case.graph
    ns = graph.recorded_end_ns - graph.recorded_start_ns if waiting else graph.duration_ns
    sized = sorted(((float(ns[nodes].clip(0).sum()), name, nodes) for name, nodes in groups), key=lambda one: -one[0])
    # A wait's recorded length says little about the gain without it: the queue behind it is refilled, too.
    least = 0.0 if waiting else LEAST_GROUP_SHARE * case.step_ns * graph.steps
    alone = [(name, nodes) for size, name, nodes in sized[:MOST_GROUPS] if size >= least]
    rest = [nodes for _, _, nodes in sized[len(alone) :]]
    if rest and sum(size for size, _, _ in sized[len(alone) :]) >= least:
        together = np.logical_or.reduce(rest)
        alone.append((others if len(rest) > 1 else sized[len(alone)][1], together))
    return alone

"""Several calls of `torch.autograd.grad` for the derivatives of one output, whose graph is differentiated again.

A residual of a differential equation needs the derivatives of one network by time and place. Each call goes through the
whole network, and each makes a graph of its own, through which later passes go as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.repeated.repeated_backward import runs_of
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, I64, OP, Mask
from gpuprof.units import Assumed, Ops, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_NODES: Assumed[Ops] = 6
"""Fewest autograd nodes that two passes share: a network of three layers has these, an expression of its outputs
fewer."""
BOTH_SHARE: Assumed[Share] = 0.5
"""Smallest share of an earlier pass's nodes in a later pass, relative to those of the repeated one, if it goes through
both graphs."""
SUMS = re.compile(r"(Sum|Mean)Backward\d*$")
"""Nodes between a single number that is differentiated and the output that it adds up."""
ONES = frozenset(f"aten::{name}" for name in ("ones_like", "ones", "sum", "mean", "fill_", "full_like", "expand"))
"""Last ops before a pass over all elements of an output. Before others it may be a derivative along a direction, which
is new in each pass."""
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RepeatedDerivatives:
    """Work of passes for an output that has been differentiated before."""

    again: Stretches
    """Nodes that an earlier pass of the step has run for the same output, and the derivatives of what they compute."""
    calls: float
    """Number of such passes, per step."""
    nodes: float
    """Number of autograd nodes that run again, per step, in these and in later passes."""


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A backward pass, by rows of autograd's nodes in order of time."""

    rows: list[int]
    keys: list[_Key]
    """(number of the thread, number of the node)."""
    made: list[list[int]]
    """Numbers of the nodes that each node's ops make; none in passes that are not differentiated."""
    names: list[str]
    is_along_ones: bool


def find_repeated_derivatives(case: Analysis) -> RepeatedDerivatives | None:
    """Passes that a single one for several inputs replaces; None if there are none. Computed once per case."""
    if "repeated_derivatives" not in case.memo:
        case.memo["repeated_derivatives"] = _find(case)
    return case.memo["repeated_derivatives"]


def _find(case: Analysis) -> RepeatedDerivatives | None:
    if not len(case.timeline.host.differentiable):
        return None
    gone, calls = set[int](), 0
    for passes in passes_of_steps(case):
        number = _number_of_makers(passes)
        for at, one in enumerate(passes):
            twin = _twin(passes, at)
            if twin is None:
                continue
            shared = set(twin.keys)
            places = [place for place, key in enumerate(one.keys) if key in shared]
            if len(places) < FEWEST_NODES:
                continue
            calls += 1
            gone |= {one.rows[place] for place in places}
            again = {(number, made) for place in places for made in one.made[place]}
            first = {(number, made) for numbers in twin.made for made in numbers}
            gone |= _through(passes[at + 1 :], again, first, number)
    if not calls:
        return None
    ops = case.trace.ops
    rows = np.flatnonzero(engine_nodes(case))
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    return RepeatedDerivatives(
        runs_of(case, rows, np.isin(rows, list(gone))), calls / case.steps, len(gone) / case.steps
    )


def engine_nodes(case: Analysis) -> Mask:
    """The nodes that autograd's engine runs in the recorded steps; a mask over ops."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    named = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    return named & (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high)


def passes_of_steps(case: Analysis) -> Iterator[list[GraphPass]]:
    """The backward passes of each step with several, those that are differentiated and others, in order of time. An op
    of the program between two nodes of autograd separates two passes."""
    ops, host = case.trace.ops, case.timeline.host
    rows = np.flatnonzero(engine_nodes(case) & (ops.sequence >= 0))
    if not len(rows):
        return
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    outer = _outer_ops(case)
    begun = ops.start_ns[rows]
    before = np.searchsorted(ops.end_ns[outer], begun, side="right") - 1
    step = np.searchsorted(case.timeline.steps.start_ns, begun, side="right")
    inner = np.searchsorted(host.differentiable.start, begun, side="right") - 1
    inside = (inner >= 0) & (begun < np.append(host.differentiable.end, 0)[inner])
    makes = _made(case, rows[inside])
    changes = (np.diff(column, prepend=-2) != 0 for column in (before, step, inside.astype(np.int8)))
    first = np.flatnonzero(np.logical_or.reduce(list(changes)))
    several = np.bincount(step[first])[step[first]] > 1
    passes = dict[int, list[GraphPass]]()
    for start, end in np.stack([first, np.append(first[1:], len(rows))], axis=1)[several].tolist():
        mine = rows[start:end].tolist()
        last = case.trace.strings[int(ops.name[outer[before[start]]])] if before[start] >= 0 else ""
        one = GraphPass(
            mine,
            list(zip(ops.forward_thread[mine].tolist(), ops.sequence[mine].tolist(), strict=True)),
            [makes.get(row, []) for row in mine],
            [case.trace.strings[name] for name in ops.name[mine].tolist()],
            last in ONES,
        )
        passes.setdefault(int(step[start]), []).append(one)
    yield from passes.values()


def _outer_ops(case: Analysis) -> I64:
    """Rows of the program's own ops that are in no other, in order of time."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    outer = (ops.kind == OP) & ~np.append(ops.kind == OP, False)[parent]
    rows = np.flatnonzero(outer & case.ops_named(lambda name: name.startswith("aten::")))
    return rows[np.argsort(ops.end_ns[rows], kind="stable")]


def _made(case: Analysis, rows: I64) -> dict[int, list[int]]:
    """Numbers of the nodes that the ops inside autograd's nodes make, by row of the node."""
    ops = case.trace.ops
    found: dict[int, list[int]] = {}
    for thread in np.unique(ops.thread[rows]).tolist():
        mine = rows[ops.thread[rows] == thread]
        inner = np.flatnonzero(
            (ops.kind == OP) & (ops.thread == thread) & (ops.sequence >= 0) & (ops.forward_thread <= 0)
        )
        at = np.searchsorted(ops.start_ns[mine], ops.start_ns[inner], side="right") - 1
        inside = (at >= 0) & (ops.end_ns[inner] <= ops.end_ns[mine[np.maximum(at, 0)]])
        for row, number in zip(mine[at[inside]].tolist(), ops.sequence[inner[inside]].tolist(), strict=True):
            found.setdefault(row, []).append(number)
    return found


def _number_of_makers(passes: list[GraphPass]) -> int:
    """The profiler's number of the thread whose ops inside autograd's nodes make nodes: that of the later nodes whose
    numbers are most often among theirs."""
    made = {number for one in passes for numbers in one.made for number in numbers}
    keys = [key for one in passes for key in one.keys]
    numbers = sorted({thread for thread, _ in keys})
    shares = [np.mean([number in made for thread, number in keys if thread == each]) for each in numbers]
    return numbers[int(np.argmax(shares))] if numbers else -1


def output_of(one: GraphPass) -> _Key | None:
    """The node of the output that a pass differentiates: its first one, but for the sum of its elements."""
    return next((key for key, name in zip(one.keys, one.names, strict=True) if not SUMS.search(name)), None)


def _twin(passes: list[GraphPass], at: int) -> GraphPass | None:
    """The first earlier pass of the step for the same output; None if there is none, or if either is along a
    direction."""
    one = passes[at]
    if not any(one.made) or not one.is_along_ones or (output := output_of(one)) is None:
        return None
    earlier = (other for other in passes[:at] if any(other.made) and other.is_along_ones)
    return next((other for other in earlier if output_of(other) == output), None)


def made_by(passes: list[GraphPass], one: GraphPass) -> set[int]:
    """Rows of later passes through the graph that a pass has made, and through what these make of it."""
    number = _number_of_makers([one, *passes])
    return _through(passes, {(number, made) for numbers in one.made for made in numbers}, None, number)


def _through(passes: list[GraphPass], again: set[_Key], first: set[_Key] | None, number: int) -> set[int]:
    """Rows of later passes through a graph; where that of another one is given, of those that go through both."""
    gone = set[int]()
    for one in passes:
        mine = [place for place, key in enumerate(one.keys) if key in again]
        theirs = [] if first is None else [place for place, key in enumerate(one.keys) if key in first]
        if not mine or (first is not None and len(theirs) < BOTH_SHARE * len(mine)):
            continue
        gone |= {one.rows[place] for place in mine}
        again |= {(number, made) for place in mine for made in one.made[place]}
        if first is not None:
            first |= {(number, made) for place in theirs for made in one.made[place]}
    return gone

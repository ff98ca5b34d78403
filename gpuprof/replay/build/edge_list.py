"""The nodes of a graph in their order, the edges between them, kind by kind, and those between host segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpuprof.replay.build.cpu_lanes import Handover, Pieces
from gpuprof.replay.build.work import GpuWork
from gpuprof.replay.graph import HANDOVER, LANE
from gpuprof.tracefile.trace import F64, I64, U8, Mask

_PIECE, _WORK, _WAIT = range(3)


class EdgeList(NamedTuple):
    """Edges of one kind between nodes. Each target starts at the earliest `lag_ns` after its source's end, or after its
    start where `from_start`."""

    kind: int
    target: I64
    source: I64
    lag_ns: F64 | I64 | float = 0.0
    from_start: bool | Mask = False


class Nodes:
    """The numbers of the nodes.

    A host segment comes first, then what it launches, then the wait that ends it: an order that all edges
    follow, because launches, waits and handovers go forward in host time.
    """

    def __init__(self, pieces: Pieces, work: GpuWork, sync_pieces: I64) -> None:
        waiting = np.unique(np.concatenate([sync_pieces, work.piece[work.blocks]]))
        moment = np.concatenate(
            [
                # A lane that stalls waits until others have done what lies in between.
                np.where(pieces.waits, pieces.end_ns, pieces.start_ns),
                work.moment_ns,
                pieces.start_ns[waiting],
            ]
        )
        kind = np.concatenate([np.full(len(pieces), _PIECE), np.full(len(work), _WORK), np.full(len(waiting), _WAIT)])
        self.order = np.lexsort((np.arange(len(kind)), kind, moment))
        number = np.empty(len(kind), np.int64)
        number[self.order] = np.arange(len(kind))
        self._piece, self._work = number[: len(pieces)], number[len(pieces) : len(pieces) + len(work)]
        self._wait = np.full(len(pieces), -1, np.int64)
        self._wait[waiting] = number[len(pieces) + len(work) :]
        self.waiting = waiting
        """Pieces that end with a wait."""

    def __len__(self) -> int:
        return len(self.order)

    def piece(self, index: I64) -> I64:
        """The node of a piece's own work."""
        return self._piece[index]

    def end(self, index: I64) -> I64:
        """The node with which a piece ends: its wait, where it has one."""
        return np.where(self._wait[index] >= 0, self._wait[index], self._piece[index])

    def wait(self, index: I64) -> I64:
        """The node of the wait that ends a piece; -1 where it has none."""
        return self._wait[index]

    def work(self, index: I64) -> I64:
        """The node of a kernel or copy."""
        return self._work[index]


def lane_edges(nodes: Nodes, pieces: Pieces) -> tuple[EdgeList, ...]:
    """Edges from each piece to the next of its thread, to the wait that ends it, and around from the last to the
    first."""
    following = np.flatnonzero(~pieces.first)
    first = np.flatnonzero(pieces.first)
    last = np.append(first[1:], len(pieces)) - 1 if len(first) else first
    return (
        EdgeList(LANE, nodes.piece(following), nodes.end(following - 1)),
        EdgeList(LANE, nodes.wait(nodes.waiting), nodes.piece(nodes.waiting)),
        EdgeList(LANE, nodes.piece(first), nodes.end(last)),
    )


def handover_edges(nodes: Nodes, handovers: list[Handover]) -> tuple[EdgeList, ...]:
    """Edges from where one thread hands over to another."""
    if not handovers:
        return ()
    source, target, lag = (np.array(column, np.int64) for column in zip(*handovers, strict=True))
    return (EdgeList(HANDOVER, nodes.piece(target), nodes.end(source), lag),)


def columns(parts: Iterable[EdgeList]) -> tuple[I64, I64, F64, Mask, U8]:
    """(target, source, lag_ns, from_start, kind) of all edges, in their order."""
    found = [
        (
            one.target,
            one.source,
            np.broadcast_to(np.asarray(one.lag_ns, np.float64), len(one.target)),
            np.broadcast_to(np.asarray(one.from_start, bool), len(one.target)),
            np.full(len(one.target), one.kind, np.uint8),
        )
        for one in parts
    ]
    target, source, lag, from_start, kind = (np.concatenate(column) for column in zip(*found, strict=True))
    return target, source, lag, from_start, kind

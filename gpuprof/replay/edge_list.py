"""The nodes of a graph in their order, and a growing list of the edges between them."""

from __future__ import annotations

import numpy as np

from gpuprof.replay.lanes import Pieces
from gpuprof.replay.work import Work
from gpuprof.tracefile.trace import F64, I64, U8, Mask

_PIECE, _WORK, _WAIT = range(3)


class EdgeList:
    """Numbers the nodes and collects the edges between them.

    A host segment comes first, then what it launches, then the wait that ends it: an order that all edges
    follow, because launches, waits and handovers go forward in host time.
    """

    def __init__(self, pieces: Pieces, work: Work, sync_pieces: I64) -> None:
        waiting = np.unique(np.concatenate([sync_pieces, work.piece[work.blocks]]))
        moment = np.concatenate(
            [
                # A lane that stalls does so until others have done what stands between.
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
        self.nodes, self.waiting = len(kind), waiting
        self._columns: list[tuple[np.ndarray, ...]] = []

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

    def add(
        self, kind: int, target: I64, source: I64, lag_ns: F64 | I64 | float = 0.0, from_start: bool | Mask = False
    ) -> None:
        """Adds edges of one kind between nodes. The target starts at the earliest `lag_ns` after the source's end, or
        after its start where `from_start`."""
        shape = len(target)
        self._columns.append(
            (
                target,
                source,
                np.broadcast_to(np.asarray(lag_ns, np.float64), shape),
                np.broadcast_to(np.asarray(from_start, bool), shape),
                np.full(shape, kind, np.uint8),
            )
        )

    def columns(self) -> tuple[I64, I64, F64, np.ndarray, U8]:
        """(target, source, lag_ns, from_start, kind) of all edges, in the order in which they were added."""
        target, source, lag, from_start, kind = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        return target, source, lag, from_start, kind

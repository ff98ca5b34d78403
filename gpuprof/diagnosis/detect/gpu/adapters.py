"""LoRA adapters in the ops of a forward pass: two thin matrix multiplications in a row, and what is done around them.

An adapter multiplies its input by a wide, low weight (A) and the result by a high, narrow one (B). Dropout on the input
comes before it. DoRA multiplies A and B with a unit matrix first, adds the result to the whole weight, takes the norms
of its rows, multiplies the input by the base weight once more where there is dropout, and scales by norms afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import backward_of, shapes_in, siblings, without_recompute
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Assumed, Elements, Ops, Times

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LOW_RANK: Assumed[Times] = 4
"""Smallest ratio of the sides of an adapter's weights; a model's layers go up to 3.5 (28672 : 8192)."""
MOST_RANK: Assumed[Elements] = 512
OPS_TO_B: Assumed[Ops] = 3
"""Ops from A to B at most: between them may be a cast."""
OPS_BEHIND: Assumed[Ops] = 5
"""Ops after B that still belong to the adapter: scaling, casts, sum."""
BEHIND = frozenset({"aten::mul", "aten::add", "aten::add_", "aten::to", "aten::_to_copy"})
_LINEAR, _DROPOUT = "aten::linear", "aten::dropout"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of the recorded steps. Masks are over the graph's nodes, forward and backward, without waits."""

    count: int
    """Number of adapter calls in all recorded steps."""
    nodes: Mask
    """All work of adapters."""
    dropout: Mask
    """Dropout on their inputs."""
    dora: Mask
    """The work that DoRA adds to LoRA."""
    norms: int
    """Number of adapter calls with DoRA's norms."""


def find_adapters(case: Analysis) -> Adapters | None:
    """The adapters; None if there are none, or if shapes were not recorded. Computed once per case."""
    if "adapters" not in case.memo:
        case.memo["adapters"] = _Ops(case, *siblings(case)).adapters()
    return case.memo["adapters"]


def adapters_in(case: Analysis, calls: Sequence[I64]) -> Adapters | None:
    """The adapters in some calls of a model, each given by its outermost ops in order of time; None if there are
    none."""
    if not calls:
        return None
    return _Ops(case, np.concatenate(calls), np.repeat(np.arange(len(calls)), [len(one) for one in calls])).adapters()


class _Ops:
    """Forward ops in order, with the shapes of the linear ones."""

    def __init__(self, case: Analysis, rows: I64, family: I64) -> None:
        """rows: of the ops; family: the same number for ops that follow one another."""
        self.case, self.rows, self.family = case, rows, family
        self.names = case.trace.texts(case.trace.ops.name[self.rows])
        self._dims = case.trace.ops.dims[self.rows].tolist()
        self.linear = [at for at, name in enumerate(self.names) if name == _LINEAR]

    def shapes(self, at: int) -> list[Shape | None]:
        """Shapes of an op's arguments."""
        return shapes_in(self.case, self._dims[at])

    def adapters(self) -> Adapters | None:
        pairs = [(a, b) for a, b in zip(self.linear, self.linear[1:], strict=False) if self._is_pair(a, b)]
        units = [pair for pair in pairs if self._is_unit(pair[0])]
        real = [pair for pair in pairs if not self._is_unit(pair[0])]
        if not real:
            return None
        norms = [self._norms(a, b) for a, b in units]
        scales = [found for found in map(self._scales, self._after(norms, real)) if found is not None]
        before = [self._dropout(pair) for pair in real]
        dropouts = [at for at in before if at is not None]
        again = [at for first, last in scales for at in range(first, last + 1) if self.names[at] == _LINEAR]
        dora = self._nodes([*norms, *scales], with_python=True)
        dropout = self._nodes([(at, at) for at in (*dropouts, *(again if dropouts else ()))])
        begins = [a - 1 if at == a - 1 else a for (a, _), at in zip(real, before, strict=True)]
        own = self._nodes([(begin, self._end(b)) for begin, (_, b) in zip(begins, real, strict=True)], with_python=True)
        return Adapters(len(real), own | dropout | dora, dropout, dora, len(norms))

    def _is_pair(self, a: int, b: int) -> bool:
        """Whether two linear ops make an adapter: from wide to narrow and back."""
        if b - a > OPS_TO_B or self.family[a] != self.family[b]:
            return False
        first, second = self.shapes(a)[1:2], self.shapes(b)[1:2]
        if not first or not second or first[0] is None or second[0] is None:
            return False
        if len(first[0]) != 2 or len(second[0]) != 2:
            return False
        (rank, wide), (out, narrow) = first[0], second[0]
        return rank == narrow and rank <= MOST_RANK and rank * LOW_RANK <= min(wide, out)

    def _is_unit(self, a: int) -> bool:
        """Whether the input of A has the size of a unit matrix."""
        given, weight = self.shapes(a)[:2]
        return given is not None and weight is not None and given == (weight[1], weight[1])

    def _norms(self, a: int, b: int) -> tuple[int, int]:
        """(first, last) of the ops around a pair on a unit matrix whose tensors have the sizes of the weight alone."""
        first, second = self.shapes(a)[1], self.shapes(b)[1]
        sizes = {*(first or ()), *(second or ()), 1}

        def belongs(at: int) -> bool:
            same = 0 <= at < len(self.rows) and self.family[at] == self.family[b]
            return same and all(side in sizes for shape in self.shapes(at) for side in shape or ())

        begin, end = a, b
        while belongs(begin - 1):
            begin -= 1
        while belongs(end + 1):
            end += 1
        return begin, end

    def _after(self, norms: list[tuple[int, int]], real: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The adapters that directly follow norms."""
        firsts = np.array([a for a, _ in real])
        at = np.searchsorted(firsts, [end for _, end in norms])
        return [real[i] for i in at.tolist() if i < len(real)]

    def _scales(self, pair: tuple[int, int]) -> tuple[int, int] | None:
        """(first, last) op behind B that multiplies by the base weight or scales by norms of its rows."""
        a, b = pair
        first, second = self.shapes(a)[1], self.shapes(b)[1]
        if first is None or second is None:
            return None
        whole, row, last = (second[0], first[1]), (1, second[0]), b
        while last + 1 < len(self.rows) and self.family[last + 1] == self.family[b]:
            shapes = self.shapes(last + 1)
            if not (row in shapes or (self.names[last + 1] == _LINEAR and shapes[1:2] == [whole])):
                break
            last += 1
        return (b + 1, last) if last > b else None

    def _dropout(self, pair: tuple[int, int]) -> int | None:
        """The dropout on the input of A."""
        given = self.shapes(pair[0])[0]
        for at in range(pair[0] - 1, -1, -1):
            if self.family[at] != self.family[pair[0]]:
                return None
            if self.names[at] == _DROPOUT and self.shapes(at)[:1] == [given]:
                return at
            if self.names[at] == _LINEAR and given in self.shapes(at):
                return None
        return None

    def _end(self, b: int) -> int:
        """The last op of an adapter: its scaling and its sum."""
        last = b
        while last + 1 < len(self.rows) and last < b + OPS_BEHIND and self.names[last + 1] in BEHIND:
            if self.family[last + 1] != self.family[b]:
                break
            last += 1
        return last

    def _nodes(self, spans: list[tuple[int, int]], with_python: bool = False) -> Mask:
        """Nodes of runs of ops, (first, last) each, and of their backward work; `with_python`: also the Python code
        before and after them."""
        case, ops = self.case, self.case.trace.ops
        if not spans:
            return np.zeros(len(case.graph), bool)
        at = np.array(spans, np.int64)
        first, last = self.rows[at[:, 0]], self.rows[at[:, 1]]
        thread: I64 = ops.thread[first].astype(np.int64)
        forward = Stretches(thread, ops.start_ns[first], ops.end_ns[last])
        if with_python:
            before, after = np.maximum(at[:, 0] - 1, 0), np.minimum(at[:, 1] + 1, len(self.rows) - 1)
            follows, goes_on = (self.family[near] == self.family[at[:, 0]] for near in (before, after))
            start = np.where(follows & (before < at[:, 0]), ops.end_ns[self.rows[before]], forward.start_ns)
            end = np.where(goes_on & (after > at[:, 1]), ops.start_ns[self.rows[after]], forward.end_ns)
            forward = Stretches(thread, start, end)
        backward = without_recompute(case, nodes_in(case.graph, backward_of(case, forward)))
        return ((nodes_in(case.graph, forward) >= 0) | (backward >= 0)) & ~case.graph.waits

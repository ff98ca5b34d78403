"""Losses over all classes of targets that are made from labels: one-hot vectors, smoothed or not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.tracefile.trace import I64, OP
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_OPS_BETWEEN: Assumed[Ops] = 12
"""Most ops next to each other between labels, their distribution, its multiplication and the sum."""
MAKING = frozenset({"aten::one_hot", "aten::scatter_"})
FILLS = frozenset({"aten::zeros_like", "aten::full_like", "aten::zeros", "aten::full", "aten::fill_", "aten::zero_",
                   "aten::empty_like", "aten::new_zeros", "aten::new_full"})  # fmt: skip
"""Ops before `scatter_` that make what it fills."""
SCALES = frozenset({"aten::mul", "aten::mul_", "aten::add", "aten::add_", "aten::div", "aten::div_", "aten::sub",
                    "aten::rsub"})  # fmt: skip
LOSSES = frozenset({"aten::kl_div", "aten::cross_entropy_loss"})
LOGARITHMS = frozenset({"aten::log_softmax", "aten::_log_softmax"})
ENDS = LOSSES | {"aten::sum", "aten::mean"}
INTEGERS = ("long int", "int", "bool", "unsigned char")


class OneHotLoss(NamedTuple):
    """A distribution times log-probabilities, or a loss op that multiplies them: rows of ops."""

    replaced: tuple[int, ...]
    """All ops that make the distribution, multiply and sum."""
    product: int
    total: int
    """The op that sums, or the loss op itself."""
    sums: bool
    """Whether multiplication and sum are separate ops."""
    tokens: int
    classes: int


def find_one_hot_losses(case: Analysis) -> list[OneHotLoss]:
    """The losses of the recorded steps; empty where there are none, or no shapes were recorded."""
    ops = case.trace.ops
    losses = np.unique(ops.dims[case.ops_named(lambda name: name in LOSSES or name in LOGARITHMS)]).tolist()
    rows = {math.prod(shape[:-1]) for text in losses for shape in shapes_in(case, text)[:1] if shape}
    makes = case.ops_named(MAKING.__contains__)
    scatters = case.ops_named("aten::scatter_".__eq__)
    texts = {text for text in np.unique(ops.dims[makes & ~scatters]).tolist() if _tokens(case, text, False) in rows}
    wide = {text for text in np.unique(ops.dims[scatters]).tolist() if _tokens(case, text, True) in rows}
    # Models of experts scatter in each layer: only where the tokens are those of a loss the ops around are looked at.
    starts = np.flatnonzero(makes & np.where(scatters, np.isin(ops.dims, list(wide)), np.isin(ops.dims, list(texts))))
    found = list[OneHotLoss]()
    for row in starts[np.argsort(ops.start_ns[starts])].tolist():
        one = _Near(case, row).loss()
        if one is not None and (not found or found[-1].product != one.product):
            found.append(one)
    return found


def tokens_of(case: Analysis, row: int) -> int | None:
    """Labels that an op makes one-hot vectors of; None if it makes none."""
    scattered = case.trace.text(int(case.trace.ops.name[row])) == "aten::scatter_"
    return _tokens(case, int(case.trace.ops.dims[row]), scattered)


def _tokens(case: Analysis, text: int, scattered: bool) -> int | None:
    """Labels that an op makes distributions of, by the text of its shapes; None if it makes none."""
    made = [one for one in shapes_in(case, text) if one]
    if not made:
        return None
    if scattered:
        return math.prod(made[0][:-1]) if len(made) > 1 and made[1] == (*made[0][:-1], 1) else None
    return math.prod(made[0])


class _Near:
    """An op that makes one-hot vectors, and the ops next to it within the same parent, in order of time."""

    def __init__(self, case: Analysis, row: int) -> None:
        self.case, self.row = case, row
        ops, parent = case.trace.ops, case.timeline.nesting.parent
        mine = np.flatnonzero((ops.kind == OP) & (ops.thread == ops.thread[row]) & (parent == parent[row]))
        mine = mine[np.argsort(ops.start_ns[mine], kind="stable")]
        self.at = int(np.flatnonzero(mine == row)[0])
        self.rows: I64 = mine

    def name(self, at: int) -> str:
        return self.case.trace.text(int(self.case.trace.ops.name[self.rows[at]])) or ""

    def shapes(self, at: int) -> list[tuple[int, ...]]:
        return [one for one in shapes_in(self.case, int(self.case.trace.ops.dims[self.rows[at]])) if one]

    def type(self, at: int) -> str:
        """Type of an op's first argument."""
        return next(iter(types_in(self.case, int(self.rows[at]))), "")

    def loss(self) -> OneHotLoss | None:
        scattered = self.name(self.at) == "aten::scatter_"
        tokens = _tokens(self.case, int(self.case.trace.ops.dims[self.row]), scattered)
        if tokens is None or self._follows_another():
            return None
        replaced = [self.row, *(self._fills() if scattered else [])]
        end = min(self.at + 1 + MOST_OPS_BETWEEN, len(self.rows))
        for at in range(self.at + 1, end):
            name, shapes = self.name(at), self.shapes(at)
            if name in MAKING:
                return None  # two of them are mixed
            if len(shapes) > 1 and shapes[0] == shapes[1] and math.prod(shapes[0][:-1]) == tokens:
                return self._ending(at, replaced, shapes[0])
            wide = bool(shapes) and math.prod(shapes[0][:-1]) == tokens and len(shapes[0]) >= 2
            if wide and (name in SCALES or (name == "aten::to" and self.type(at) in INTEGERS)):
                replaced.append(int(self.rows[at]))
        return None

    def _follows_another(self) -> bool:
        """Whether another distribution was made before that no loss has used yet: two of them are mixed."""
        for at in range(self.at - 1, max(self.at - 1 - MOST_OPS_BETWEEN, -1), -1):
            name = self.name(at)
            if name in MAKING or name in ENDS:
                return name in MAKING
        return False

    def _fills(self) -> list[int]:
        found = list[int]()
        for at in range(self.at - 1, max(self.at - 1 - MOST_OPS_BETWEEN, -1), -1):
            if self.name(at) not in FILLS:
                break
            found.append(int(self.rows[at]))
        return found

    def _ending(self, at: int, replaced: list[int], shape: tuple[int, ...]) -> OneHotLoss | None:
        """The loss whose multiplication, or whose own op, is at a place."""
        row, name = int(self.rows[at]), self.name(at)
        tokens, classes = math.prod(shape[:-1]), shape[-1]
        if name == "aten::cross_entropy_loss" or (name == "aten::kl_div" and self._has_log_softmax(at, shape)):
            return OneHotLoss((*replaced, row), row, row, False, tokens, classes)
        if name != "aten::mul" or not self._has_log_softmax(at, shape):
            return None
        for after in range(at + 1, min(at + 4, len(self.rows))):
            if self.name(after) == "aten::sum" and shape in self.shapes(after):
                total = int(self.rows[after])
                between = [int(one) for one in self.rows[at : after + 1]]
                return OneHotLoss((*replaced, *between), row, total, True, tokens, classes)
            if self.name(after) != "aten::neg":
                return None
        return None

    def _has_log_softmax(self, at: int, shape: tuple[int, ...]) -> bool:
        """Whether log-probabilities of this shape were computed shortly before a place."""
        return any(
            self.name(one) in LOGARITHMS and shape in self.shapes(one)
            for one in range(max(self.at - MOST_OPS_BETWEEN, 0), at)
        )

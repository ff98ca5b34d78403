"""Functions that are written out as several ops, where one kernel each way would do: activations, and others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.gpu import written_out
from gpuprof.diagnosis.detect.gpu.fused_sequences import (
    ACTIVATION,
    FUNCTION,
    LAYER_NORM,
    PART,
    Found,
    NamedOps,
    Sequences,
    found_by,
    grow,
)
from gpuprof.diagnosis.detect.gpu.written_out import written_functions
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Ops

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

GELU_TANH, GELU, MISH, OTHER = "gelu_tanh", "gelu", "mish", "other"
"""Functions of torch, and what is none of them."""
KINDS = {OTHER: FUNCTION, written_out.VOCABULARY: FUNCTION, written_out.LAYER_NORM: LAYER_NORM}
"""Kind of sequence of each function that is not one elementwise kernel of torch."""
CASTS = ("to", "_to_copy", "float")
MATMULS = ("linear", "matmul", "addmm", "mm", "bmm")
POLYNOMIAL = ("mul", "pow", "square", "add")
"""Ops of a polynomial in one tensor: x + 0.044715 x³ and its factors."""
MOST_BEFORE: Assumed[Ops] = 8
"""Most ops of such a polynomial, with casts."""
FEWEST_BEFORE: Assumed[Ops] = 4
"""Fewest: two factors or a power, a sum, and a factor."""
MOST_AFTER: Assumed[Ops] = 3
"""Most ops after the curve: 1 +, a half, and the tensor itself."""


@dataclass(frozen=True, slots=True)
class ActivationsByHand:
    """Sequences of the forward pass, and which function each computes."""

    found: Sequences
    names: tuple[str, ...]
    """Functions that occur."""


def find_activations(case: Analysis) -> ActivationsByHand | None:
    """Functions that are written out, in the window's forward passes and their recomputation; None without any."""
    names = dict[str, None]()

    def activations(named: NamedOps, family: I64) -> Iterator[Found]:
        for name, first, last, at in _written_out(named, family):
            names[name] = None
            yield first, last, KINDS.get(name, ACTIVATION), at
            for cast in _cast_back(named, family, last, at):
                yield cast, cast, PART, at

    found = found_by(case, activations)
    return None if found is None else ActivationsByHand(found, tuple(names))


def _cast_back(named: NamedOps, family: I64, last: int, at: int) -> list[int]:
    """Casts of the result inside the op that takes it: autocast computes a power in float32, and casts for the matrix
    multiplication after it."""
    taken = grow(last, named("view", "reshape", "flatten"), family, 1, 1) + 1
    if taken >= len(family) or family[taken] != family[last] or not named(*MATMULS)[taken]:
        return []
    size = named.elements(int(named.dims[at]))
    return [row for row in named.within(taken, "to").tolist() if named.elements(int(named.dims[row])) == size]


def _written_out(named: NamedOps, family: I64) -> Iterator[tuple[str, int, int, int]]:
    """(function, first op, last op, its curve) of each, as positions."""
    ops = _Ops(named, family)
    for at in np.flatnonzero(named("tanh")).tolist():
        yield from _by_tanh(ops, at)
    for at in np.flatnonzero(named("erf")).tolist():
        first, last = grow(at, named("mul", "div", *CASTS), family, -1, 2), ops.weighted(at)
        if last is not None and first < at:
            yield GELU, first, last, at
    for at in np.flatnonzero(named("sigmoid")).tolist():
        # x · sigmoid(1.702 x)
        if ops.scaled(at - 1, at) and ops.multiplied(at + 1, at):
            yield OTHER, at - 1, at + 1, at
    for at in np.flatnonzero(named("relu")).tolist():
        if ops.is_one(at + 1, at, "pow", "square"):
            yield OTHER, at, at + 1, at
    yield from written_functions(named, family)


def _by_tanh(ops: _Ops, at: int) -> Iterator[tuple[str, int, int, int]]:
    """GELU's approximation, Mish, and a bound on logits."""
    if ops.is_one(at - 1, at, "softplus") and ops.multiplied(at + 1, at):
        yield MISH, at - 1, at + 1, at
        return
    last, first = ops.weighted(at), ops.polynomial(at)
    if last is not None and first is not None:
        yield GELU_TANH, first, last, at
    elif (ops.scaled(at - 1, at) or ops.scaled(at - 1, at, "div")) and ops.scaled(at + 1, at):
        yield OTHER, at - 1, at + 1, at  # limit · tanh(x / limit)


class _Ops:
    """Questions about the ops around a curve, by position; those of another family do not count."""

    def __init__(self, named: NamedOps, family: I64) -> None:
        self._named, self._family = named, family

    def is_one(self, row: int, at: int, *names: str) -> bool:
        """Whether a row has one of these names."""
        return 0 <= row < len(self._family) and bool(self._named(*names)[row] and self._family[row] == self._family[at])

    def scaled(self, row: int, at: int, name: str = "mul") -> bool:
        """Whether a row multiplies (or divides) a tensor of the curve's shape by a number."""
        return self.is_one(row, at, name) and self._shapes(row) == self._shapes(at)[:1]

    def multiplied(self, row: int, at: int) -> bool:
        """Whether a row multiplies two tensors of the curve's shape."""
        shape = self._shapes(at)[:1]
        return self.is_one(row, at, "mul") and bool(shape) and self._shapes(row)[:2] == shape * 2

    def weighted(self, at: int) -> int | None:
        """The row that multiplies 1 + a curve by a tensor of its shape; None if there is none."""
        if not self.is_one(at + 1, at, "add"):
            return None
        last = grow(at, self._named("add", "mul"), self._family, 1, MOST_AFTER)
        return next((row for row in range(at + 2, last + 1) if self.multiplied(row, at)), None)

    def polynomial(self, at: int) -> int | None:
        """The first row of the polynomial that a curve is computed of, None if it is none: it has one sum, a second
        belongs to what comes before it."""
        first = grow(at, self._named(*POLYNOMIAL, *CASTS), self._family, -1, MOST_BEFORE)
        sums = first + np.flatnonzero(self._named("add")[first:at])
        first = int(sums[-2]) + 1 if len(sums) > 1 else first
        computed = np.count_nonzero(self._named(*POLYNOMIAL)[first:at])
        return first if len(sums) and computed >= FEWEST_BEFORE else None

    def _shapes(self, row: int) -> list[tuple[int, ...]]:
        return self._named.shapes(int(self._named.dims[row]))

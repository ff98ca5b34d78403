"""An op's recorded arguments, from the raw texts of the trace to shapes, bytes and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from gpuprof.costs.cost import SECTOR_BYTES
from gpuprof.costs.dtypes import element_bytes
from gpuprof.units import Assumed, Convention, Dimensions, Elements, Entries

MOST_DIMENSIONS: Assumed[Dimensions] = 16
LONGEST_SIDE: Assumed[Elements] = 1 << 40
"""A longer side is damage, not a shape: it would be a terabyte at one byte per element."""
MOST_KEPT: Convention[Entries] = 1 << 13
"""Parsed arguments that are cached: costs and findings need those of the same ops, of which a recording has some
thousands. They take about 1 kB each."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as an op received it."""

    shape: tuple[int, ...]
    type: str
    """As the profiler names it (c10::BFloat16); "" inside a TensorList, whose types are not recorded."""
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements as the op sees them, expanded dimensions included."""
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.type) or 4

    @property
    def bytes(self) -> int:
        """Bytes of memory traffic to touch all of it: expanded dimensions once, gaps only if they share a sector."""
        size, elements, strides = self.element_bytes, self.elements, self.strides
        if not elements or not strides or len(strides) != len(self.shape):
            return elements * size
        if strides[-1] == 1 and strides[0] * self.shape[0] == elements and 0 not in strides:
            return elements * size  # the usual case: nothing is expanded, nothing left out
        real = [(n, abs(s)) for n, s in zip(self.shape, strides, strict=True) if s != 0 and n > 1]
        if not real:
            return size
        elements = math.prod(n for n, _ in real)
        span = sum((n - 1) * s for n, s in real) + 1
        spread = min(max(min(s for _, s in real), 1), max(SECTOR_BYTES // size, 1))
        return min(span, elements * spread) * size


TensorList = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """An op's name and its arguments by position."""

    name: str
    values: tuple[Tensor | TensorList | None, ...]
    """Per argument: a tensor, a list of them, or None for anything else."""
    concrete: tuple[str, ...]
    """Each argument's value as text, "" if it has none or it was not recorded."""
    types: tuple[str, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are single tensors, in order."""
        return [value for value in self.values if isinstance(value, Tensor)]

    @property
    def all_tensors(self) -> list[Tensor]:
        """All tensors, those inside lists too."""
        found: list[Tensor] = []
        for value in self.values:
            if isinstance(value, Tensor):
                found.append(value)
            elif value:
                found.extend(value)
        return found

    @property
    def lists(self) -> list[TensorList]:
        return [value for value in self.values if isinstance(value, tuple)]

    def tensor(self, position: int) -> Tensor | None:
        value = self.values[position] if -len(self.values) <= position < len(self.values) else None
        return value if isinstance(value, Tensor) else None

    def text(self, position: int) -> str:
        return self.concrete[position] if position < len(self.concrete) else ""

    def integers(self, position: int) -> list[int] | None:
        """The value of a list of integers such as `[1, 2]`; None if it was not recorded."""
        found = _decode(self.text(position) or None)
        if not isinstance(found, list) or not all(isinstance(n, int) for n in found):
            return None
        return found


@lru_cache(maxsize=MOST_KEPT)
def parse(name: str, dims: str | None, types: str | None, strides: str | None, concrete: str | None) -> Arguments:
    """Arguments from the raw JSON texts; missing or malformed ones count as not recorded."""
    shapes, type_names = _list(dims), [t if isinstance(t, str) else "" for t in _list(types)]
    steps, values = _list(strides), _list(concrete)
    steps += [None] * (len(shapes) - len(steps))
    if len(type_names) < len(shapes):
        type_names += [""] * (len(shapes) - len(type_names))
    return Arguments(
        name=name,
        values=tuple(_value(*row) for row in zip(shapes, type_names, steps, strict=False)),
        concrete=tuple(value if isinstance(value, str) else "" for value in values),
        types=tuple(type_names),
    )


def argument_shapes(text: str | None) -> list[tuple[int, ...] | None]:
    """Shapes of an op's arguments by position, from the recorded text; None for arguments that are not tensors. Empty
    if they were not recorded or the text is damaged."""
    return list(_shapes(text))


@lru_cache(maxsize=MOST_KEPT)
def _shapes(text: str | None) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(tuple(shape) if _is_shape(shape) else None for shape in _list(text))


def nested_shapes(text: str | None) -> list[list[tuple[int, ...]]]:
    """Shapes of the tensors in each argument of an op: several for a list, none for a number."""
    found = []
    for shape in _list(text):
        each = [shape] if _is_shape(shape) else shape if isinstance(shape, list) else []
        found.append([tuple(one) for one in each if one and _is_shape(one)])
    return found


def _list(text: str | None) -> list[Any]:
    found = _decode(text)
    return list(found) if isinstance(found, list) else []


def _decode(text: str | None) -> Any:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _value(shape: Any, type_name: str, strides: Any) -> Tensor | TensorList | None:
    if type_name in ("TensorList", "GenericList"):
        if not isinstance(shape, list):
            return ()
        steps = strides if isinstance(strides, list) and len(strides) == len(shape) else [None] * len(shape)
        return tuple(_tensor(s, "", step) for s, step in zip(shape, steps, strict=True) if _is_shape(s))
    if element_bytes(type_name) is None or not _is_shape(shape):
        return None
    return _tensor(shape, type_name, strides)


def _is_shape(value: Any) -> bool:
    """Whether a value is a plausible tensor shape: a few dimensions, none larger than memory allows."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(n) is int and 0 <= n < LONGEST_SIDE for n in value)
    )


def _tensor(shape: list[int], type_name: str, strides: Any) -> Tensor:
    steps = tuple(strides) if isinstance(strides, list) and all(isinstance(s, int) for s in strides) else None
    return Tensor(tuple(shape), type_name, steps)

"""Sequences of forward ops that one fused kernel can replace: norms, rotary embeddings, gates and the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.costs.arguments import parse
from gpuprof.diagnosis.detect.passes import shapes_in, siblings
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import F64, I32, I64, NO_TEXT, Mask
from gpuprof.units import Assumed, Ops, Published, Tokens

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

KINDS = ("norm", "rope", "gate", "loss", "part", "conv", "keys", "activation", "function", "layer_norm")
NORM, ROPE, GATE, LOSS, PART, CONV, KEYS, ACTIVATION, FUNCTION, LAYER_NORM = range(len(KINDS))
"""`part`: a gate's activation with other ops between it and the gate's multiplication; the fused kernel of the
multiplication computes both. `keys`: the second of two rotary embeddings, which the first one's kernel also
computes. `activation`: an elementwise function that torch has a kernel for; `function`: one that only a compiler fuses;
`layer_norm`: a layer norm, for which torch has kernels."""
ROPE_PARTS = (
    "mul", "add", "sub", "neg", "slice", "chunk", "split", "select", "unbind", "unsqueeze", "view", "reshape", "to",
)  # fmt: skip
"""Ops of a rotary embedding that computes both halves separately before joining them."""
MOST_ROPE_OPS: Assumed[Ops] = 20
"""Most such ops in one embedding."""
FILTER_WIDTHS: Published[tuple[Tokens, ...]] = (2, 3, 4)
"""Tokens that a filter of causal-conv1d may cover."""
PAIR_REACH: Assumed[Ops] = 8
"""Most ops between the rotary embeddings of queries and keys."""
GATE_REACH: Assumed[Ops] = 24
"""Most ops between a gate's activation and its multiplication: the other projection with its adapter."""
LOSS_REACH: Assumed[Ops] = 8
"""Most ops between the last matmul and the loss: the cast of the logits, the shift of the labels."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences of the forward pass that one fused kernel can replace."""

    stretches: Stretches
    kind: I64
    bytes: F64
    """Size of the activation in the model's precision."""

    def only(self, rows: Mask) -> Sequences:
        """The selected sequences."""
        return Sequences(self.stretches.some(rows), self.kind[rows], self.bytes[rows])


def find_sequences(case: Analysis) -> Sequences | None:
    """Sequences that Liger's kernels could replace, in the window's forward passes and their recomputation."""
    return found_by(case, _norms, _ropes, _gates, _losses)


def causal_convolutions(case: Analysis) -> Sequences | None:
    """Depthwise convolutions over at most four tokens, each with its SiLU: causal-conv1d can replace them."""
    return found_by(case, _convolutions)


def found_by(case: Analysis, *finders: Callable[[NamedOps, I64], Iterator[Found]]) -> Sequences | None:
    """What some finders find, each given the ops by name and their families; of two that overlap the first."""
    rows, family = siblings(case)
    if not len(rows):
        return None
    named = NamedOps(case, rows)
    found = [
        (first, last, kind, size)
        for finder in finders
        for first, last, kind, op in finder(named, family)
        if (size := _activation(case, int(rows[op]), kind)) > 0
    ]
    if not found:
        return None
    first, last, kind, size = (np.array(column) for column in zip(*sorted(found), strict=True))
    apart = np.append(True, first[1:] > np.maximum.accumulate(last)[:-1])
    first, last, kind, size = first[apart], last[apart], kind[apart], size[apart].astype(np.float64)
    _pair(first, last, kind, size, family)
    ops = case.trace.ops
    return Sequences(
        Stretches.of(ops, rows[first], rows[last]),
        kind.astype(np.int64),
        size,
    )


def _pair(first: I64, last: I64, kind: I64, size: F64, family: I64) -> None:
    """Joins two consecutive rotary embeddings, of queries and of keys: one fused kernel computes both. Changes `kind`
    and `size` in place."""
    at = 0
    while at + 1 < len(kind):
        both = kind[at] == kind[at + 1] == ROPE and family[first[at]] == family[first[at + 1]]
        if both and first[at + 1] - last[at] - 1 <= PAIR_REACH:
            size[at], kind[at + 1] = size[at] + size[at + 1], KEYS
            at += 1
        at += 1


class NamedOps:
    """Masks of ops by name, each computed once."""

    def __init__(self, case: Analysis, rows: I64) -> None:
        self._case, self._rows = case, rows
        self._parsed: dict[int, list[tuple[int, ...]]] = {}
        self._known: dict[tuple[str, ...], Mask] = {}
        self.dims = case.trace.ops.dims[rows]
        """Text id of each op's shapes."""

    def both(self, one: int, dims: I32) -> Mask:
        """Mask of ops whose first two arguments have the shape of another op's first argument."""
        shape = self.shapes(one)[:1]
        return np.array([bool(shape) and self.shapes(int(text))[:2] == shape * 2 for text in dims.tolist()], bool)

    def within(self, at: int, *names: str) -> I64:
        """Positions of ops of these names that ran inside another."""
        ops, rows = self._case.trace.ops, self._rows
        found = np.flatnonzero(self(*names))
        outer, inner = int(rows[at]), rows[found]
        inside = (ops.start_ns[inner] >= ops.start_ns[outer]) & (ops.end_ns[inner] <= ops.end_ns[outer])
        return found[inside & (ops.thread[inner] == ops.thread[outer])]

    def elements(self, text: int) -> int:
        """Number of elements of the largest tensor among an op's arguments."""
        return max((math.prod(shape) for shape in self.shapes(text)), default=0)

    def shapes(self, text: int) -> list[tuple[int, ...]]:
        if text not in self._parsed:
            self._parsed[text] = [shape for shape in shapes_in(self._case, text) if shape]
        return self._parsed[text]

    def __call__(self, *names: str) -> Mask:
        if names not in self._known:
            wanted = {f"aten::{name}" for name in names}
            self._known[names] = self._case.ops_named(wanted.__contains__)[self._rows]
        return self._known[names]


Found = tuple[int, int, int, int]
"""(first op, last op, kind, op whose arguments give the activation's size), as positions."""


def grow(at: int, may: Mask, family: I64, step: int, most: int) -> int:
    """The last position reached from `at` while the next op may belong to the sequence."""
    for _ in range(most):
        following = at + step
        if not 0 <= following < len(may) or not may[following] or family[following] != family[at]:
            break
        at = following
    return at


def _norms(named: NamedOps, family: I64) -> Iterator[Found]:
    mean, square = named("mean"), named("pow", "square")
    for at in np.flatnonzero(named("rsqrt")).tolist():
        first = grow(at, named("add", "mean", "pow", "square", "to", "_to_copy", "float"), family, -1, 6)
        last = grow(at, named("mul", "to", "_to_copy", "type_as"), family, 1, 4)
        squares = np.flatnonzero(square[first:at])
        if mean[first:at].any() and len(squares) and last > at:
            yield first, last, NORM, first + int(squares[0])
    yield from _norms_by_division(named, family)


def _norms_by_division(named: NamedOps, family: I64) -> Iterator[Found]:
    """x / sqrt(mean(x · x)); the square may also be a multiplication."""
    mean, square, divided = named("mean"), named("pow", "square", "mul"), named("div")
    before = named("add", "mean", "pow", "square", "mul", "to", "_to_copy", "float", "double")
    for at in np.flatnonzero(named("sqrt")).tolist():
        first = grow(at, before, family, -1, 6)
        last = grow(at, named("div", "mul", "to", "_to_copy", "type_as"), family, 1, 6)
        means = np.flatnonzero(mean[first:at])
        squares = np.flatnonzero(square[first : first + int(means[-1])]) if len(means) else means
        if len(squares) and divided[at + 1 : last + 1].any():
            yield first, last, NORM, first + int(squares[-1])


def _ropes(named: NamedOps, family: I64) -> Iterator[Found]:
    yield from _ropes_by_negation(named, family)
    yield from _ropes_by_complex_numbers(named, family)
    yield from _ropes_by_halves(named, family)


def _ropes_by_negation(named: NamedOps, family: I64) -> Iterator[Found]:
    """x · cos + cat(-x2, x1) · sin, as in transformers."""
    cat, mul, add = named("cat"), named("mul"), named("add")
    for at in np.flatnonzero(named("neg")).tolist():
        last = grow(at, named("cat", "mul", "add"), family, 1, 3)
        first = grow(at, named("slice", "mul", "chunk"), family, -1, 3)
        if last == at + 3 and cat[at + 1] and mul[at + 2] and add[last] and mul[first:at].any():
            yield first + int(np.flatnonzero(mul[first:at])[0]), last, ROPE, at + 2


def _ropes_by_complex_numbers(named: NamedOps, family: I64) -> Iterator[Found]:
    """Pairs as complex numbers times a table of rotations, as in Llama's first code."""
    mul, real = named("mul"), named("view_as_real")
    for at in np.flatnonzero(named("view_as_complex")).tolist():
        first = grow(at, named("to", "_to_copy", "float", "view", "reshape"), family, -1, 4)
        turned = grow(at, named("view", "unsqueeze", "slice", "mul", "view_as_real"), family, 1, 6)
        ends = np.flatnonzero(real[at : turned + 1])
        if len(ends) and mul[at : at + int(ends[0])].any():
            yield first, _shaped_back(named, family, at + int(ends[0])), ROPE, at


def _ropes_by_halves(named: NamedOps, family: I64) -> Iterator[Found]:
    """cat or stack of x1 · cos - x2 · sin and x1 · sin + x2 · cos."""
    mul, sums, minus = named("mul"), named("add", "sub"), named("sub", "neg")
    halves = named("slice", "chunk", "split", "select", "unbind")
    parts = named(*ROPE_PARTS)
    for at in np.flatnonzero(named("cat", "stack")).tolist():
        begun = grow(at, parts, family, -1, MOST_ROPE_OPS)
        cut = begun + np.flatnonzero(halves[begun:at])
        if not len(cut):
            continue
        first = int(cut[0])
        if mul[first:at].sum() == 4 and sums[first:at].sum() == 2 and minus[first:at].any():
            yield (
                first,
                _shaped_back(named, family, at),
                ROPE,
                max(cut.tolist(), key=lambda row: named.elements(int(named.dims[row]))),
            )


def _shaped_back(named: NamedOps, family: I64, at: int) -> int:
    """The op that restores a rotary embedding's shape and dtype, at most two after this one; later ops may already
    belong to the next embedding."""
    return grow(grow(at, named("flatten", "view", "reshape"), family, 1, 1), named("type_as", "to"), family, 1, 1)


def _gates(named: NamedOps, family: I64) -> Iterator[Found]:
    mul, dims = named("mul"), named.dims
    for at in np.flatnonzero(named("silu", "gelu")).tolist():
        rest = slice(at + 1, at + 1 + GATE_REACH)
        # The elementwise multiplication takes two activations of the gate's size.
        product = np.flatnonzero(mul[rest] & (family[rest] == family[at]) & named.both(int(dims[at]), dims[rest]))
        if len(product):
            yield at, at, PART, at
            yield at + 1 + int(product[0]), at + 1 + int(product[0]), GATE, at


def _losses(named: NamedOps, family: I64) -> Iterator[Found]:
    matmuls = named("linear", "matmul", "mm", "addmm")
    for at in np.flatnonzero(named("cross_entropy_loss")).tolist():
        first = grow(at, ~matmuls, family, -1, LOSS_REACH)
        casts = np.flatnonzero(named("to", "_to_copy")[first:at])
        yield first + int(casts[0]) if len(casts) else at, at, LOSS, at


def _convolutions(named: NamedOps, family: I64) -> Iterator[Found]:
    silu = named("silu")
    for at in np.flatnonzero(named("conv1d")).tolist():
        shapes = named.shapes(int(named.dims[at]))
        if len(shapes) < 2 or len(shapes[0]) != 3 or shapes[1][1:2] != (1,) or shapes[1][-1] not in FILTER_WIDTHS:
            continue
        if shapes[1][0] != shapes[0][1]:
            continue
        last = grow(at, named("slice", "transpose", "silu"), family, 1, 3)
        yield at, at + int(np.flatnonzero(silu[at : last + 1])[-1]) if silu[at : last + 1].any() else at, CONV, at


def _activation(case: Analysis, op: int, kind: int) -> float:
    """Bytes of the activation that an op works on; casts to fp32 in a norm, rotary embedding, activation or
    loss do not count."""
    ops, trace = case.trace.ops, case.trace
    if ops.dims[op] == NO_TEXT:
        return 0.0
    tensors = parse("", trace.text(int(ops.dims[op])), trace.text(int(ops.types[op])), None, None).tensors
    if not tensors:
        return 0.0
    largest = max(tensors, key=lambda t: t.elements)
    size = 2 if kind in (NORM, ROPE, LOSS, ACTIVATION, LAYER_NORM) and _casts(case) else largest.element_bytes
    return float(largest.elements * size)


def _casts(case: Analysis) -> bool:
    """Whether most of the model's matmuls are in half precision."""
    roof = case.roofline
    return roof is None or roof.hardware_flops.get("bf16", 0.0) + roof.hardware_flops.get("fp16", 0.0) > sum(
        roof.hardware_flops.get(name, 0.0) for name in ("fp32", "tf32")
    )

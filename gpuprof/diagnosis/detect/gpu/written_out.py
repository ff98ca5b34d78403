"""Layer norms, softmaxes and dropout that are written out as several ops, where torch has one kernel each way, and
what is computed of the probabilities of a vocabulary, where a compiler has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuprof.diagnosis.detect.gpu.fused_sequences import NamedOps, grow
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Elements, Ops, Ratio

LAYER_NORM, SOFTMAX, DROPOUT = "layer_norm", "softmax", "dropout"
"""Functions of torch."""
VOCABULARY = "vocabulary"
"""Log-probabilities of tokens, and entropies."""
CASTS = ("to", "_to_copy", "float", "type_as")
MOST_MOMENTS: Assumed[Ops] = 4
"""Most ops that compute a mean and a variance before the mean is subtracted, with casts."""
MOST_NORM: Assumed[Ops] = 10
"""Most ops from the subtraction to the division."""
MOST_AFFINE: Assumed[Ops] = 3
"""Most ops that apply a weight and a bias, with casts."""
MOST_DROPOUT: Assumed[Ops] = 4
"""Most ops after random numbers: a comparison, a cast, and two multiplications."""
LEAST_CLASSES: Assumed[Elements] = 1_000
"""Fewest classes of a vocabulary: with fewer, a row's probabilities are small."""
LEAST_PER_PICKED: Assumed[Ratio] = 8
"""Fewest log-probabilities of a row for each one that is picked."""
MOST_OVER_CLASSES: Assumed[Ops] = 12
"""Most ops from the softmax to the sum or the picked values, views of tokens included."""
MOST_BEFORE_SOFTMAX: Assumed[Ops] = 4
"""Most ops before the softmax: a cast, a temperature, a shift."""
OVER_CLASSES = (
    "exp", "mul", "sum", "neg", "sub", "div", "gather", "log_softmax", "softmax", "logsumexp", "unsqueeze", "squeeze",
    "slice", "select", "view", "reshape", "expand", "clone", "contiguous", "clamp", *CASTS,
)  # fmt: skip


def written_functions(named: NamedOps, family: I64) -> Iterator[tuple[str, int, int, int]]:
    """(function, first op, last op, op whose first argument has the tensor's size) of each, as positions."""
    for at in np.flatnonzero(named("sub")).tolist():
        yield from _layer_norm(named, family, at)
    for at in np.flatnonzero(named("exp")).tolist():
        yield from _softmax(named, family, at)
    for at in np.flatnonzero(named("rand", "rand_like", "bernoulli", "bernoulli_", "uniform_")).tolist():
        yield from _dropout(named, family, at)
    end = -1
    for at in np.flatnonzero(named("log_softmax", "softmax")).tolist():
        if at > end:
            for found in _over_classes(named, family, at):
                end = found[2]
                yield found


def _over_classes(named: NamedOps, family: I64, at: int) -> Iterator[tuple[str, int, int, int]]:
    """log_softmax(logits) of which a few values of each row are picked, or p · log(p) summed over each row."""
    shape = next(iter(named.shapes(int(named.dims[at]))), ())
    if len(shape) < 2 or shape[-1] < LEAST_CLASSES:
        return

    def wide(row: int) -> bool:
        return named.shapes(int(named.dims[row]))[:1] == [shape]

    last, products = -1, named("mul")
    for row in range(at + 1, grow(at, named(*OVER_CLASSES), family, 1, MOST_OVER_CLASSES) + 1):
        if wide(row) and (_picks(named, row) or (named("sum")[row] and any(products[at:row]))):
            last = row
    if last > 0:
        before = grow(at, named("div", "mul", "slice", *CASTS), family, -1, MOST_BEFORE_SOFTMAX)
        first = next(row for row in range(before, at + 1) if wide(row))
        yield VOCABULARY, first, last, first


def _picks(named: NamedOps, row: int) -> bool:
    """Whether an op picks a few values of each row by their indices."""
    shapes = named.shapes(int(named.dims[row]))[:2]
    return bool(named("gather")[row]) and len(shapes) == 2 and LEAST_PER_PICKED * shapes[1][-1] <= shapes[0][-1]


def _layer_norm(named: NamedOps, family: I64, at: int) -> Iterator[tuple[str, int, int, int]]:
    """(x - mean) / sqrt(variance + ε), from the subtraction on."""
    if not _by_row(named, at):
        return
    moments = named("mean", "var", "std", "var_mean", *CASTS)
    first = grow(at, moments, family, -1, MOST_MOMENTS)
    if not named("mean", "var_mean")[first:at].any():
        return
    inner = named("pow", "square", "mul", "mean", "add", "sqrt", "rsqrt", "div", "sub", "var", "std", *CASTS)
    reach = grow(at, inner, family, 1, MOST_NORM)
    divided = named("div", "mul")
    scale = next((row for row in range(at + 1, reach + 1) if divided[row] and _by_row(named, row)), None)
    if scale is None:
        return
    variance = named("var", "std", "var_mean")[first:scale].any()
    squares = named("pow", "square", "mul")[at:scale].any() and named("mean")[at:scale].any()
    if variance or squares:
        yield LAYER_NORM, first, _affine(named, family, scale), at


def _affine(named: NamedOps, family: I64, scale: int) -> int:
    """The last op that applies a weight or a bias, one number for each column."""
    ops, last = named("mul", "add"), scale
    for row in range(scale + 1, grow(scale, named("mul", "add", *CASTS), family, 1, MOST_AFFINE) + 1):
        if ops[row] and not any(len(shape) == 1 for shape in named.shapes(int(named.dims[row]))[:2]):
            break
        last = row if ops[row] else last
    return last


def _softmax(named: NamedOps, family: I64, at: int) -> Iterator[tuple[str, int, int, int]]:
    """exp(x - max) / sum, with or without the maximum."""
    last = grow(at, named("sum", "div"), family, 1, 2)
    if last == at + 2 and named("sum")[at + 1] and named("div")[last] and _by_row(named, last):
        yield SOFTMAX, grow(at, named("max", "amax", "sub"), family, -1, 2), last, at


def _dropout(named: NamedOps, family: I64, at: int) -> Iterator[tuple[str, int, int, int]]:
    """x · (random > p) / (1 - p)."""
    reach = grow(at, named("lt", "le", "gt", "ge", "mul", "div", *CASTS), family, 1, MOST_DROPOUT)
    products = [row for row in range(at + 1, reach + 1) if named("mul")[row] and _alike(named, row)]
    compared = named("lt", "le", "gt", "ge")[at + 1 : reach + 1].any() or named("bernoulli", "bernoulli_")[at]
    if products and compared:
        scaled = named("div", "mul")
        last = products[0]
        after = last + 1
        if after <= reach and scaled[after] and len(named.shapes(int(named.dims[after]))) == 1:
            last = after
        yield DROPOUT, at, last, products[0]


def _by_row(named: NamedOps, row: int) -> bool:
    """Whether an op takes a tensor and one number for each of its rows."""
    shapes = named.shapes(int(named.dims[row]))[:2]
    if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 2:
        return False
    whole, part = shapes
    return whole[-1] > 1 == part[-1] and whole[:-1] == part[:-1]


def _alike(named: NamedOps, row: int) -> bool:
    """Whether an op takes two tensors of one shape."""
    shapes = named.shapes(int(named.dims[row]))[:2]
    return len(shapes) == 2 and shapes[0] == shapes[1]

"""Mixtures that compute every expert for every token, although a router chooses a few of them.

A router takes the largest few of one score per expert (`topk`). Next to it either the same ops repeat once for each
expert, with a multiplication over all tokens in each repetition, or one batched multiplication has a matrix for each
expert and all tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.costs.arguments import nested_shapes, parse
from gpuprof.diagnosis.detect.loops.layer_ops import MATMULS, ONCE_A_LAYER
from gpuprof.diagnosis.detect.loops.nested_loops import MOST_PERIOD, repeated
from gpuprof.diagnosis.detect.passes import shapes_in, siblings
from gpuprof.replay.stretches import Stretches
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Convention, Modules, Ops, Place, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_EXPERTS: Assumed[Modules] = 4
MOST_EXPERTS: Assumed[Modules] = 512
"""More scores than this are a vocabulary's."""
MOST_CHOSEN: Assumed[Share] = 0.5
"""Largest share of the experts that a router chooses: with more, computing all of them costs little."""
FEWEST_OPS: Assumed[Ops] = 6
"""Fewest ops of all experts of a layer."""
BATCHED = frozenset({"aten::bmm", "aten::matmul", "aten::baddbmm", "aten::einsum"})
_CHOSEN: Convention[Place] = 1
"""Place of the number of chosen values among a `topk`'s arguments."""


class DenseExperts(NamedTuple):
    """Experts of a layer as stretches of the forward pass; columns by layer and step."""

    stretches: Stretches
    experts: I64
    chosen: I64
    """Of a token."""


class _Router(NamedTuple):
    at: int
    """Position among the ops."""
    tokens: int
    experts: int
    chosen: int


class _Layer(NamedTuple):
    """Positions of the first and the last op of experts."""

    first: int
    last: int


def find_dense_experts(case: Analysis) -> DenseExperts | None:
    """Experts that all compute all tokens; None if there are none. Computed once per case."""
    if "dense_experts" not in case.memo:
        case.memo["dense_experts"] = _find(case)
    return case.memo["dense_experts"]


def _find(case: Analysis) -> DenseExperts | None:
    rows, family = siblings(case)
    routers = _routers(case, rows)
    if not routers:
        return None
    found: dict[int, tuple[_Router, _Layer]] = {}
    for layer, experts, tokens in [*_loops(case, rows, family), *_batched(case, rows, routers)]:
        near = [one for one in routers if one.tokens == tokens and _fits(one, experts)]
        same = [one for one in near if family[one.at] == family[layer.first]]
        if not same:
            continue
        router = min(same, key=lambda one: min(abs(one.at - layer.first), abs(one.at - layer.last)))
        known = found.get(router.at, (router, layer))[1]
        found[router.at] = router, _Layer(min(known.first, layer.first), max(known.last, layer.last))
    if not found:
        return None
    first, last = (np.array([getattr(layer, name) for _, layer in found.values()]) for name in ("first", "last"))
    return DenseExperts(
        Stretches.of(case.trace.ops, rows[first], rows[last]),
        np.array([router.experts for router, _ in found.values()]),
        np.array([router.chosen for router, _ in found.values()]),
    )


def _fits(router: _Router, experts: int) -> bool:
    """Whether a loop of this many rounds is over the router's experts; the first round may look different."""
    return experts in (router.experts, router.experts - 1)


def _routers(case: Analysis, rows: I64) -> list[_Router]:
    """Choices of a few of a token's scores."""
    ops, found = case.trace.ops, []
    for at in np.flatnonzero(case.ops_named("aten::topk".__eq__)[rows]).tolist():
        row = int(rows[at])
        given = parse("", case.trace.text(int(ops.dims[row])), None, None, case.trace.text(int(ops.concrete[row])))
        shape = next(iter(shapes_in(case, int(ops.dims[row]))), None)
        chosen = given.concrete[_CHOSEN : _CHOSEN + 1]
        if not shape or len(shape) < 2 or not chosen or not chosen[0].isdigit():
            continue
        experts, taken = shape[-1], int(chosen[0])
        if FEWEST_EXPERTS <= experts <= MOST_EXPERTS and 0 < taken <= MOST_CHOSEN * experts:
            found.append(_Router(at, math.prod(shape[:-1]), experts, taken))
    return found


def _loops(case: Analysis, rows: I64, family: I64) -> list[tuple[_Layer, int, int]]:
    """(layer, rounds, tokens) of ops that repeat with the same shapes and multiply all tokens in each round."""
    ops = case.trace.ops
    keys = np.stack([ops.name[rows], ops.dims[rows]]).astype(np.int64)
    token = np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)
    of_layers = case.ops_named(ONCE_A_LAYER.__contains__)[rows]  # as many layers as there are experts
    first, period, rounds = repeated(token, family, of_layers, MOST_PERIOD, FEWEST_EXPERTS - 1, FEWEST_OPS)
    matmuls, found = case.ops_named(MATMULS.__contains__)[rows], []
    for at, each, times in zip(first.tolist(), period.tolist(), rounds.tolist(), strict=True):
        multiplied = np.flatnonzero(matmuls[at : at + each])
        if not len(multiplied):
            continue
        given = _input(case, int(rows[at + int(multiplied[0])]))
        if given:
            found.append((_Layer(at, at + each * times - 1), times, math.prod(given[:-1])))
    return found


def _input(case: Analysis, row: int) -> tuple[int, ...] | None:
    """Shape of what a multiplication multiplies by a weight."""
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    biased = case.trace.strings[int(case.trace.ops.name[row])] in ("aten::addmm", "aten::baddbmm")
    return next(iter(shapes[biased:]), None)


def _batched(case: Analysis, rows: I64, routers: list[_Router]) -> list[tuple[_Layer, int, int]]:
    """(layer, experts, tokens) of multiplications with a matrix for each expert and all tokens."""
    ops, known = case.trace.ops, {(one.tokens, one.experts) for one in routers}
    found = []
    for at in np.flatnonzero(case.ops_named(BATCHED.__contains__)[rows]).tolist():
        shapes = [shape for each in nested_shapes(case.trace.text(int(ops.dims[rows[at]]))) for shape in each]
        for tokens, experts in known:
            weights = [one for one in shapes if len(one) == 3 and one[0] == experts and tokens not in one]
            if weights and any(_takes_all(one, tokens, experts) for one in shapes if one not in weights):
                found.append((_Layer(at, at), experts, tokens))
    return found


def _takes_all(shape: tuple[int, ...], tokens: int, experts: int) -> bool:
    """Whether a tensor has all tokens: once, or once for each expert. Rows that were given to experts, with as many
    places for each, have the experts as their first dimension."""
    if shape[0] == experts:
        return len(shape) == 3 and shape[1] == tokens
    return math.prod(shape[:-1]) == tokens

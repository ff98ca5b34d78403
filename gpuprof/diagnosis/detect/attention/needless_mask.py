"""Attention masks that hide nothing, or only later positions. Either the batches show no padding; or the mask is the
same for all samples and heads, so that it cannot describe padding or documents; or it belongs to a single sample, whose
padding can be cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.attention.masked_scores import masked_kernels, useful_share
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.tracefile.trace import ABSENT, Mask
from gpuprof.units import Assumed, Place, Published, Share, Tokens

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

CALL = "aten::scaled_dot_product_attention"
MASK: Published[Place] = 3
"""Place of the mask among the arguments of scaled_dot_product_attention."""
LEAST_TOKENS: Assumed[Tokens] = 256
"""Fewest tokens of a row: in shorter rows the mask costs little, and windows of images have masks of their own."""
UNPADDED_SHARE: Assumed[Share] = 0.999
"""Share of real tokens, and of useful pairs, from which on a batch has no padding."""


class NeedlessMask(NamedTuple):
    """A mask that may hide nothing."""

    rows: Mask
    """GPU events of the attention kernels that take it."""
    queries: int
    """1: the same values for all queries."""
    keys: int
    why: str
    """What the recording shows of the batches."""
    odds: float
    """Probability that the mask hides nothing, apart from later positions."""


def find_shared_mask(case: Analysis) -> NeedlessMask | None:
    """A mask that is the same for all samples and heads, as one that hides later positions is; None where there is
    none."""
    kernels = masked_kernels(case)
    tokens = _masked_tokens(case, _is_shared) if kernels.any() else None
    if tokens is None:
        return None
    why = "it is the same for all samples and heads, as one is that hides later positions"
    return NeedlessMask(kernels, tokens, tokens, why, calibrated.CAUSAL_MASK_ODDS.value)


def find_needless_mask(case: Analysis) -> NeedlessMask | None:
    """The mask; None where there is none, where it may differ by head or was made by transformers, which leaves out
    masks of ones itself, or where the batches have padding, documents or rows of several lengths."""
    run = case.run
    if run is None or _of_transformers(case) or not case.trains_on_tokens:
        return None
    kernels = masked_kernels(case)
    tokens = _masked_tokens(case, _is_of_all_heads) if kernels.any() else None
    if tokens is None:
        return None
    real, useful = run.work.real_share, useful_share(case)
    known = [share for share in (real, useful) if share is not None]
    if known:
        if min(known) < UNPADDED_SHARE:
            return None
        why = "no token of the batches is padding"
        return NeedlessMask(kernels, tokens, tokens, why, calibrated.NEEDLESS_MASK_SEEN.value)
    if not _equal_batches(case):
        return None
    why = "the batches bring no mask, and all have the same number of tokens"
    return NeedlessMask(kernels, tokens, tokens, why, calibrated.NEEDLESS_MASK_ODDS.value)


def find_mask_of_one_sample(case: Analysis) -> NeedlessMask | None:
    """A mask where all attention is of one sample at a time, which needs none for its padding; None where there is
    none, where it may differ by head, where a batch is known to be packed, or where it was made by transformers for a
    model of tokens, which leaves out masks of ones itself."""
    if case.trains_on_tokens and _of_transformers(case):
        return None
    useful = useful_share(case)
    kernels = masked_kernels(case)
    if not kernels.any() or (useful is not None and useful < UNPADDED_SHARE):
        return None
    shapes = _masked_calls(case)
    if not shapes or not all(_is_of_one_sample(mask, query) for mask, query in shapes):
        return None
    queries, keys = max(((1, 1, *mask)[-2:] for mask, _ in shapes), key=math.prod)
    if keys < LEAST_TOKENS:
        return None
    why = "all queries are of one sample, whose padding can be cut off"
    odds = calibrated.ONE_SAMPLE_MASK_ODDS if queries == 1 else calibrated.NEEDLESS_MASK_ODDS
    return NeedlessMask(kernels, queries, keys, why, odds.value)


def _of_transformers(case: Analysis) -> bool:
    model = (case.run.model if case.run else None) or {}
    named = str(model.get("module") or "").startswith("transformers.") or model.get("type") is not None
    return named or case.stack.builds_on("transformers")


Shape = tuple[int, ...]


def _masked_tokens(case: Analysis, fits: Callable[[Shape, Shape], bool]) -> int | None:
    """Tokens of a row where every call that has a mask has one over pairs of the same tokens, and of a shape that fits
    that of the queries."""
    found = set[int]()
    for mask, query in _masked_calls(case):
        if len(query) != 4 or len(mask) < 2 or mask[-2] != mask[-1] or not fits(mask, query):
            return None
        found.add(mask[-1])
    return found.pop() if len(found) == 1 and min(found) >= LEAST_TOKENS else None


def _masked_calls(case: Analysis) -> list[tuple[Shape, Shape]]:
    """(shape of the mask, shape of the queries) of each kind of call that has a mask."""
    found = list[tuple[Shape, Shape]]()
    for text in np.unique(case.trace.ops.dims[case.ops_named(CALL.__eq__)]).tolist():
        shapes = shapes_in(case, text)
        mask, query = (shapes[at] if at < len(shapes) else None for at in (MASK, 0))
        if mask:
            found.append((mask, query or ()))
    return found


def _is_of_one_sample(mask: Shape, query: Shape) -> bool:
    return len(query) == 4 and query[0] == 1 and query[-2] > 1 and all(side == 1 for side in mask[:-2])


def _is_of_all_heads(mask: Shape, query: Shape) -> bool:
    return len(mask) == 4 and mask[1] == 1 and mask[0] == query[0]


def _is_shared(mask: Shape, query: Shape) -> bool:
    return all(side == 1 for side in mask[:-2]) and query[0] > 1


def _equal_batches(case: Analysis) -> bool:
    """Whether all steps of the run computed the same number of tokens."""
    if case.folder is None:
        return False
    steps = case.folder.steps
    tokens = np.unique(steps.tokens[(steps.rank == case.folder.rank) & (steps.tokens != ABSENT)])
    return len(tokens) == 1

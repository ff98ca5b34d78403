"""Attention masks that hide nothing, or only later positions: tensors over all pairs of tokens. Either the batches show
no padding, or the mask is the same for all samples and heads, so that it cannot describe padding or documents.
"""

from __future__ import annotations

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
    tokens: int
    """Tokens per row."""
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
    return NeedlessMask(kernels, tokens, why, calibrated.CAUSAL_MASK_ODDS.value)


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
        return NeedlessMask(kernels, tokens, "no token of the batches is padding", calibrated.NEEDLESS_MASK_SEEN.value)
    if not _equal_batches(case):
        return None
    why = "the batches bring no mask, and all have the same number of tokens"
    return NeedlessMask(kernels, tokens, why, calibrated.NEEDLESS_MASK_ODDS.value)


def _of_transformers(case: Analysis) -> bool:
    model = (case.run.model if case.run else None) or {}
    named = str(model.get("module") or "").startswith("transformers.") or model.get("type") is not None
    return named or case.stack.builds_on("transformers")


Shape = tuple[int, ...]


def _masked_tokens(case: Analysis, fits: Callable[[Shape, Shape], bool]) -> int | None:
    """Tokens of a row where every call that has a mask has one over pairs of the same tokens, and of a shape that fits
    that of the queries."""
    ops, found = case.trace.ops, set[int]()
    for text in np.unique(ops.dims[case.ops_named(CALL.__eq__)]).tolist():
        shapes = shapes_in(case, text)
        mask, query = (shapes[at] if at < len(shapes) else None for at in (MASK, 0))
        if not mask:
            continue
        if not query or len(query) != 4 or len(mask) < 2 or mask[-2] != mask[-1] or not fits(mask, query):
            return None
        found.add(mask[-1])
    return found.pop() if len(found) == 1 and min(found) >= LEAST_TOKENS else None


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

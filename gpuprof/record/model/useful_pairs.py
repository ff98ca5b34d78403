"""How many pairs of tokens attention has to compare, and how many tokens have a label, from a batch in host memory.
Attention without a mask compares every pair of tokens in a row. With padding, or documents that are packed into one row
but must not see each other, fewer pairs are useful. Nothing here reads a tensor on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Code, Elements, Published


LENGTHS = ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q", "cu_seq_lens")
"""Keys of cumulative lengths, as variable-length attention takes them."""
EACH = ("seq_lengths", "seq_lens", "sequence_lengths")
"""Keys of the lengths of the documents."""
MOST_SCORES: Assumed[Elements] = 1 << 18
"""A mask over all pairs is counted in at most this many scores, in evenly spaced rows, because this happens in each
step, on the training's thread."""
IGNORED: Published[Code] = -100
"""The label of a token without one (torch's `ignore_index`)."""


def useful_pairs(batch: Mapping[str, Any], rows: int, length: int, kept: list[int] | None = None) -> int | None:
    """Useful pairs of tokens, of the rows × length² pairs of a batch; None if its tensors in host memory do not show
    it. A causal mask is ignored: it halves the useful pairs and all pairs alike. kept: tokens of each row that its mask
    keeps, if they were counted.
    """
    for key in (one for one in LENGTHS if one in batch):
        ends = _ints(batch[key], dims=1)
        if ends is not None and len(ends) > 1 and ends[-1] == rows * length:
            return sum((b - a) ** 2 for a, b in pairwise(ends))
    for key in (one for one in EACH if one in batch):
        each = _flat(batch[key])
        if each and sum(each) == rows * length:
            return sum(n * n for n in each)
    mask = batch.get("attention_mask")
    found = _of_positions(batch.get("position_ids"), mask, rows, length)
    if found is None and kept is not None:
        return sum(n * n for n in kept)
    return found if found is not None else _of_mask(mask, rows, length)


def labelled_tokens(batch: Mapping[str, Any], rows: int, length: int) -> int | None:
    """Tokens with a label; None without per-token labels in host memory."""
    labels = batch.get("labels")
    if labels is None or not _on_cpu(labels) or tuple(labels.shape) != (rows, length) or labels.is_floating_point():
        return None
    return int((labels != IGNORED).sum())


def _of_positions(positions: Any, mask: Any, rows: int, length: int) -> int | None:
    """From positions that restart with each document. Positions that only count through the row say nothing."""
    if not _on_cpu(positions) or positions.dim() != 2 or positions.is_floating_point():
        return None
    if tuple(positions.shape) not in ((rows, length), (1, length)) or length < 1:
        return None
    begins = positions[:, 1:] != positions[:, :-1] + 1
    if not bool(begins.any()) or (_on_cpu(mask) and mask.dim() == 2 and len(positions) != rows):
        return None
    # Where documents begin, all rows concatenated; each row begins with one.
    first = begins.new_ones((len(positions), length))
    first[:, 1:] = begins
    starts = first.flatten().nonzero().flatten().tolist()
    each = [b - a for a, b in pairwise([*starts, len(positions) * length])]
    # Padding has one constant position: each such token counts as a document of its own, and compares with nothing.
    return sum(n * n for n in each if n > 1) * (rows // len(positions))


def _of_mask(mask: Any, rows: int, length: int) -> int | None:
    """From a mask of ones and zeros per token, or per pair."""
    import torch

    if not _on_cpu(mask):
        return None
    if tuple(mask.shape) == (rows, length):
        return sum(n * n for n in mask.ne(0).sum(dim=1).tolist())
    if mask.dim() != 4 or mask.shape[-1] != length or mask.shape[-2] != length or not mask.numel():
        return None
    every = -(-mask.shape[0] * length * length // MOST_SCORES)
    some = mask[:, 0, every // 2 :: every]
    seen = some.ge(0) if some.is_floating_point() else some.ne(0)
    kept = int(seen.sum()) / max(seen.shape[0] * seen.shape[1], 1) * length
    later = torch.arange(length) > torch.arange(length)[every // 2 :: every, None]
    looks_ahead = bool((seen & later).any())
    return round(max(kept if looks_ahead else 2 * kept - length, 0) * rows)


def _ints(value: Any, dims: int) -> list[int] | None:
    if not _on_cpu(value) or value.dim() != dims or value.is_floating_point():
        return None
    return value.tolist()


def _flat(value: Any) -> list[int]:
    """Whole numbers in a list of lists or a tensor."""
    if _on_cpu(value) and not value.is_floating_point():
        return value.flatten().tolist()
    if isinstance(value, (list, tuple)):
        found: list[int] = []
        for one in value:
            found += _flat(one) if isinstance(one, (list, tuple)) else [one] if type(one) is int else []
        return found
    return []


def _on_cpu(value: Any) -> bool:
    import torch

    return value is not None and isinstance(value, torch.Tensor) and value.device.type == "cpu"

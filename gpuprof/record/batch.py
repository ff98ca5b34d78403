"""How many tokens a batch has, how many are not padding, and which share of the attention is useful. For samples see
`samples.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .useful_pairs import labelled_tokens, useful_pairs

_TOKENS = ("input_ids", "decoder_input_ids", "tokens", "inputs_embeds")
_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class Work:
    """The input of one forward pass. `tokens` counts padding, `real_tokens` does not; None where it is not known."""

    rows: int | None = None
    """Rows of tokens. Rows are not samples: a preference pair has two rows, a row of packed documents several
    samples."""
    tokens: int | None = None
    real_tokens: int | None = None
    pairs: int | None = None
    """Pairs of tokens in the same row: what attention without a mask compares."""
    useful_pairs: int | None = None
    """Pairs within one document, without padding; None where it is not known."""
    labelled_tokens: int | None = None

    @property
    def is_told(self) -> bool:
        """Whether tensors in host memory gave more than the shapes do."""
        return any(one is not None for one in (self.real_tokens, self.useful_pairs, self.labelled_tokens))

    def __add__(self, other: Work) -> Work:
        return Work(
            _sum(self.rows, other.rows),
            _sum(self.tokens, other.tokens),
            _sum(self.real_tokens, other.real_tokens),
            _sum(self.pairs, other.pairs),
            _sum(self.useful_pairs, other.useful_pairs),
            _sum(self.labelled_tokens, other.labelled_tokens),
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


MOST_SHAPES = 10_000
"""Distinct shapes that are remembered; a training with more of them has new ones all the time."""
MOST_FETCHED = 64
"""Batches that may have been fetched and not been used yet."""


class WorkMeter:
    """Adds up the work of a step: as the model was called, or else as batches were fetched."""

    def __init__(self) -> None:
        self._fetched: Work | None = None
        self._called: Work | None = None
        self._masked: deque[Work] = deque(maxlen=MOST_FETCHED)
        self._shapes: set[tuple[Any, ...]] = set()
        self.new_shapes: int | None = None
        """Calls of the current step with shapes that no call had before; None where calls are not seen."""

    def fetched(self, batch: Any) -> None:
        """A DataLoader has handed out a batch."""
        work = work_of(batch)
        if work is not None:
            self._fetched = work if self._fetched is None else self._fetched + work
            if work.is_told:
                self._masked.append(work)

    def called(self, arguments: Any) -> None:
        """The model is called with these arguments."""
        shapes = shapes_of(arguments)
        # Calls are seen only once the run has settled, so the first shape seen is not new.
        new = bool(self._shapes) and shapes not in self._shapes
        if shapes not in self._shapes and len(self._shapes) < MOST_SHAPES:
            self._shapes.add(shapes)
        self.new_shapes = (self.new_shapes or 0) + new
        work = work_of(arguments)
        if work is not None:
            work = work if work.is_told else self._unpadded(work)
            self._called = work if self._called is None else self._called + work

    def begin_calls(self) -> None:
        """Calls are seen from now on: everything except what a loader has prefetched was used before."""
        while len(self._masked) > 1:
            self._masked.popleft()

    def take(self) -> Work:
        """The work since the last time, at the end of a step."""
        work = self._called or self._fetched or Work()
        self._fetched = self._called = self.new_shapes = None
        return work

    def _unpadded(self, work: Work) -> Work:
        """The same work with the tokens that the loader's mask kept, when the batch was still in host memory.

        Loaders fetch ahead, and a trainer may drop batches, so a batch is known by its shape, oldest first.
        """
        while self._masked:
            fetched = self._masked.popleft()
            if (fetched.rows, fetched.tokens) == (work.rows, work.tokens):
                return fetched
        return work


def work_of(batch: Any) -> Work | None:
    """The work in a DataLoader's batch or in the arguments of a model's call; None where no tokens are found.

    Only shapes are looked at, and the values of masks, positions, lengths and labels that lie in host memory: nothing
    here waits for a GPU.
    """
    named = dict(_named(batch, 0))
    tokens = next((named[key] for key in _TOKENS if key in named), None)
    if tokens is None:
        tokens = next((t for t in _tensors(batch, 0) if t.dim() == 2 and not t.is_floating_point()), None)
    if tokens is None or tokens.dim() < 2:
        return None
    rows, length = int(tokens.shape[0]), int(tokens.shape[1])
    kept = _kept(named.get("attention_mask"), rows * length)
    return Work(
        rows,
        rows * length,
        None if kept is None else sum(kept),
        rows * length**2,
        useful_pairs({**_lists(batch), **named}, rows, length, kept if kept is None or len(kept) == rows else None),
        labelled_tokens(named, rows, length),
    )


def _lists(batch: Any) -> dict[str, Any]:
    """The lists in a batch: lengths of documents."""
    return (
        {str(key): item for key, item in batch.items() if isinstance(item, list)} if isinstance(batch, Mapping) else {}
    )


def shapes_of(arguments: Any) -> tuple[Any, ...]:
    """The shapes of the tensors in the arguments of a model's call."""
    return tuple(tuple(tensor.shape) for tensor in _tensors(arguments, 0))


def _kept(mask: Any, tokens: int) -> list[int] | None:
    """Tokens that a mask of ones and zeros in host memory keeps, row by row."""
    if mask is None or mask.dim() != 2 or mask.device.type != "cpu" or mask.numel() != tokens:
        return None
    return mask.count_nonzero(1).tolist()


def _named(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Tensors under their keys, in mappings and in what holds mappings."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _is_tensor(item):
                yield str(key), item
            elif depth < _DEEPEST:
                yield from _named(item, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _DEEPEST:
        for item in value[:8]:
            yield from _named(item, depth + 1)


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if _is_tensor(value):
        yield value
    elif depth < _DEEPEST:
        items = value.values() if isinstance(value, Mapping) else value[:8] if isinstance(value, (list, tuple)) else ()
        for item in items:
            yield from _tensors(item, depth + 1)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)

"""How many tokens a batch has, how many are not padding, and which share of the attention is useful. For samples see
`samples.py`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .timing import Ration
from .useful_pairs import labelled_tokens, useful_pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Entries, Levels, Share


_TOKENS = ("input_ids", "decoder_input_ids", "tokens", "inputs_embeds")
_DEEPEST: Assumed[Levels] = 3
Tensors = list[tuple[str | None, Any]]
"""Tensors with their keys."""


@dataclass(frozen=True, slots=True)
class BatchWork:
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

    def __add__(self, other: BatchWork) -> BatchWork:
        return BatchWork(
            _sum(self.rows, other.rows),
            _sum(self.tokens, other.tokens),
            _sum(self.real_tokens, other.real_tokens),
            _sum(self.pairs, other.pairs),
            _sum(self.useful_pairs, other.useful_pairs),
            _sum(self.labelled_tokens, other.labelled_tokens),
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


MOST_SHAPES: Assumed[Entries] = 10_000
"""Distinct shapes that are remembered; a training with more of them has new ones all the time."""
MOST_FETCHED: Assumed[Batches] = 64
"""Batches that may have been fetched and not been used yet."""
READING_SHARE: Assumed[Share] = 0.003
"""Largest share of the time that is spent reading values of masks, positions and labels. Shapes are looked at in each
step."""


class WorkMeter:
    """Adds up the work of a step: as the model was called, or else as batches were fetched."""

    def __init__(self) -> None:
        self._ration = Ration(READING_SHARE)
        self._reads = True
        """Whether values are read in the step at hand."""
        self._reading_ns = 0
        self._fetched: BatchWork | None = None
        self._called: BatchWork | None = None
        self._masked: deque[BatchWork] = deque(maxlen=MOST_FETCHED)
        self._shapes: set[tuple[Any, ...]] = set()
        self.new_shapes: int | None = None
        """Calls of the current step with shapes that no call had before; None where calls are not seen."""

    def begin(self, now_ns: int, every: bool) -> None:
        """A step begins. every: read its values however long that takes, since the step is recorded."""
        if self._reading_ns:
            self._ration.spent(self._reading_ns, now_ns)
            self._reading_ns = 0
        self._reads = every or self._ration.allows(now_ns)

    def fetched(self, batch: Any) -> None:
        """A DataLoader has handed out a batch."""
        work = self._work_of(batch, tensors_in(batch))
        if work is not None:
            self._fetched = work if self._fetched is None else self._fetched + work
            if work.is_told:
                self._masked.append(work)

    def called(self, arguments: Any) -> None:
        """The model is called with these arguments."""
        tensors = tensors_in(arguments)
        shapes = tuple([tensor.shape for _, tensor in tensors])
        # Calls are seen only once the run has settled, so the first shape seen is not new.
        seen = shapes in self._shapes
        new = bool(self._shapes) and not seen
        if not seen and len(self._shapes) < MOST_SHAPES:
            self._shapes.add(shapes)
        self.new_shapes = (self.new_shapes or 0) + new
        work = self._work_of(arguments, tensors)
        if work is not None:
            work = work if work.is_told else self._unpadded(work)
            self._called = work if self._called is None else self._called + work

    def begin_calls(self) -> None:
        """Calls are seen from now on: everything except what a loader has prefetched was used before."""
        while len(self._masked) > 1:
            self._masked.popleft()

    def take(self) -> BatchWork:
        """The work since the last time, at the end of a step."""
        work = self._called or self._fetched or BatchWork()
        self._fetched = self._called = self.new_shapes = None
        return work

    def _work_of(self, batch: Any, tensors: Tensors) -> BatchWork | None:
        if not self._reads:
            return _size(tensors)
        begun = time.perf_counter_ns()
        work = _read(batch, tensors)
        self._reading_ns += time.perf_counter_ns() - begun
        return work

    def _unpadded(self, work: BatchWork) -> BatchWork:
        """The same work with the tokens that the loader's mask kept, when the batch was still in host memory.

        Loaders fetch ahead, and a trainer may drop batches, so a batch is known by its shape, oldest first.
        """
        while self._masked:
            fetched = self._masked.popleft()
            if (fetched.rows, fetched.tokens) == (work.rows, work.tokens):
                return fetched
        return work


def work_of(batch: Any) -> BatchWork | None:
    """The work in a DataLoader's batch or in the arguments of a model's call; None where no tokens are found.

    Only shapes are looked at, and the values of masks, positions, lengths and labels that lie in host memory: nothing
    here waits for a GPU.
    """
    return _read(batch, tensors_in(batch))


def _read(batch: Any, tensors: Tensors) -> BatchWork | None:
    size = _size(tensors)
    if size is None or size.rows is None or size.tokens is None:
        return None
    named = {key: tensor for key, tensor in tensors if key is not None}
    rows, length = size.rows, size.tokens // max(size.rows, 1)
    kept = _kept(named.get("attention_mask"), rows * length)
    return replace(
        size,
        real_tokens=None if kept is None else sum(kept),
        useful_pairs=useful_pairs(
            {**_lists(batch), **named}, rows, length, kept if kept is None or len(kept) == rows else None
        ),
        labelled_tokens=labelled_tokens(named, rows, length),
    )


def _size(tensors: Tensors) -> BatchWork | None:
    """What shapes alone say."""
    named = dict(tensors)
    tokens = next((named[key] for key in _TOKENS if key in named), None)
    if tokens is None:
        tokens = next((t for _, t in tensors if t.dim() == 2 and not t.is_floating_point()), None)
    if tokens is None or tokens.dim() < 2:
        return None
    rows, length = tokens.shape[0], tokens.shape[1]
    return BatchWork(rows, rows * length, pairs=rows * length**2)


def _lists(batch: Any) -> dict[str, Any]:
    """The lists in a batch: lengths of documents."""
    return (
        {str(key): item for key, item in batch.items() if isinstance(item, list)} if isinstance(batch, Mapping) else {}
    )


def _kept(mask: Any, tokens: int) -> list[int] | None:
    """Tokens that a mask of ones and zeros in host memory keeps, row by row."""
    if mask is None or mask.dim() != 2 or mask.device.type != "cpu" or mask.numel() != tokens:
        return None
    return mask.count_nonzero(1).tolist()


def tensors_in(value: Any) -> Tensors:
    """The tensors in what a model is called with, in order, each with its key; None for one that has none."""
    import torch

    found: Tensors = []
    _gather(value, None, 0, found, torch.Tensor)
    return found


def _gather(value: Any, key: str | None, depth: int, found: Tensors, tensor: type) -> None:
    if isinstance(value, tensor):
        found.append((key, value))
    elif depth >= _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _gather(item, str(name), depth + 1, found, tensor)
    elif isinstance(value, (list, tuple)):
        for item in value[:8]:
            _gather(item, None, depth + 1, found, tensor)

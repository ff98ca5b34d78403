"""How many tokens a batch has, how many are not padding, and which share of the attention is useful. For samples see
`samples.py`."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.timing import Ration
from .useful_pairs import labelled_tokens, useful_pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Entries, Levels, Share


_TOKENS = ("input_ids", "decoder_input_ids", "tokens", "inputs_embeds")
_DEEPEST: Assumed[Levels] = 3
_MOST_ITEMS: Assumed[Entries] = 8
"""Items of a list that are looked at."""
_SCALARS = (bool, int, float, str)
_NOTHING = ()
"""The positional arguments of a call that names all of its arguments; CPython has only one empty tuple."""
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
        """Whether tensors in host memory show more than the shapes do."""
        return not (self.real_tokens is None and self.useful_pairs is None and self.labelled_tokens is None)

    def __add__(self, other: BatchWork) -> BatchWork:
        return BatchWork(
            _sum(self.rows, other.rows),
            _sum(self.tokens, other.tokens),
            _sum(self.real_tokens, other.real_tokens),
            _sum(self.pairs, other.pairs),
            _sum(self.useful_pairs, other.useful_pairs),
            _sum(self.labelled_tokens, other.labelled_tokens),
        )


_NO_WORK = BatchWork()


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


MOST_SHAPES: Assumed[Entries] = 10_000
"""Distinct shapes that are remembered; a training with more of them has new ones all the time."""
MOST_FETCHED: Assumed[Batches] = 64
"""Batches that may have been fetched and not been used yet."""
READING_SHARE: Assumed[Share] = 0.003
"""Largest share of the time that is spent reading values of masks, positions and labels. Shapes are looked at in every
step."""


class WorkMeter:
    """Adds up the work of a step: as the model was called, or else as batches were fetched."""

    def __init__(self) -> None:
        self.ration = Ration(READING_SHARE)
        self.reads = True
        """Whether values are read in the step at hand."""
        self.reading_ns = 0
        self._fetched: BatchWork | None = None
        self._called: BatchWork | None = None
        self._masked: deque[BatchWork] = deque(maxlen=MOST_FETCHED)
        self._sizes: dict[tuple[Any, ...], BatchWork | None] = {}
        """The work of each call as its shapes show it, by names and shapes of its tensors."""
        self._known: set[tuple[Any, ...]] = set()
        """Rows and tokens of calls so far."""
        self._bare: set[tuple[Any, ...]] = set()
        """The same for steps whose calls were not looked at; or the shapes of their batches."""
        self._sees_calls, self._misses_calls = False, True
        """Whether a step has called the model since `begin_calls`, and whether one has not."""
        self.new_shapes: int | None = None
        """Calls of the current step with shapes that no call had before; None where calls are not seen."""

    def begin(self, now_ns: int, every: bool) -> None:
        """A step begins. every: read its values however long that takes, since the step is recorded."""
        if self.reading_ns:
            self.ration.spent(self.reading_ns, now_ns)
            self.reading_ns = 0
        self.reads = every or self.ration.allows(now_ns)

    def fetched(self, batch: Any) -> None:
        """A DataLoader has handed out a batch."""
        self.add_batch(self.of_batch(batch))

    def of_batch(self, batch: Any) -> BatchWork | None:
        """The work of a batch, for `add_batch`. Where every step calls the model, the shapes of the call are enough."""
        if self._sees_calls and not self._misses_calls and not self.reads:
            return None
        tensors = tensors_in(batch)
        return self._values(batch, tensors) if self.reads else _size(tensors)

    def add_batch(self, work: BatchWork | None) -> None:
        """A batch with this work was handed out."""
        if work is not None:
            self._fetched = work if self._fetched is None else self._fetched + work
            if work.is_told:
                self._masked.append(work)

    def called(self, arguments: Any) -> None:
        """The model is called with these arguments."""
        self.add_call(*self.of_call(arguments))

    def of_call(self, arguments: Any) -> tuple[BatchWork | None, int]:
        """The work of a call, and 1 if no call had its shapes before, else 0; for `add_call`."""
        tensors = tensors_in(arguments)
        call = tuple([(one.dtype if key is None else key, one.shape) for key, one in tensors])
        # Calls are seen only once the run has settled, so the first shape seen is not new.
        new = 0
        if call in self._sizes:
            work = self._sizes[call]
        else:
            work = _size(tensors)
            new = 1 if self._sizes and (work is None or (work.rows, work.tokens) not in self._bare) else 0
            if len(self._sizes) < MOST_SHAPES:
                self._sizes[call] = work
                if work is not None:
                    self._known.add((work.rows, work.tokens))
        if self.reads:
            work = self._values(arguments, tensors)
        return work, new

    def add_call(self, work: BatchWork | None, new: int) -> None:
        """The model was called with this work."""
        self.new_shapes = (self.new_shapes or 0) + new
        if work is not None:
            if self._masked and not work.is_told:
                work = self._unpadded(work)
            self._called = work if self._called is None else self._called + work

    def rationed(self, batch: Any, now_ns: int, ration: Ration) -> BatchWork | None:
        """The work of a batch, from its values in host memory; to be called only if `ration` allows it."""
        work = work_of(batch, tensors_in(batch))
        ration.spent(time.perf_counter_ns() - now_ns, now_ns)
        return work if work is not None and work.is_told else None

    def knows(self, shapes: Iterable[tuple[int, ...]]) -> None:
        """Batches of these shapes are not new."""
        self._bare.update(shapes)

    def add_bare_call(self, work: BatchWork | None, shape: tuple[int, ...]) -> None:
        """The model was called with this work, known from a shape alone. shape: that of a tensor of its batch, which
        shows whether the call is new if the work is not known."""
        self._masked.clear()  # their batches were used before
        size = shape if work is None else (work.rows, work.tokens)
        is_new = size not in self._known and size not in self._bare
        if is_new:
            self._bare.add(size)
        self.add_call(work, int(is_new))

    def begin_calls(self) -> None:
        """Calls are seen from now on: everything except what a loader has prefetched was used before."""
        self._sees_calls = self._misses_calls = False
        while len(self._masked) > 1:
            self._masked.popleft()

    @property
    def knows_calls(self) -> bool:
        """Whether a step has ended since `begin_calls`, so that it is known whether batches must be looked at."""
        return self._sees_calls or self._misses_calls

    def take(self) -> BatchWork:
        """The work since the last time, at the end of a step."""
        if self._called is None:
            self._misses_calls = True
        else:
            self._sees_calls = True
        work = self._called or self._fetched or _NO_WORK
        self._fetched = self._called = self.new_shapes = None
        return work

    def _values(self, batch: Any, tensors: Tensors) -> BatchWork | None:
        begun = time.perf_counter_ns()
        work = work_of(batch, tensors)
        self.reading_ns += time.perf_counter_ns() - begun
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


def work_of(batch: Any, tensors: Tensors) -> BatchWork | None:
    """The work in a DataLoader's batch or in the arguments of a model's call; None where no tokens are found.
    tensors: `tensors_in(batch)`.

    Only shapes are looked at, and the values of masks, positions, lengths and labels that lie in host memory: nothing
    here waits for a GPU.
    """
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
    """The work as far as shapes alone show it."""
    tokens = token_tensor(tensors)
    shape = () if tokens is None else tokens.shape
    if len(shape) < 2:
        return None
    rows, length = shape[0], shape[1]
    return BatchWork(rows, rows * length, pairs=rows * length**2)


def token_tensor(tensors: Tensors) -> Any:
    """The tensor that has the shape of the tokens; None if there is none."""
    named = dict(tensors)
    for key in _TOKENS:
        if key in named:
            return named[key]
    return next((one for _, one in tensors if one.dim() == 2 and not one.is_floating_point()), None)


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
    """The tensors in the arguments of a model, in order, each with its key, or None if it has no key."""
    found: Tensors = []
    tensor = sys.modules["torch"].Tensor
    if isinstance(value, dict):  # a batch
        _gather(value.items(), 1, found, tensor)
    elif isinstance(value, tuple):  # a call's arguments
        for part in value[:_MOST_ITEMS]:
            if isinstance(part, dict):
                _gather(part.items(), 2, found, tensor)
            elif part is not None and part is not _NOTHING:
                _gather([(None, part)], 1, found, tensor)
    else:
        _gather([(None, value)], 0, found, tensor)
    return found


def _gather(items: Iterable[tuple[Any, Any]], depth: int, found: Tensors, tensor: type) -> None:
    """Adds the tensors among the values of `items`, and those nested in them. Values without tensors, as most arguments
    are, cost no function call."""
    for key, value in items:
        if isinstance(value, tensor):
            found.append((key if key is None else str(key), value))
        elif value is None or depth >= _DEEPEST or isinstance(value, _SCALARS):
            continue
        elif isinstance(value, (dict, Mapping)):
            _gather(value.items(), depth + 1, found, tensor)
        elif isinstance(value, (list, tuple)) and value:
            _gather([(None, item) for item in value[:_MOST_ITEMS]], depth + 1, found, tensor)

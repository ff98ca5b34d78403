"""How many samples a step trains on: the indices that the DataLoader's sampler chose, else its batch size.
A tensor's first dimension is not a reliable count: it may be boxes of a detector, nodes of a graph, the two texts of a
preference pair, or one row of packed documents. With neither sampler nor batch size the number is unknown.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from ..base.hooks import WrappedAttribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Code, Convention, Levels


MOST_AHEAD: Assumed[Batches] = 1024
"""Most batches that were requested and not delivered yet; more belong to an abandoned iterator."""
_DEEPEST: Assumed[Levels] = 4
_LAST: Convention[Code] = -1


class SamplerMeter:
    """Notes how many indices each batch was made from, as the sampler of a DataLoader's iterator chooses them."""

    def __init__(self) -> None:
        self._chosen: weakref.WeakKeyDictionary[Any, dict[int, int | None]] = weakref.WeakKeyDictionary()
        self._last: tuple[Any, dict[int, int | None]] = (_nothing, {})
        """The iterator that was used last, by a weak reference, and its entry: there is mostly one."""
        self._patch: WrappedAttribute | None = None

    def watch(self, dataloader: Any) -> None:
        """Watches every choice of a sampler from now on. dataloader: the module torch.utils.data.dataloader."""

        def wrap(choose: Any) -> Any:
            def wrapper(iterator: Any) -> Any:
                index = choose(iterator)
                if type(index) is list and self._last[0]() is iterator and not hasattr(iterator, "_send_idx"):
                    self._last[1][_LAST] = len(index)  # as `_note` does: the usual case costs no call
                else:
                    self._note(iterator, index)
                return index

            return wrapper

        if self._patch is None and hasattr(dataloader._BaseDataLoaderIter, "_next_index"):
            self._patch = WrappedAttribute(dataloader._BaseDataLoaderIter, "_next_index", wrap)

    @property
    def patches(self) -> list[WrappedAttribute]:
        """The wrappers."""
        return [] if self._patch is None else [self._patch]

    def stop(self) -> None:
        """Leaves torch as it was found."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None

    def _note(self, iterator: Any, index: Any) -> None:
        try:
            chosen = self._of(iterator)
            if len(chosen) >= MOST_AHEAD:
                chosen.clear()
            # A loader with workers asks for batches ahead, and numbers them.
            chosen[getattr(iterator, "_send_idx", _LAST)] = _length(index)
        except Exception:  # the number is unknown then
            pass

    def _of(self, iterator: Any) -> dict[int, int | None]:
        if self._last[0]() is not iterator:
            self._last = weakref.ref(iterator), self._chosen.setdefault(iterator, {})
        return self._last[1]

    def of_batch(self, iterator: Any) -> int | None:
        """Samples of the batch that the iterator has just delivered; None if neither its sampler nor its loader gives
        them. An iterable dataset has no sampler: its batches have the loader's size."""
        received = getattr(iterator, "_rcvd_idx", None)
        chosen = self._last[1] if self._last[0]() is iterator else self._of(iterator)
        number = _LAST if received is None else received - 1
        if number not in chosen:  # requested before we watched
            return batch_size_of(iterator)
        return chosen.pop(number)


def _nothing() -> None:
    return None


def _length(index: Any) -> int | None:
    """Number of indices that a sampler has chosen; None for a single index, which may be a whole batch."""
    if isinstance(index, (str, bytes)):
        return None
    try:
        return len(index)
    except TypeError:
        return None


def batch_size_of(iterator: Any) -> int | None:
    """The batch size of the sampler of a DataLoader's iterator, also of a wrapped one; None without one."""
    sampler = getattr(iterator, "_index_sampler", None)
    for _ in range(_DEEPEST):
        size = getattr(sampler, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            shared_by = getattr(sampler, "num_processes", 1) if getattr(sampler, "split_batches", False) else 1
            return size // shared_by if isinstance(shared_by, int) and 0 < shared_by <= size else size
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if sampler is None:
            return None
    return None


class StepSamples:
    """Samples of the current step. A backward pass uses the oldest batch that no pass has used yet, since a loader's
    wrapper may fetch the next batch before it delivers the last."""

    def __init__(self) -> None:
        self._fetched: deque[int | None] = deque(maxlen=MOST_AHEAD)
        self._used: list[int | None] = []

    def fetched(self, samples: int | None) -> None:
        """A batch was fetched. samples: how many it has; None: unknown."""
        self._fetched.append(samples)

    def backward(self) -> None:
        """A backward pass begins. One without a batch of its own (the second of a GAN, a part of a batch) adds none."""
        if self._fetched:
            self._used.append(self._fetched.popleft())

    def evaluated(self) -> None:
        """All batches fetched so far, except the last, were used in an evaluation."""
        while len(self._fetched) > 1:
            self._fetched.popleft()

    def take(self, passes: int) -> int | None:
        """The samples since the last time, at the end of a step; None if not known. passes: backward passes seen in it;
        a step without any (in a CUDA graph) has used everything that it fetched."""
        if not passes:
            self._used += self._fetched
            self._fetched.clear()
        used = self._used
        if not used:
            return None
        self._used = []
        if len(used) == 1:
            return used[0]
        known = [one for one in used if one is not None]
        return sum(known) if len(known) == len(used) else None


sampled = SamplerMeter()
"""This process's SamplerMeter."""

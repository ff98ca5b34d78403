"""How many samples a step trains on: what the DataLoader's sampler chose, else the size that it is set to.

A tensor's first dimension says nothing of that: it may be boxes of a detector, nodes of a graph, the two texts of a
preference pair, or one row of packed documents. Where neither sampler nor loader tells, the number is unknown.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from .hooks import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Code, Convention, Levels


MOST_AHEAD: Assumed[Batches] = 1024
"""Batches that were asked for and not handed out yet; more are those of an iterator that was left."""
_DEEPEST: Assumed[Levels] = 4
_LAST: Convention[Code] = -1


class SamplerMeter:
    """Notes how many indices each batch was made from, as the sampler of a DataLoader's iterator chooses them."""

    def __init__(self) -> None:
        self._chosen: weakref.WeakKeyDictionary[Any, dict[int, int | None]] = weakref.WeakKeyDictionary()
        self._patch: Patch | None = None

    def watch(self, dataloader: Any) -> None:
        """Looks at every choice of a sampler from now on, in the module torch.utils.data.dataloader."""

        def wrap(choose: Any) -> Any:
            def wrapper(iterator: Any) -> Any:
                index = choose(iterator)
                self._note(iterator, index)
                return index

            return wrapper

        if self._patch is None and hasattr(dataloader._BaseDataLoaderIter, "_next_index"):
            self._patch = Patch(dataloader._BaseDataLoaderIter, "_next_index", wrap)

    def stop(self) -> None:
        """Leaves torch as it was found."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None

    def _note(self, iterator: Any, index: Any) -> None:
        try:
            chosen = self._chosen.setdefault(iterator, {})
            if len(chosen) >= MOST_AHEAD:
                chosen.clear()
            # A loader with workers asks for batches ahead, and numbers them.
            chosen[getattr(iterator, "_send_idx", _LAST)] = _length(index)
        except Exception:  # the number is unknown then
            pass

    def of_batch(self, iterator: Any) -> int | None:
        """Samples of the batch that the iterator has just handed out; None where neither its sampler nor its loader
        tells. An iterable data set chooses by itself: its batches have the loader's size."""
        received = getattr(iterator, "_rcvd_idx", None)
        chosen = self._chosen.get(iterator, {})
        number = _LAST if received is None else received - 1
        if number not in chosen:  # it was asked for before we looked
            return batch_size_of(iterator)
        return chosen.pop(number)


def _length(index: Any) -> int | None:
    """Samples behind what a sampler has chosen; None for a single index, which may be a batch by itself."""
    if isinstance(index, (str, bytes)):
        return None
    try:
        return len(index)
    except TypeError:
        return None


def batch_size_of(iterator: Any) -> int | None:
    """The batch size that the sampler of a DataLoader's iterator is set to, however it is wrapped; None without one."""
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
    """Samples of the step at hand. A backward pass trains on the batch that was fetched first of those that no pass has
    used yet, since a loader's wrapper may fetch the next batch before it hands out the last."""

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
        """What was fetched until now was evaluated, but for the last batch."""
        while len(self._fetched) > 1:
            self._fetched.popleft()

    def take(self, passes: int) -> int | None:
        """The samples since the last time, at the end of a step; None where they are not known. passes: backward passes
        in it; a step of which none is seen (in a CUDA graph) has used all that it fetched."""
        if not passes:
            self._used += self._fetched
            self._fetched.clear()
        used, self._used = self._used, []
        known = [one for one in used if one is not None]
        return sum(known) if used and len(known) == len(used) else None


sampled = SamplerMeter()
"""The one of this process."""

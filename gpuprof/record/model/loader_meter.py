"""How long the loader's workers take for a batch, and how many tensors they hand over, measured inside them.

The method that fetches a batch from the dataset is wrapped before any worker exists. Workers that are forked inherit
the wrapper and a piece of shared memory, where they add up their work; the training process reads it. Workers that
are spawned import torch again and are not measured.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from ..base.hooks import WrappedAttribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Entries, Levels, Workers


MOST_WORKERS: Assumed[Workers] = 255
MOST_COUNTED: Assumed[Entries] = 1000
"""Most items of a batch that are looked at: counting takes a worker 0.1 µs for each."""
_DEEPEST: Assumed[Levels] = 6
_WORKER = "torch.utils.data._utils.worker"
"""The module that says whether this process is a loader's worker, and which. It is imported with torch.utils.data."""
_SLOT = struct.Struct("qqqdq")
"""Batches, wall ns, processor ns, the sum of squares of the wall ms, and tensors of one worker."""


@dataclass(frozen=True, slots=True)
class Made:
    """Batches made since the beginning, by all workers together, or without workers by the training process."""

    batches: int = 0
    busy_ns: int = 0
    cpu_ns: int = 0
    """CPU time of the thread that made them."""
    squares: float = 0.0
    """Sum of the squares of the time for each batch, in ms²."""
    tensors: int = 0
    """Tensors in the batches of worker processes: each goes to the training process on its own."""

    def since(self, before: Made) -> Made:
        return Made(
            self.batches - before.batches,
            self.busy_ns - before.busy_ns,
            self.cpu_ns - before.cpu_ns,
            self.squares - before.squares,
            self.tensors - before.tensors,
        )

    def facts(self) -> dict[str, Any] | None:
        """As rank<N>.json has it; None if no batch was made."""
        if self.batches <= 0:
            return None
        mean_ms = self.busy_ns / self.batches / 1e6
        variance = max(self.squares / self.batches - mean_ms**2, 0.0)
        return {
            "batches": self.batches,
            "batch_ns": round(self.busy_ns / self.batches),
            "batch_cpu_ns": round(self.cpu_ns / self.batches),
            "spread": variance**0.5 / mean_ms if mean_ms else 0.0,
            "tensors": round(self.tensors / self.batches) or None,
        }


class LoaderMeter:
    """Counts the batches that the processes of this training make, one slot per worker."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOT.size * MOST_WORKERS)  # shared with forked children
        self._here: tuple[int, int, int, float] = (0, 0, 0, 0.0)
        """Batches that this process made itself, as in a slot."""
        self.patches: list[WrappedAttribute] = []
        """The wrappers of the fetchers."""
        self.only_workers = False
        """Whether batches made by this process itself are not counted at the moment, because nothing reads their
        number."""

    def watch(self, fetch: Any) -> None:
        """Wraps the fetchers of torch.utils.data._utils.fetch, once; workers forked from now on count."""
        if self.patches:
            return
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            fetcher = getattr(fetch, name, None)
            if fetcher is not None:
                self.patches.append(WrappedAttribute(fetcher, "fetch", self._counted))

    @property
    def is_watching(self) -> bool:
        """Whether the fetchers are wrapped."""
        return bool(self.patches)

    def _counted(self, fetch: Any) -> Any:
        now, used, process = time.perf_counter_ns, time.thread_time_ns, os.getpid
        here = process()

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.only_workers and process() == here:
                return fetch(*args, **kwargs)
            worker = sys.modules[_WORKER].get_worker_info()
            if worker is None and self.only_workers:
                return fetch(*args, **kwargs)
            begun, cpu = now(), used()
            batch = fetch(*args, **kwargs)
            took, worked = now() - begun, used() - cpu
            self._add(worker, took, worked, 0 if worker is None else tensors_in(batch))
            return batch

        return wrapper

    def _add(self, worker: Any, ns: int, cpu_ns: int, tensors: int) -> None:
        if worker is None:
            here = self._here
            self._here = here[0] + 1, here[1] + ns, here[2] + cpu_ns, here[3] + (ns / 1e6) ** 2
            return
        number = min(worker.id, MOST_WORKERS - 1)
        try:
            batches, busy, cpu, squares, handed = _SLOT.unpack_from(self._memory, number * _SLOT.size)
            values = batches + 1, busy + ns, cpu + cpu_ns, squares + (ns / 1e6) ** 2, handed + tensors
            _SLOT.pack_into(self._memory, number * _SLOT.size, *values)
        except (ValueError, OverflowError, struct.error):  # closed, or the clock jumped
            pass

    def read(self, workers: bool) -> Made:
        """What was made so far. workers: by worker processes, else by this one."""
        if not workers:
            return Made(*self._here)
        chosen = list(_SLOT.iter_unpack(self._memory[:]))
        return Made(*(sum(column) for column in zip(*chosen, strict=True)))

    def stop(self) -> None:
        """Removes the wrappers; living workers keep counting, unread."""
        for patch in self.patches:
            patch.undo()
        self.patches.clear()


def tensors_in(batch: Any) -> int:
    """Tensors in the lists and dictionaries of a batch."""
    tensor = sys.modules["torch"].Tensor
    found, level, left = 0, [batch], MOST_COUNTED
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for item in level[:left]:
            if isinstance(item, tensor):
                found += 1
            elif isinstance(item, (list, tuple)):
                deeper.extend(item)
            elif isinstance(item, dict):
                deeper.extend(item.values())
        left -= len(level)
        if not deeper or left <= 0:
            break
        level = deeper
    return found


meter = LoaderMeter()
"""This process's meter: wraps once, read by the current session."""

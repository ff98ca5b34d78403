"""A DataLoader's workers as a bounded queue that feeds the training: what a step takes when batches may run out.

The model is torch's: batch k is made by worker k mod W; a worker begins its next batch when it has finished the last
one and when at most W × prefetch_factor batches are under way or waiting; batches are handed out in order. A faster
consumer only waits longer once the workers are the slower side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuprof.units import Assumed, Batches, Convention, Seed

BATCHES: Assumed[Batches] = 512
"""Batches simulated; the first quarter only fills the queue and is not counted."""
SEED: Convention[Seed] = 20


@dataclass(frozen=True, slots=True)
class Loader:
    """The loader that makes the batches."""

    batch_ns: float
    """One worker's time for one batch, mean."""
    workers: int
    """Number of workers; 0: the training process makes its batches itself."""
    prefetch: int = 2
    """Batches that each worker may be ahead (`prefetch_factor`)."""
    spread: float = 0.0
    """Standard deviation of the time for a batch, as a share of its mean."""


def fed_step_ns(loader: Loader, step_ns: float, batches: float = 1.0, fetch_ns: float = 0.0) -> float:
    """The mean step, ns, of a training whose step takes `step_ns` when its batches are ready.

    `batches`: batches in a step (micro-batches of gradient accumulation); `fetch_ns`: what the training process does to
    take a ready batch, not part of `step_ns`.
    """
    batches = max(batches, 1.0)
    consume = step_ns / batches + fetch_ns
    if loader.batch_ns <= 0:
        return consume * batches
    if loader.workers < 1:
        return (consume + loader.batch_ns) * batches
    if not loader.spread:
        return max(consume, loader.batch_ns / loader.workers) * batches
    return _simulated(loader, consume) * batches


def hidden_ns(loader: Loader, lumps_ns: Mapping[str, float], every: Mapping[str, float]) -> float:
    """Work that starved workers can do while the training does something else, ns per step.

    lumps_ns: cause → what it adds to the mean step; every: cause → steps from one to the next. In each the workers fill
    an empty queue, `prefetch` batches each, and then wait.
    """
    room = max(loader.prefetch, 1) * loader.batch_ns
    return sum(min(ns, room / every[cause]) for cause, ns in lumps_ns.items() if every.get(cause, 0) > 0)


def _simulated(loader: Loader, consume_ns: float) -> float:
    """Mean time between batches handed out, after the queue has settled."""
    took = _batch_times(loader).tolist()
    workers, room = loader.workers, loader.workers * max(loader.prefetch, 1)
    done, taken = [0.0] * BATCHES, [0.0] * BATCHES
    ready = 0.0
    for k in range(BATCHES):
        begin = max(done[k - workers] if k >= workers else 0.0, taken[k - room] if k >= room else 0.0)
        done[k] = begin + took[k]
        taken[k] = max(done[k], ready)
        ready = taken[k] + consume_ns
    first = BATCHES // 4
    return float(taken[-1] - taken[first]) / (BATCHES - 1 - first)


def _batch_times(loader: Loader) -> np.ndarray:
    """Times for batches with the mean and spread of the loader."""
    return _shape_of_times(loader.spread) * loader.batch_ns


@lru_cache(maxsize=64)
def _shape_of_times(spread: float) -> np.ndarray:
    """Times for batches over their mean: a gamma distribution of this spread, the same draws every time."""
    shape = 1 / spread**2
    drawn = np.random.default_rng(SEED).gamma(shape, 1 / shape, BATCHES)
    return drawn / drawn.mean()

"""One of the two recordings of a comparison, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Known = Literal["unprofiled", "estimated", "recorded"]
"""How a step time is known: timed without a profiler, estimated by the replay without its cost, or as recorded under
it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two recordings."""

    path: str
    kind: str
    quality: str
    bound: str | None
    """The verdict, and its cause."""
    cause: str | None
    gpu: str | None
    rank: int | None
    world_size: int | None
    device: int
    """The one with most work: the waterfall is of its step."""
    steps: int
    """That were recorded."""
    step_ns: int
    known: Known
    recorded_ns: int
    tokens: float | None
    """A step, padding included."""
    real_tokens: float | None
    samples: float | None
    product_flops: float | None
    """Of the matrix multiplications of a step, without attention and recomputation; None where shapes were not
    recorded."""
    products: float
    """Of those matrix multiplications."""
    kernels: float
    """Kernels and copies of a step."""
    launches: float
    """Calls that launch them."""
    syncs: float
    """Calls a step that wait for the GPU."""
    peak_bytes: int | None
    token_ns: float | None = None
    """Mean time of a token over all steps that were timed without a profiler, padding left out where that is known."""
    sample_ns: float | None = None
    """Likewise of a sample."""

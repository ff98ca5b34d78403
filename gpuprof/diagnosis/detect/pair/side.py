"""One of the two recordings of a comparison, as it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Known = Literal["unprofiled", "estimated", "recorded"]
"""How a step time is known: timed without a profiler, estimated by a replay without the profiler's cost, or as recorded
under the profiler."""


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
    """The busiest device, whose step the waterfall shows."""
    steps: int
    """Number of recorded steps."""
    step_ns: int
    known: Known
    recorded_ns: int
    tokens: float | None
    """Tokens per step, padding included."""
    real_tokens: float | None
    samples: float | None
    product_flops: float | None
    """FLOPs of the matrix multiplications of a step, without attention and recomputation; None if shapes were not
    recorded."""
    products: float
    """Number of those matrix multiplications."""
    kernels: float
    """Kernels and copies per step."""
    launches: float
    """Calls that launch them."""
    syncs: float
    """Calls per step that wait for the GPU."""
    peak_bytes: int | None
    token_ns: float | None = None
    """Mean time per token over all steps timed without a profiler, without padding if that is known."""
    sample_ns: float | None = None
    """The same per sample."""

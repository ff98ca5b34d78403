"""What a run's peak consists of, and what would lower it: part of `gpuprof.memory/1`.

Sizes are bytes; predictions have both bounds, and what is not known is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import Signed, Whole
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class PeakPart:
    """The part of a peak held by one kind of owner."""

    owner: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Optimizer state that each step moves to the GPU and back."""

    bytes: int
    step_ns: Range


@dataclass(frozen=True, slots=True)
class Fits:
    """The largest forward pass that fits on one GPU."""

    gpu: str
    usable_bytes: int
    """Memory that tensors may use."""
    batch: Annotated[Range, Whole()] | None
    """Samples of a forward pass; None where the recorded number is not known."""
    tokens: Annotated[Range, Whole()] | None
    """Tokens of one sample with the recorded batch; None where that is not known."""
    moved: Moved | None = None
    """At the largest batch; None: nothing is moved, or its speed is not known."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change and its effect on memory and time."""

    id: str
    title: str
    peak_bytes: Annotated[Range, Whole()] | None
    """None: not known, and `unknown` says why."""
    saved_bytes: Signed[int] | None
    """By how much the peak is lower; negative: it is higher."""
    step_ns: Range | None
    """The step with it; None: not known."""
    step_unknown: str | None
    """Why `step_ns` is not known."""
    changes: str | None
    """What it changes about the training; None: nothing but rounding."""
    unknown: str | None
    fits: tuple[Fits, ...]
    """What fits with it; the recorded GPU first."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The peak of a run, explained by its model and recorded ops."""

    peak_bytes: int
    """As the allocator measured it without the profiler."""
    reserved_bytes: int | None
    static_bytes: int
    """The part of it that stays allocated between steps."""
    owners: tuple[PeakPart, ...]
    """Largest first. They sum to peak_bytes; estimated from sizes of weights and state and from formulas."""
    tokens: int
    """Tokens of the forward pass that made the peak, padding included."""
    batch: float | None
    """Samples of a forward pass."""
    now_ns: int | None
    """The mean step."""
    fits: tuple[Fits, ...]
    """What fits without any change; the recorded GPU first."""
    remedies: tuple[Remedy, ...]
    """Largest saving first."""

"""The iteration of a diagnosis: one frozen dataclass per concept. Times are whole nanoseconds of the mean iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Share, Words
from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.result.fix import PatchValue, Setting
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class PhaseBudget:
    """A phase of the mean iteration; the phases sum to it exactly."""

    phase: Annotated[str, OneOf(("training",), of="gpuprof.record.phases.phase_names:TIMED")]
    """One of `gpuprof.record.phases.phase_names.TIMED`."""
    ns: int
    low_ns: int
    """10th percentile over the iterations; the minimum if there are fewer than five."""
    high_ns: int
    """90th percentile over the iterations; the maximum if there are fewer than five."""


@dataclass(frozen=True, slots=True)
class RewardTime:
    """One reward function."""

    name: str
    ns: int
    cpu_ns: int | None
    """CPU time of its thread; if it is far less than `ns`, the function mostly waits."""

    @property
    def waits(self) -> bool:
        """Whether the function mostly waits; False if its CPU time is not known."""
        return self.cpu_ns is not None and self.cpu_ns < calibrated.WAITS.value * self.ns


@dataclass(frozen=True, slots=True)
class GenerationBudget:
    """What generation consists of."""

    prefill_ns: int
    """Until the first token of each generate loop."""
    decode_ns: int
    """After the first token."""
    forwards: float
    """Forward passes in the generate loops."""
    sequences: float
    token_ns: int | None
    """CPU wall time of one decoding forward pass; None if no loop was seen (a serving engine)."""
    tokens: float | None
    """Tokens of all completions; None if the trainer does not keep them in host memory."""
    tokens_per_s: float | None
    """Tokens of completions / time of generation."""
    ended_share: Share | None
    """Share of the computed tokens that belong to sequences that had already ended."""
    longest: float | None
    """Tokens of the longest completion."""
    p95: float | None
    """95th percentile of the completions' tokens."""


@dataclass(frozen=True, slots=True)
class CacheCopies:
    """Concatenations that copy the whole key-value cache for each token, extrapolated from the recorded decode steps to
    the mean iteration by their share of the recorded generation."""

    count: int
    cpu_ns: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class RecordedPhase:
    """A phase in the recorded window, per iteration: CPU wall time of its ranges, without unrecorded parts, and the
    part of it in which a GPU was busy."""

    phase: Annotated[str, OneOf(of="gpuprof.record.phases.phase_names:TIMED")]
    ns: int
    busy_ns: int
    """Part of it in which a GPU was busy."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """The part of generate loops that was not recorded, per iteration."""

    ns: int
    forwards: float


@dataclass(frozen=True, slots=True)
class IterationChange:
    """Something that would shorten the iteration, computed from its budget."""

    id: Words
    title: Words
    fix: Words
    """In the trainer's own arguments."""
    iteration_ns: Range
    speedup: float
    basis: str
    """What the figure rests on, and what it assumes."""
    changes: str | None
    """What it changes about the training itself; None: nothing."""
    settings: tuple[Setting, ...] = ()
    """What the fix sets, in the order of its text."""
    patch: PatchValue | None = None
    """By which gpuprof try makes it; an empty value is the patch's default. None: by hand."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """The mean iteration of a training on its own generations, as free-running steps were timed."""

    steps: Positive[int]
    """Optimizer steps of an iteration."""
    count: Positive[int]
    """Iterations that were timed without a profiler."""
    mean_ns: int
    phases: tuple[PhaseBudget, ...]
    training_ns: int
    """Forward, backward and optimizer together."""
    rewards: tuple[RewardTime, ...]
    """Reward functions, longest first; they may overlap."""
    generation: GenerationBudget | None
    recorded: tuple[RecordedPhase, ...]
    """Phases in the recorded window, per iteration, without what was not recorded."""
    unrecorded: Unrecorded | None
    """The part of generate loops that was not recorded, per iteration."""
    changes: tuple[IterationChange, ...]
    """What would shorten the iteration, computed from its budget; the largest gain first."""
    log_probability_passes: float | None = None
    """Times that log-probabilities were computed without gradients; None where that is not known."""
    cache_copies: CacheCopies | None = None
    """Concatenations that copy the key-value cache whole for each token, extrapolated from the recorded decode steps to
    the whole iteration."""

    def ns_of(self, *phases: str) -> int:
        """Host time of these phases together."""
        return sum(one.ns for one in self.phases if one.phase in phases)

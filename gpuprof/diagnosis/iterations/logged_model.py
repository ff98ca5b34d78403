"""What is said of iterations that a framework logged: one frozen dataclass per concept. Times are whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import Items, OneOf, Positive, Share, Signed, Words
from gpuprof.diagnosis.iteration_model import Change, PhaseBudget
from gpuprof.tracefile.source import Issue

SCHEMA = "gpuprof.iterations/1"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One file that was read."""

    path: str
    framework: str
    role: Annotated[str, OneOf(("trainer", "generator"))]
    """Of the process that wrote it: trainer or generator."""
    iterations: Positive[int]


@dataclass(frozen=True, slots=True)
class Role:
    """One side of the job: the processes that train, or those that generate."""

    role: Annotated[str, OneOf(("trainer", "generator"))]
    busy_ns: int | None
    wait_ns: int | None
    """Its bubble: what it waits for the other side, in the mean iteration. None: the logs do not say."""
    wait_share: Share | None
    waits_for: Annotated[str, OneOf(("completions", "training"))] | None
    """What it waits for; None where it does not wait, or that is not known."""
    source: str
    """The key that says so."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that was logged with the iterations."""

    kind: Annotated[str, OneOf(of="gpuprof.tracefile.training_logs.frameworks:Kind")]
    """One of `gpuprof.tracefile.training_logs.frameworks.Kind`."""
    key: str
    """As the framework logged it."""
    mean: Signed[float]
    least: Signed[float]
    most: Signed[float]


@dataclass(frozen=True, slots=True)
class LoggedIterations:
    """The mean iteration of a job, as its framework logged it. phases less overlap_ns sum to mean_ns exactly."""

    sources: Annotated[tuple[LogSource, ...], Items(1)]
    """Files that were read."""
    framework: Words
    asynchronous: bool
    """Whether it generates while it trains."""
    count: Positive[int]
    """Iterations that the mean is of."""
    skipped: int
    """Iterations at the beginning that it is not of."""
    mean_ns: int
    low_ns: int
    """Tenth percentile over the iterations; of fewer than five the least."""
    high_ns: int
    """The tenth and ninetieth percentile over the iterations; of few of them the least and the most."""
    phases: tuple[PhaseBudget, ...]
    training_ns: int
    overlap_ns: int
    """By how much the logged phases exceed the iteration, because some of them overlap."""
    between_ns: Signed[int] | None
    """What passes from the end of one iteration to that of the next beyond the logged time of one, by the log's
    clock."""
    lag_ns: int | None
    """From the end of a batch's generation to the end of the iteration that trains on it, where the logs of both sides
    have its number and a clock."""
    roles: tuple[Role, ...]
    """The side that trains and the side that generates; empty where they take turns."""
    quantities: tuple[Quantity, ...]
    """What was logged with the iterations."""
    limit: Words
    """Which side makes the iteration as long as it is, and by what that is known."""
    changes: tuple[Change, ...]
    """What would shorten the iteration, computed from its budget; the largest gain first."""
    issues: tuple[Issue, ...]

    def ns_of(self, *phases: str) -> int:
        """Time of these phases together."""
        return sum(one.ns for one in self.phases if one.phase in phases)

    def quantity(self, kind: str) -> Quantity | None:
        """The logged quantity of a kind; None where there is none."""
        return next((one for one in self.quantities if one.kind == kind), None)

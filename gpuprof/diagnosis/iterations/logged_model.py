"""What is said of iterations that a framework logged: one frozen dataclass per concept. Times are whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.iteration_model import Change, PhaseBudget
from gpuprof.tracefile.source import Issue

SCHEMA = "gpuprof.iterations/1"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One file that was read."""

    path: str
    framework: str
    role: str
    """Of the process that wrote it: trainer or generator."""
    iterations: int


@dataclass(frozen=True, slots=True)
class Role:
    """One side of the job: the processes that train, or those that generate."""

    role: str
    busy_ns: int | None
    wait_ns: int | None
    """Its bubble: what it waits for the other side, in the mean iteration. None: the logs do not say."""
    wait_share: float | None
    waits_for: str | None
    """What it waits for; None where it does not wait, or that is not known."""
    source: str
    """The key that says so."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that was logged with the iterations."""

    kind: str
    """One of `gpuprof.tracefile.training_logs.frameworks.Kind`."""
    key: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class LoggedIterations:
    """The mean iteration of a job, as its framework logged it. phases less overlap_ns sum to mean_ns exactly."""

    sources: tuple[LogSource, ...]
    framework: str
    asynchronous: bool
    """Whether it generates while it trains."""
    count: int
    """Iterations that the mean is of."""
    skipped: int
    """Iterations at the beginning that it is not of."""
    mean_ns: int
    low_ns: int
    high_ns: int
    """The tenth and ninetieth percentile over the iterations; of few of them the least and the most."""
    phases: tuple[PhaseBudget, ...]
    training_ns: int
    overlap_ns: int
    """By how much the logged phases exceed the iteration, because some of them overlap."""
    between_ns: int | None
    """What passes between the ends of two iterations beyond the logged time of one; None where the log has no clock."""
    lag_ns: int | None
    """From the end of a batch's generation to the end of the iteration that trains on it, where the logs of both sides
    have its number and a clock."""
    roles: tuple[Role, ...]
    quantities: tuple[Quantity, ...]
    limit: str
    """Which side makes the iteration as long as it is, and by what that is known: a sentence."""
    changes: tuple[Change, ...]
    issues: tuple[Issue, ...]

    def ns_of(self, *phases: str) -> int:
        """Time of these phases together."""
        return sum(one.ns for one in self.phases if one.phase in phases)

    def quantity(self, kind: str) -> Quantity | None:
        """The logged quantity of a kind; None where there is none."""
        return next((one for one in self.quantities if one.kind == kind), None)

"""Iterations that a framework logged: one frozen dataclass per concept. Times are whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof import documents
from gpuprof.bounds import Items, OneOf, Positive, Share, Signed, Words
from gpuprof.diagnosis.result.iteration_model import IterationChange, PhaseBudget
from gpuprof.tracefile.source import Issue

SCHEMA = "gpuprof.iterations/1"
DOCUMENT = documents.Kind(SCHEMA)


@dataclass(frozen=True, slots=True)
class LogSource:
    """One file that was read."""

    path: str
    framework: str
    role: Annotated[str, OneOf(("trainer", "generator"))]
    """Role of the process that wrote it: trainer or generator."""
    iterations: Positive[int]


@dataclass(frozen=True, slots=True)
class LoggedRole:
    """One side of the job: the processes that train, or those that generate."""

    role: Annotated[str, OneOf(("trainer", "generator"))]
    busy_ns: int | None
    wait_ns: int | None
    """Its bubble: how long it waits for the other side in the mean iteration. None: the logs do not say."""
    wait_share: Share | None
    waits_for: Annotated[str, OneOf(("completions", "training"))] | None
    """What it waits for; None if it does not wait, or if that is unknown."""
    source: str
    """The log key that this comes from."""


@dataclass(frozen=True, slots=True)
class LoggedQuantity:
    """A quantity that was logged with the iterations."""

    kind: Annotated[str, OneOf(of="gpuprof.tracefile.training_logs.frameworks:Kind")]
    """One of `gpuprof.tracefile.training_logs.frameworks.Kind`."""
    key: str
    """The framework's name for it."""
    mean: Signed[float]
    least: Signed[float]
    most: Signed[float]


@dataclass(frozen=True, slots=True)
class LoggedIterations:
    """The mean iteration of a job, as its framework logged it. sum of phases − overlap_ns = mean_ns, exactly."""

    sources: Annotated[tuple[LogSource, ...], Items(1)]
    """Files that were read."""
    framework: Words
    asynchronous: bool
    """Whether it generates while it trains."""
    count: Positive[int]
    """Number of iterations in the mean."""
    skipped: int
    """Number of first iterations that were left out."""
    mean_ns: int
    low_ns: int
    """10th percentile over the iterations; the minimum if there are fewer than five."""
    high_ns: int
    """90th percentile over the iterations; the maximum if there are fewer than five."""
    phases: tuple[PhaseBudget, ...]
    training_ns: int
    overlap_ns: int
    """Sum of the logged phases − the iteration: some of them overlap."""
    between_ns: Signed[int] | None
    """Time between the ends of consecutive iterations − the logged time of one, by the log's clock."""
    lag_ns: int | None
    """From the end of a batch's generation to the end of the iteration that trains on it; None unless the logs of both
    sides have its number and a clock."""
    roles: tuple[LoggedRole, ...]
    """The side that trains and the side that generates; empty if they take turns."""
    quantities: tuple[LoggedQuantity, ...]
    """Further quantities that were logged with the iterations."""
    limit: Words
    """Which side limits the iteration, and how that is known."""
    changes: tuple[IterationChange, ...]
    """What would shorten the iteration, computed from its budget; the largest gain first."""
    issues: tuple[Issue, ...]

    def ns_of(self, *phases: str) -> int:
        """Time of these phases together."""
        return sum(one.ns for one in self.phases if one.phase in phases)

    def quantity(self, kind: str) -> LoggedQuantity | None:
        """The logged quantity of a kind; None if there is none."""
        return next((one for one in self.quantities if one.kind == kind), None)

"""Roles on one timeline: one frozen dataclass per concept. Times are whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof import documents
from gpuprof.bounds import Items, OneOf, Positive, Share
from gpuprof.diagnosis.iterations.logged_model import LoggedQuantity
from gpuprof.tracefile.source import Issue

SCHEMA = "gpuprof.roles/1"
DOCUMENT = documents.Kind(SCHEMA, as_text=("start_unix_ns",))

WAITING = "waiting"
"""Phase of a process that waits: it is in no marked phase and uses hardly any CPU time, or marks itself as idle."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """The span of another role that a wait is for."""

    role: str
    phase: str
    start_ns: int
    """Start of that span, which may be one that was left out of its role's lane."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one process's time: a phase, `other` (work that no mark covers) or WAITING."""

    phase: Annotated[str, OneOf((WAITING,), of="gpuprof.diagnosis.iterations.logged:ORDER")]
    start_ns: int
    """Since 1970, or since another moment common to all spans."""
    end_ns: int
    awaited: Awaited | None = None
    """What a wait is for; None for work, and if no other role worked."""

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class RoleProcess:
    """One process of the job: its time in order, without gaps or overlap."""

    source: str
    """The file that it was read from."""
    program: str | None
    clock: str
    """Processes with the same text share a clock."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class RolePhaseTime:
    """Time that a role spends on a phase, within the window."""

    phase: Annotated[str, OneOf((WAITING,), of="gpuprof.diagnosis.iterations.logged:ORDER")]
    ns: int


@dataclass(frozen=True, slots=True)
class Role:
    """One process's part in the job, within the window."""

    role: str
    """Trainer, generator, environment, reward or other; several of the same are numbered."""
    source: str
    program: str | None
    phases: tuple[RolePhaseTime, ...]
    """Longest first; with wait_ns they sum to window_ns exactly."""
    busy_ns: int
    wait_ns: int
    bubble_ns: int
    """Its bubble: waiting while another role works."""
    bubble_share: Share
    """Share of the window."""
    lane: Annotated[tuple[Span, ...], Items(high=2000)]
    """Its spans within the window; start_ns counts from the window's start. If there are too many, the shortest are
    left out."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What one role waits for."""

    role: str
    waits_for: str
    """The role whose phase ended when the wait did, or that worked for most of it."""
    phase: str
    """That role's phase whose end ended the wait, or that took most of it."""
    ns: int
    count: Positive[int]


@dataclass(frozen=True, slots=True)
class Roles:
    """The processes of a job on one clock, over the time in which all of them were followed."""

    window_ns: Positive[int]
    """The time in which all processes were followed."""
    start_unix_ns: int
    """Start of the window, nanoseconds since 1970 (or on the recordings' common clock), as decimal digits."""
    iterations: int
    """Stretches of training in the window; 0 if no process trains."""
    iteration_ns: Positive[int] | None
    """window_ns / iterations; None for fewer than two."""
    one_clock: bool
    """Whether all processes share a clock; otherwise the clocks of different hosts are assumed to agree."""
    roles: Annotated[tuple[Role, ...], Items(2)]
    waits: tuple[Wait, ...]
    """What each role waits for, the longest first; their ns sum to the wait_ns of all roles."""
    limit: str
    """Which role limits the iteration, as a sentence."""
    limiting: str | None
    """That role; None if all wait, or none does."""
    issues: tuple[Issue, ...]
    queue: tuple[LoggedQuantity, ...] = ()
    """Number of batches that wait to be trained on, and the age of their policy: from logs given with the recordings,
    or else counted from the marks."""

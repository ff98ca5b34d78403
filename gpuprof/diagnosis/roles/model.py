"""What is said of roles on one timeline: one frozen dataclass per concept. Times are whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import Items, OneOf, Positive, Share
from gpuprof.diagnosis.iterations.logged_model import Quantity
from gpuprof.tracefile.source import Issue

SCHEMA = "gpuprof.roles/1"

WAITING = "waiting"
"""What a process does that waits: it is in no marked phase and uses next to no CPU time, or says that it is idle."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a wait is for: a span of another role."""

    role: str
    phase: str
    start_ns: int
    """When that span began: in the lane of its role, or among those that are left out there."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one process's time: a phase, `other` (work that no mark covers) or WAITING."""

    phase: Annotated[str, OneOf((WAITING,), of="gpuprof.diagnosis.iterations.logged:ORDER")]
    start_ns: int
    """Since 1970 or some other moment that all spans share."""
    end_ns: int
    awaited: Awaited | None = None
    """What a wait is for; None of work, and where no other role worked."""

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job: its time in order, without gaps or overlap."""

    source: str
    """The file that says so."""
    program: str | None
    clock: str
    """Processes with the same text share a clock."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """What a role spends on a phase, within the window."""

    phase: Annotated[str, OneOf((WAITING,), of="gpuprof.diagnosis.iterations.logged:ORDER")]
    ns: int


@dataclass(frozen=True, slots=True)
class Role:
    """One process's part in the job, within the window."""

    role: str
    """Trainer, generator, environment, reward or other; several of the same are numbered."""
    source: str
    program: str | None
    phases: tuple[PhaseTime, ...]
    """Longest first; with wait_ns they sum to window_ns exactly."""
    busy_ns: int
    wait_ns: int
    bubble_ns: int
    """Waiting while another role works: its bubble."""
    bubble_share: Share
    """Of the window."""
    lane: Annotated[tuple[Span, ...], Items(high=2000)]
    """Its spans within the window; start_ns counts from the window's begin. The shortest are left out of many."""


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
    """Its begin, nanoseconds since 1970 (or on the clock that the recordings share), as decimal digits."""
    iterations: int
    """Stretches of training in the window; 0 where no process trains."""
    iteration_ns: Positive[int] | None
    """The window by them; None for fewer than two."""
    one_clock: bool
    """Whether all clocks are the same; else those of different hosts were taken to be set alike."""
    roles: Annotated[tuple[Role, ...], Items(2)]
    waits: tuple[Wait, ...]
    """What each role waits for, the longest first; their ns sum to the wait_ns of all roles."""
    limit: str
    """Which role makes the iteration as long as it is: a sentence."""
    limiting: str | None
    """That role; None where all wait, or none does."""
    issues: tuple[Issue, ...]
    queue: tuple[Quantity, ...] = ()
    """What waits to be trained on, and how old its policy is: from logs that were given with the recordings, else
    counted from the marks, where they say."""

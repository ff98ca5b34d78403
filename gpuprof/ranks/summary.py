"""What is known of a job of many ranks: plain data, for JSON, the terminal and the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One what-if: the step if these ranks, groups or batches were like the others."""

    kind: str
    """rank | host | group | stage | batches | link | forward | backward | optimizer | transfers"""
    name: str
    ranks: tuple[int, ...]
    """Ranks that it is about; empty: all."""
    step_ns: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Exposed:
    """Communication that the step waits for."""

    transfer_ns: int
    """The step minus the step in which nothing takes time to move."""
    waiting_ns: int
    """What a rank waits for others in a step, the mean of ranks."""
    cause: str | None
    """transfer | peer_wait: the larger of the two; None if neither matters."""
    by_role: tuple[tuple[str, int], ...]
    """Role of the groups (`roles.ROLES`) and what the step gains without their transfers."""


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's place and times; ns a step, without the profiler's cost."""

    rank: int
    stage: int
    host: str
    pace_ns: int
    """The step that it would take if no other were ever late."""
    late_ns: tuple[int, ...]
    """Per step: how long the others waited for it, where it came last."""
    waited_ns: tuple[int, ...]
    """Per step: how long it waited for others."""


@dataclass(frozen=True, slots=True)
class Job:
    """All ranks together."""

    ranks: int
    steps: int
    stages: int
    hosts: int
    groups: tuple[tuple[str, int], ...]
    """Role and number of its groups."""
    step_ns: int
    """Of all ranks, replayed."""
    even_ns: int | None
    """The same work spread evenly over ranks, stages and steps; None where the replay is not good enough."""
    slowdown: float | None
    """`step_ns` / `even_ns`."""
    replay_error: float
    """How far the replay of what was recorded is from what was recorded, as a share of the step."""
    verdict: str | None
    """straggler | slow_host | slow_group | stage_imbalance | uneven_batches | slow_link; None: none of them."""
    culprit: Change | None
    """What the verdict is about."""
    changes: tuple[Change, ...]
    """What was tried, largest gain first."""
    exposed: Exposed | None
    lengths_share: float | None
    """Of what backward passes differ between the steps of a rank, the share that forward passes differ by too, as they
    do with batches of different length; None where too little was recorded."""
    members: tuple[Member, ...]
    notes: tuple[tuple[str, str], ...]
    """(id, sentence)"""

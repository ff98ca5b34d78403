"""Results for a job of many ranks: plain data, for JSON, the terminal and the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Share, Signed


@dataclass(frozen=True, slots=True)
class RankWhatIf:
    """One what-if: the step if these ranks, groups or batches were like the others."""

    kind: Annotated[
        str,
        OneOf(("rank", "host", "group", "stage", "batches", "link", "forward", "backward", "optimizer", "transfers")),
    ]
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
    """The step minus the time a rank needs by itself, mean over ranks."""
    cause: Annotated[str, OneOf(("transfer", "peer_wait"))] | None
    """transfer | peer_wait: the larger of the two; None if neither matters."""
    by_role: tuple[tuple[Annotated[str, OneOf(of="gpuprof.ranks.roles:ROLES")], int], ...]
    """(role of groups, how much shorter the step is without their transfers)."""


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's place and times; ns a step, without the profiler's cost."""

    rank: int
    stage: int
    host: str
    pace_ns: int
    """The step that it would take if no other were ever late."""
    late_ns: tuple[int, ...]
    """For each step: how long the others waited for it where it arrived last."""
    waited_ns: tuple[int, ...]
    """For each step: total waiting of its collectives for others, overlapped with other work or not."""


@dataclass(frozen=True, slots=True)
class OnPath:
    """A part of the critical path of the usual step."""

    rank: int
    work: Annotated[str, OneOf(("forward", "backward", "optimizer", "other", "communication"))]
    """forward | backward | optimizer | other | communication (moving data once all have arrived)"""
    start_ns: int
    """From the step's beginning."""
    ns: int


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's part in a step, without the profiler's cost."""

    rank: int
    path: str
    step_ns: int | None
    """The step of all ranks, estimated."""
    pace_ns: int | None
    """The step that this rank would take if no other were ever late."""
    waiting_ns: int | None
    """Waiting for other ranks in a step."""
    transfer_ns: int | None
    """Collectives of a step once all ranks have arrived, overlapped or not; None if ranks are missing."""
    late_share: Share | None
    """Share of the collectives with a wait in which this rank arrived last."""
    bound: str | None
    cause: str | None
    clock_offset_ns: Signed[int] | None
    """Its clock minus the first rank's, from the ends of collectives."""
    to_first_clock_ns: Signed[int] | None
    """Add this to a time of its recording to get the time on the first rank's clock; None: unknown."""


@dataclass(frozen=True, slots=True)
class Job:
    """All ranks together."""

    ranks: Positive[int]
    steps: int
    stages: Positive[int]
    hosts: Positive[int]
    groups: tuple[tuple[Annotated[str, OneOf(of="gpuprof.ranks.roles:ROLES")], int], ...]
    """Role and number of its groups."""
    step_ns: int
    """The replayed step of all ranks; if the step was timed without a profiler, all times are scaled to that."""
    even_ns: int | None
    """The step with the same work spread evenly over ranks, stages and steps; None if the replay is not good enough."""
    slowdown: float | None
    """`step_ns` / `even_ns`."""
    replay_error: float
    """Error of the replay against the recording, as a share of the step."""
    verdict: (
        Annotated[
            str, OneOf(("straggler", "slow_host", "slow_group", "stage_imbalance", "uneven_batches", "slow_link"))
        ]
        | None
    )
    """straggler | slow_host | slow_group | stage_imbalance | uneven_batches | slow_link; None: none of them."""
    culprit: RankWhatIf | None
    """What the verdict is about."""
    changes: tuple[RankWhatIf, ...]
    """The what-ifs that were tried, largest gain first."""
    exposed: Exposed | None
    lengths_share: Share | None
    """Share of the variance of backward passes between steps that forward passes explain, as they do if batches differ
    in length; None if too little was recorded."""
    members: tuple[Member, ...]
    notes: tuple[tuple[str, str], ...]
    """(id, sentence)"""
    critical_path: tuple[OnPath, ...] = ()
    """Parts of the usual step across ranks, in order of time; empty if the replay is not good enough."""


def scaled(job: Job, factor: float) -> Job:
    """All times of a step times a factor."""

    def times(ns: int) -> int:
        return round(ns * factor)

    def change(one: RankWhatIf) -> RankWhatIf:
        return replace(one, step_ns=times(one.step_ns))

    exposed = job.exposed
    if exposed is not None:
        exposed = replace(
            exposed,
            transfer_ns=times(exposed.transfer_ns),
            waiting_ns=times(exposed.waiting_ns),
            by_role=tuple((role, times(ns)) for role, ns in exposed.by_role),
        )
    return replace(
        job,
        step_ns=times(job.step_ns),
        even_ns=None if job.even_ns is None else times(job.even_ns),
        culprit=None if job.culprit is None else change(job.culprit),
        changes=tuple(map(change, job.changes)),
        exposed=exposed,
        members=tuple(
            replace(
                one,
                pace_ns=times(one.pace_ns),
                late_ns=tuple(map(times, one.late_ns)),
                waited_ns=tuple(map(times, one.waited_ns)),
            )
            for one in job.members
        ),
        critical_path=tuple(replace(one, start_ns=times(one.start_ns), ns=times(one.ns)) for one in job.critical_path),
    )

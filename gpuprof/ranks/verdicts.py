"""Who or what the job waits for: one rank, a host, a group, a stage, uneven batches, a link, or no one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.ranks.critical_path import critical_path
from gpuprof.ranks.digest_data import BACKWARD, FORWARD, WORK, Floats
from gpuprof.ranks.job import Job, Times
from gpuprof.ranks.joint import Played, paces, replay, replay_error
from gpuprof.ranks.lengths import lengths_share
from gpuprof.ranks.roles import ROLES, TENSOR, Roles, roles_of
from gpuprof.ranks.shapes import Shapes, shapes_of
from gpuprof.ranks.summary import Change, Exposed, Member
from gpuprof.ranks.summary import Job as Summary
from gpuprof.ranks.what_if import WhatIf, what_if
from gpuprof.tracefile.trace import Mask

WORST_ERROR = 0.02
"""A replay that misses what was recorded by more than this predicts nothing."""
SLOWER = 1.05
"""A rank this much slower than its like is slow: steps of one program differ by less (see `proposal.WORTH`). Of fewer
than three steps it takes more, as the mean of fewer scatters more: √3 times as much of one."""
MOSTLY_LAST, THROUGHOUT = 2 / 3, 3
"""A straggler comes last to so much of the collectives that someone waited in, or is slower in each of this many steps
and more: of two ranks whose steps merely scatter each comes last to half, and is slower now and then."""
MOST_OF_IT = 0.8
"""The smallest culprit that explains this share of what the largest does is named: a slow rank slows its host too."""
TRIED = 16
"""Ranks, hosts and groups that are tried, those with the slowest members first."""
SLOW_LINK = 1.5
"""A group is tried as a slow link if its transfers take this many times the usual of their kind and size."""
VERDICTS = {
    "rank": "straggler", "host": "slow_host", "group": "slow_group", "stage": "stage_imbalance",
    "batches": "uneven_batches", "link": "slow_link",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The joint replay of a job and what follows from it."""

    summary: Summary
    slow: int | None
    """Index of the straggler."""
    step_ns: float
    without_ns: float | None
    """The step without what the culprit does more."""
    paces_ns: Floats
    """[ranks, steps]"""


def judge(job: Job, late_share: Floats, notes: tuple[tuple[str, str], ...] = ()) -> Found:
    """Replays the job as recorded, then without the profiler, then each what-if.

    `late_share`: per rank, of the collectives that someone waited in those that it came last to; NaN: none.
    """
    roles = roles_of(job)
    error = replay_error(job)
    played = replay(job)
    own = paces(job)
    counted = tuple((role, int(np.sum(roles.of_group == r))) for r, role in enumerate(ROLES))
    known: dict[str, Any] = {
        "ranks": job.ranks,
        "steps": job.steps,
        "stages": int(roles.stage.max(initial=0)) + 1,
        "hosts": len(set(roles.host)),
        "groups": tuple(one for one in counted if one[1]),
        "step_ns": round(played.step_ns),
        "replay_error": error,
        "members": _members(job, roles, played, own),
    }
    if job.dropped:
        text = f"{job.dropped} collectives of different ranks contradict each other's order and were not matched"
        notes = (*notes, ("ranks_mismatched", text))
    if not error <= WORST_ERROR:
        text = (
            f"the joint replay of what was recorded misses the recorded step by {100 * error:.1f} %: no gains are given"
        )
        summary = Summary(
            **known, even_ns=None, slowdown=None, verdict=None, culprit=None, changes=(), exposed=None,
            lengths_share=None, notes=(*notes, ("joint_replay", text)),
        )  # fmt: skip
        return Found(summary, None, played.step_ns, None, own)
    shapes = shapes_of(job, roles)
    asked = what_if(job, roles, shapes)
    ideal = asked.even()
    even = replay(job, ideal).step_ns
    tried = [one for one in _tried(asked, ideal, own, played.step_ns) if math.isfinite(one.speedup)]
    culprit = _culprit(job, shapes, tried, own, late_share, played.step_ns)
    changes = tuple(sorted(tried, key=lambda one: one.step_ns))
    summary = Summary(
        **known, even_ns=round(even), slowdown=played.step_ns / max(even, 1.0),
        verdict=None if culprit is None else VERDICTS[culprit.kind], culprit=culprit, changes=changes,
        exposed=_exposed(asked, roles, played, own), lengths_share=lengths_share(asked.work_ns), notes=notes,
        critical_path=critical_path(job, played),
    )  # fmt: skip
    slow = None
    if culprit is not None and culprit.kind == "rank":
        slow = next(r for r, one in enumerate(job.digests) if one.rank == culprit.ranks[0])
    return Found(summary, slow, played.step_ns, None if culprit is None else float(culprit.step_ns), own)


def _tried(asked: WhatIf, even: Times, own: Floats, step: float) -> Iterator[Change]:
    """All what-ifs, each replayed."""
    job, roles = asked.job, asked.roles

    def change(kind: str, name: str, ranks: Mask | None, times: Times) -> Change:
        after = replay(job, times).step_ns
        numbers = () if ranks is None else tuple(job.digests[r].rank or 0 for r in np.flatnonzero(ranks).tolist())
        return Change(kind, name, numbers, round(after), step / max(after, 1.0))

    slower = _over_their_class(own, asked.shapes)
    every = np.arange(job.ranks)
    for r in np.argsort(-slower, kind="stable")[:TRIED].tolist():
        if job.ranks > 1:
            only = every == r
            yield change("rank", f"rank {job.digests[r].rank}", only, asked.without(only, _stage_work(roles, only)))
    for kind, named in (("host", _by_host(roles)), ("group", _by_group(job, roles))):
        named.sort(key=lambda one: -float(slower[one[1]].mean()))
        for name, mask in named[:TRIED]:
            keeping = _stage_work(roles, mask) if kind == "group" else ()
            yield change(kind, name, mask, asked.without(mask, keeping))
    if roles.stage.any():
        yield change("stage", *_longest_stage(roles, own), asked.balanced())
    yield change("batches", "batches of equal work", None, asked.steady())
    for g in _slow_links(asked)[:TRIED]:
        only = np.arange(len(job.groups)) == g
        mask = np.isin(every, roles.members[g])
        yield change("link", f"links of group {job.groups[g]}", mask, asked.usual_transfers(only))
    for k, name in enumerate(WORK[:3]):
        yield change(name, f"{name} spread evenly", None, asked.kind_as_usual(k, even))
    yield change("transfers", "no transfers", None, asked.no_transfers())


def _stage_work(roles: Roles, mask: Mask) -> tuple[int, ...]:
    """The work in which ranks (mask) that are all of their stages may differ from others: how long a stage takes is the
    model's partition, and not these ranks' fault. None where other ranks have the same stage."""
    others = roles.stage[~mask]
    return (FORWARD, BACKWARD) if len(others) and not np.isin(roles.stage[mask], others).any() else ()


def _over_their_class(own: Floats, shapes: Shapes) -> Floats:
    """Per rank how many times the median pace of its class its own is."""
    pace = own.mean(axis=1)
    found = np.ones(len(pace))
    for one in np.unique(shapes.of_rank).tolist():
        mine = shapes.of_rank == one
        found[mine] = pace[mine] / max(float(np.median(pace[mine])), 1.0)
    # Of classes of one or two the median says nothing: they are compared with all.
    few = np.bincount(shapes.of_rank)[shapes.of_rank] < 3
    found[few] = pace[few] / max(float(np.median(pace)), 1.0)
    return found


def _by_host(roles: Roles) -> list[tuple[str, Mask]]:
    names = sorted(set(roles.host))
    host = np.array(roles.host)
    found = [(name, host == name) for name in names if name]
    return [one for one in found if 1 < one[1].sum() < len(host)]


def _by_group(job: Job, roles: Roles) -> list[tuple[str, Mask]]:
    every = np.arange(job.ranks)
    found = []
    for g in np.flatnonzero(roles.of_group == TENSOR).tolist():
        if len(roles.members[g]) > 1:
            found.append((f"group {job.groups[g]}", np.isin(every, roles.members[g])))
    return found


def _longest_stage(roles: Roles, own: Floats) -> tuple[str, Mask]:
    """The stage with the most work; the change is to give all stages as much."""
    pace = own.mean(axis=1)
    stages = np.unique(roles.stage)
    most = int(stages[np.argmax([pace[roles.stage == s].mean() for s in stages])])
    return f"stage {most}", roles.stage == most


def _slow_links(asked: WhatIf) -> list[int]:
    """Groups whose transfers take far longer than their like, the slowest first."""
    job = asked.job
    group = job.group[job.first[:-1]]
    moving = job.unprofiled.transfer_ns - job.waited_ns
    mine = group >= 0
    took = np.bincount(group[mine], moving[mine], len(job.groups))
    usual = np.bincount(group[mine], asked.usual_transfer_ns[mine], len(job.groups))
    slow = np.flatnonzero(took > SLOW_LINK * np.maximum(usual, 1.0))
    return slow[np.argsort(-(took - usual)[slow], kind="stable")].tolist()


def _culprit(
    job: Job, shapes: Shapes, tried: list[Change], own: Floats, late_share: Floats, step: float
) -> Change | None:
    """The smallest change that saves most of what the best does, if that is worth it."""
    least = least_slower(job.steps)
    worth = [one for one in tried if one.kind in VERDICTS and one.speedup >= least]
    worth = [
        one
        for one in worth
        if one.kind not in ("rank", "host", "group") or _throughout(job, shapes, one, own, late_share)
    ]
    if not worth:
        return None
    most = max(step - one.step_ns for one in worth)
    order = {kind: i for i, kind in enumerate(("link", "rank", "group", "host", "stage", "batches"))}
    enough = [one for one in worth if step - one.step_ns >= MOST_OF_IT * most]
    best = max(enough, key=lambda one: one.speedup)
    if best.kind in ("batches", "link"):
        return best
    return min((one for one in enough if one.kind != "batches"), key=lambda one: (order[one.kind], one.step_ns))


def least_slower(steps: int) -> float:
    """How many times as long the step has to be because of someone, read from this many steps."""
    return 1 + (SLOWER - 1) * math.sqrt(max(1.0, THROUGHOUT / max(steps, 1)))


def _throughout(job: Job, shapes: Shapes, one: Change, own: Floats, late_share: Floats) -> bool:
    """Whether the rank, or the members of the host or group, are slow in general, not in a step that happened to be
    long."""
    mine = np.isin([digest.rank or 0 for digest in job.digests], one.ranks)
    like = ~mine & np.isin(shapes.of_rank, shapes.of_rank[mine])
    if not like.any():
        like = ~mine
    ratio = own[mine].mean(axis=0) / np.maximum(own[like].max(axis=0), 1.0)
    if not len(ratio) or np.median(ratio) < 1.0:
        return False
    if one.kind == "rank" and late_share[mine][0] >= MOSTLY_LAST:
        return True
    least = SLOWER if job.steps >= THROUGHOUT or one.kind == "rank" else least_slower(job.steps)
    return (job.steps >= THROUGHOUT or one.kind != "rank") and float(ratio.min()) >= least


def _members(job: Job, roles: Roles, played: Played, own: Floats) -> tuple[Member, ...]:
    late, waited = _lateness(job, played)
    pace = own.mean(axis=1)
    return tuple(
        Member(
            one.rank or 0, int(roles.stage[r]), roles.host[r], round(float(pace[r])),
            tuple(late[r].round().astype(int).tolist()), tuple(waited[r].round().astype(int).tolist()),
        )
        for r, one in enumerate(job.digests)
    )  # fmt: skip


def _lateness(job: Job, played: Played) -> tuple[Floats, Floats]:
    """[ranks, steps] How long others waited for each rank (the mean of the others, summed over what it came last to),
    and how long it waited."""
    late, waited = np.zeros((job.ranks, job.steps)), np.zeros((job.ranks, job.steps))
    if not len(job):
        return late, waited
    latest = np.maximum.reduceat(played.arrival_ns, job.first[:-1])[job.instance]
    wait = np.where(job.shared, latest - played.arrival_ns, 0.0)
    np.add.at(waited, (job.rank, job.step), wait)
    counts = np.diff(job.first)
    mean = np.add.reduceat(wait, job.first[:-1]) / np.maximum(counts - 1, 1)
    last = (wait <= 0) & (counts[job.instance] > 1) & job.shared
    np.add.at(late, (job.rank[last], job.step[last]), mean[job.instance[last]])
    return late, waited


def _exposed(asked: WhatIf, roles: Roles, played: Played, own: Floats) -> Exposed:
    job = asked.job
    transfer = max(played.step_ns - replay(job, asked.no_transfers()).step_ns, 0.0)
    waiting = float(np.maximum(played.step_ns - np.median(own, axis=1), 0.0).mean())
    by_role = []
    for role in np.unique(roles.of_group).tolist():
        saved = played.step_ns - replay(job, asked.no_transfers(roles.of_group == role)).step_ns
        by_role.append((ROLES[role], max(round(saved), 0)))
    # Waiting in a pipeline that fills is no one's lateness; what counts is whether anything can be gained.
    matters = max(transfer, waiting) >= (SLOWER - 1) * played.step_ns
    cause = None if not matters else "transfer" if transfer >= waiting else "peer_wait"
    return Exposed(round(transfer), round(waiting), cause, tuple(sorted(by_role, key=lambda one: -one[1])))

"""What the job waits for: one rank, a host, a group, a stage, uneven batches, a link, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuprof.ranks.critical_path import critical_path
from gpuprof.ranks.digest_data import Floats
from gpuprof.ranks.job import JobRows
from gpuprof.ranks.joined import Joined
from gpuprof.ranks.joint import Played, as_it_is, replay
from gpuprof.ranks.lengths import lengths_share
from gpuprof.ranks.roles import ROLES, GroupRoles, roles_of
from gpuprof.ranks.shapes import Shapes, shapes_of
from gpuprof.ranks.summary import Exposed, Job, Member, RankWhatIf
from gpuprof.ranks.what_if import EVEN, OF_ROLE, Alternative, alternatives
from gpuprof.units import Assumed, Ratio, Share, Steps

WORST_ERROR: Assumed[Share] = 0.02
"""A replay with a larger error against the recording is not used for predictions."""
SLOW_RANK: Assumed[Ratio] = 1.05
"""A rank this much slower than comparable ranks is slow: steps of one program differ by less (see
`proposal.LEAST_GAIN`). With fewer than three steps the limit is larger, as their mean scatters more: √3 times as much
for one step."""
MOSTLY_LAST: Assumed[Share] = 2 / 3
FEWEST_STRAGGLING_STEPS: Assumed[Steps] = 3
"""A straggler arrives last in at least MOSTLY_LAST of the collectives with a wait, or is slower in every one of at
least FEWEST_STRAGGLING_STEPS steps. Of two ranks whose steps merely scatter, each arrives last in half and is slower
now and then."""
CULPRIT_SHARE: Assumed[Share] = 0.8
"""The smallest culprit that explains at least this share of what the largest explains is named: a slow rank also makes
its host look slow."""
VERDICTS = {
    "rank": "straggler", "host": "slow_host", "group": "slow_group", "stage": "stage_imbalance",
    "batches": "uneven_batches", "link": "slow_link",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JointReplay:
    """The joint replay of a job, and its results."""

    summary: Job
    slow: int | None
    """Index of the straggler."""
    step_ns: float
    without_ns: float | None
    """The step if the culprit were like the others."""
    paces_ns: Floats
    """[ranks, steps]"""


def judge(joined: Joined) -> JointReplay:
    """Replays the job as recorded, then without the profiler, then each what-if."""
    job, late_share = joined.job, np.array([one.late_share for one in joined.exchanged])
    notes: tuple[tuple[str, str], ...] = ()
    roles = roles_of(job)
    now = as_it_is(job)
    played, own, error = now.played, now.paces_ns, now.error
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
        notes = (("ranks_mismatched", text),)
    if not error <= WORST_ERROR:
        text = f"the joint replay as recorded differs from the recorded step by {100 * error:.1f} %: no gains are given"
        summary = Job(
            **known, even_ns=None, slowdown=None, verdict=None, culprit=None, changes=(), exposed=None,
            lengths_share=None, notes=(*notes, ("joint_replay", text)),
        )  # fmt: skip
        return JointReplay(summary, None, played.step_ns, None, own)
    shapes = shapes_of(job, roles)
    tried = list(map(partial(_replayed, job), alternatives(job, roles, shapes, now)))
    even = next(one.step_ns for one in tried if one.kind == EVEN)
    changes = [one.against(played.step_ns) for one in tried if one.kind not in (EVEN, OF_ROLE)]
    changes = [one for one in changes if math.isfinite(one.speedup)]
    culprit = _culprit(job, shapes, changes, own, late_share, played.step_ns)
    summary = Job(
        **known, even_ns=round(even), slowdown=played.step_ns / max(even, 1.0),
        verdict=None if culprit is None else VERDICTS[culprit.kind], culprit=culprit,
        changes=tuple(sorted(changes, key=lambda one: one.step_ns)),
        exposed=_exposed(tried, played.step_ns, own), lengths_share=lengths_share(now.work_ns), notes=notes,
        critical_path=critical_path(job, played),
    )  # fmt: skip
    slow = None
    if culprit is not None and culprit.kind == "rank":
        slow = next(r for r, one in enumerate(job.digests) if one.rank == culprit.ranks[0])
    return JointReplay(summary, slow, played.step_ns, None if culprit is None else float(culprit.step_ns), own)


@dataclass(frozen=True, slots=True)
class _Tried:
    """An alternative, replayed."""

    kind: str
    name: str
    ranks: tuple[int, ...]
    step_ns: float

    def against(self, now_ns: float) -> RankWhatIf:
        return RankWhatIf(self.kind, self.name, self.ranks, round(self.step_ns), now_ns / max(self.step_ns, 1.0))


def _replayed(job: JobRows, one: Alternative) -> _Tried:
    ranks = () if one.ranks is None else np.flatnonzero(one.ranks).tolist()
    numbers = tuple(job.digests[r].rank or 0 for r in ranks)
    return _Tried(one.kind, one.name, numbers, replay(job, one.times).step_ns)


def _culprit(
    job: JobRows, shapes: Shapes, tried: list[RankWhatIf], own: Floats, late_share: Floats, step: float
) -> RankWhatIf | None:
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
    enough = [one for one in worth if step - one.step_ns >= CULPRIT_SHARE * most]
    best = max(enough, key=lambda one: one.speedup)
    if best.kind in ("batches", "link"):
        return best
    return min((one for one in enough if one.kind != "batches"), key=lambda one: (order[one.kind], one.step_ns))


def least_slower(steps: int) -> float:
    """Smallest slowdown that counts, with this many steps."""
    return 1 + (SLOW_RANK - 1) * math.sqrt(max(1.0, FEWEST_STRAGGLING_STEPS / max(steps, 1)))


def _throughout(job: JobRows, shapes: Shapes, one: RankWhatIf, own: Floats, late_share: Floats) -> bool:
    """Whether the rank, or the members of the host or group, are slow in general, not only in one long step."""
    mine = np.isin([digest.rank or 0 for digest in job.digests], one.ranks)
    like = ~mine & np.isin(shapes.of_rank, shapes.of_rank[mine])
    if not like.any():
        like = ~mine
    ratio = own[mine].mean(axis=0) / np.maximum(own[like].max(axis=0), 1.0)
    if not len(ratio) or np.median(ratio) < 1.0:
        return False
    if one.kind == "rank" and late_share[mine][0] >= MOSTLY_LAST:
        return True
    least = SLOW_RANK if job.steps >= FEWEST_STRAGGLING_STEPS or one.kind == "rank" else least_slower(job.steps)
    return (job.steps >= FEWEST_STRAGGLING_STEPS or one.kind != "rank") and float(ratio.min()) >= least


def _members(job: JobRows, roles: GroupRoles, played: Played, own: Floats) -> tuple[Member, ...]:
    late, waited = _lateness(job, played)
    pace = own.mean(axis=1)
    return tuple(
        Member(
            one.rank or 0, int(roles.stage[r]), roles.host[r], round(float(pace[r])),
            tuple(late[r].round().astype(int).tolist()), tuple(waited[r].round().astype(int).tolist()),
        )
        for r, one in enumerate(job.digests)
    )  # fmt: skip


def _lateness(job: JobRows, played: Played) -> tuple[Floats, Floats]:
    """[ranks, steps] How long others waited for each rank (mean over the others, summed over collectives in which it
    arrived last), and how long it waited."""
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


def _exposed(tried: list[_Tried], step_ns: float, own: Floats) -> Exposed:
    moved = next(one.step_ns for one in tried if one.kind == "transfers")
    transfer = max(step_ns - moved, 0.0)
    waiting = float(np.maximum(step_ns - np.median(own, axis=1), 0.0).mean())
    by_role = [(one.name, max(round(step_ns - one.step_ns), 0)) for one in tried if one.kind == OF_ROLE]
    # Waiting while a pipeline fills is not lateness; what counts is whether anything can be gained.
    matters = max(transfer, waiting) >= (SLOW_RANK - 1) * step_ns
    cause = None if not matters else "transfer" if transfer >= waiting else "peer_wait"
    return Exposed(round(transfer), round(waiting), cause, tuple(sorted(by_role, key=lambda one: -one[1])))

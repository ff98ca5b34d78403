"""Several ranks of one training: which one the others wait for, and what that rank does more than they do.

Each recording is read once and becomes a digest; the digests are replayed together, as recorded, without the profiler,
and with each rank, host, group and stage as fast as its peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuprof.diagnosis.rank_digests import digests_of
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.ranks.digest_data import Digest, Doing
from gpuprof.ranks.joined import Exchanged, Joined, joined
from gpuprof.ranks.summary import Job, RankSummary
from gpuprof.ranks.verdicts import Found, judge
from gpuprof.replay.noise import GPU_PROCESS_NOISE
from gpuprof.tracefile.trace import Trace
from gpuprof.tracefile.traces_in_folder import is_digest

Read = Callable[[Path], Trace]
Note = tuple[str, str]
"""(id, sentence)"""


@dataclass(frozen=True, slots=True)
class Excess:
    """Work of a rank per step beyond the median of the other ranks."""

    doing: Doing
    ns: float


@dataclass(frozen=True, slots=True)
class Gang:
    """All ranks together."""

    ranks: tuple[RankSummary, ...]
    shown: int
    """Index of the rank whose diagnosis is shown: the one that the others wait for."""
    slow: int | None
    """The same index if that rank is a straggler, slower than every other by a set factor; None if there is none."""
    step_ns: float | None
    low_ns: float | None
    high_ns: float | None
    """`low_ns` and `high_ns`: ends of the step's 80 % interval."""
    next_pace_ns: float | None
    """The second slowest pace."""
    without_ns: float | None
    """The step of all ranks if the straggler did its work as fast as the others."""
    profiled: tuple[float, float]
    """How the ratio of the straggler's step to a usual rank's would change if recording had cost more, and less, than
    estimated: two factors; 1 without a straggler."""
    excess: tuple[Excess, ...]
    """Excess work of the straggler, most first."""
    excess_bound: str | None
    """Resource with most of the excess."""
    missing: tuple[int, ...]
    """Ranks of the training without a recording."""
    notes: tuple[tuple[str, str], ...]
    """(id, sentence) about recordings that could not be used, or only in part."""
    job: Job
    """The joint replay of all."""

    @property
    def slow_is_elsewhere(self) -> bool:
        """Whether all ranks that the others wait for were recorded on other nodes."""
        slow: tuple[int, ...] = ()
        if self.slow is not None:
            slow = (self.ranks[self.slow].rank,)
        elif self.job.culprit is not None and self.job.verdict in ("slow_host", "slow_group", "stage_imbalance"):
            slow = tuple(self.job.culprit.ranks)
        return bool(slow) and all(is_digest(one.path) for one in self.ranks if one.rank in slow)

    @property
    def known_step_ns(self) -> float | None:
        """The step of all ranks, if their joint replay reproduces the recorded step."""
        return None if self.job.even_ns is None else self.step_ns


def survey(paths: Sequence[str | Path], read: Read, step: str | None = None, skip: int = 0) -> Gang:
    """Reads each rank's trace once and finds which ranks wait for which. Many traces are read in parallel.

    `read`: reads a Trace from a path, used for a small number of them; `step`, `skip`: as for `diagnose`. Raises
    GpuprofError, one line, if two recordings are of the same rank or fewer than two can be read.
    """
    return gang_of(digests_of(paths, read, step, skip), [str(path).rsplit("/", 1)[-1] for path in paths])


def gang_of(made: Iterable[Digest | Note], names: Sequence[str]) -> Gang:
    """What the digests of the ranks of one training show together; a Note in place of one says why there is none.

    `made`: should be an iterator that keeps no digest, so that their rows are freed once they are in the job. `names`:
    names of the recordings in messages. Raises GpuprofError as `survey` does.
    """
    job, notes = _job(made, names)
    return _together(job, judge(job), tuple(notes))


def _job(made: Iterable[Digest | Note], names: Sequence[str]) -> tuple[Joined, list[Note]]:
    """All digests as one job. Their rows are freed when this returns."""
    digests, notes = [], []
    for one in made:
        (digests if isinstance(one, Digest) else notes).append(one)
    notes += [note for one in digests for note in one.notes]
    return joined(_in_order(digests, notes, names)), notes


def _in_order(digests: list[Digest], notes: list[Note], names: Sequence[str]) -> list[Digest]:
    """By rank; recordings that do not say theirs follow in the order given."""
    if len(digests) < 2:
        why = f": {notes[0][1]}" if notes else ""
        raise UnreadableTrace(
            f"of {len(names)} recordings ({names[0]}, …) fewer than two are ranks of one training{why}"
        )
    by_rank: dict[int, str] = {}
    for one in digests:
        if one.rank is None:
            continue
        if one.rank in by_rank:
            raise GpuprofError(
                f"{by_rank[one.rank]} and {one.source} are both of rank {one.rank}: give one recording a rank of one"
                " run"
            )
        by_rank[one.rank] = one.source
    free = iter(sorted(set(range(len(digests) + len(by_rank))) - set(by_rank)))
    numbered = [one if one.rank is not None else replace(one, rank=next(free)) for one in digests]
    return sorted(numbered, key=lambda one: one.rank or 0)


def _together(joined: Joined, found: Found, notes: tuple[Note, ...]) -> Gang:
    digests, exchanged = joined.job.digests, joined.exchanged
    pace, late = np.median(found.paces_ns, axis=1), np.array([one.late_share for one in exchanged])
    order: NDArray[np.intp] = np.argsort(-pace, kind="stable")
    slow = found.slow
    excess: tuple[Excess, ...] = ()
    if slow is not None:
        like = [d.doings for i, d in enumerate(digests) if i != slow]
        excess = _excess(digests[slow].doings, like)
    shown = slow
    if shown is None:
        shown = int(order[np.nan_to_num(late)[order].argmax()])
        if found.summary.culprit is not None and found.summary.culprit.ranks:
            inside = [i for i in order.tolist() if digests[i].rank in found.summary.culprit.ranks]
            shown = inside[0] if inside else shown
    own, step = digests[shown].own, found.step_ns
    straggles = _largest(excess)
    ranks = tuple(
        _summary(one, float(pace[i]), exchanged[i], step, straggles if i == slow else None)
        for i, one in enumerate(digests)
    )
    world = max((one.world_size or 0 for one in digests), default=0)
    missing = tuple(sorted(set(range(world)) - {one.rank for one in digests}))
    return Gang(
        ranks, shown, slow, step, step * own.low, step * own.high, float(np.sort(pace)[-2]), found.without_ns,
        _profiled(digests, slow), excess, straggles, missing, (*notes, *found.summary.notes), found.summary,
    )  # fmt: skip


def _profiled(digests: Sequence[Digest], slow: int | None) -> tuple[float, float]:
    """Factors by which a rank's step changes relative to the others if recording cost more, and less."""
    if slow is None:
        return 1.0, 1.0
    away = np.array([[_of_cost(one.own.low), _of_cost(one.own.high)] for one in digests])
    low, high = np.exp(away[slow] - np.median(np.delete(away, slow, axis=0), axis=0)).tolist()
    return low, high


def _of_cost(end: float) -> float:
    """Log of an end of a rank's interval (a share of its step), keeping only the part due to the profiler's cost."""
    away = math.log(max(end, 1e-9))
    return math.copysign(math.sqrt(max(away**2 - math.log1p(GPU_PROCESS_NOISE) ** 2, 0.0)), away)


def _excess(doings: tuple[Doing, ...], others: list[tuple[Doing, ...]]) -> tuple[Excess, ...]:
    """Work beyond the others' median, most first."""
    tables = [{(d.resource, d.phase, d.what): d.ns for d in table} for table in others]
    found = []
    for doing in doings:
        usual = float(np.median([table.get((doing.resource, doing.phase, doing.what), 0.0) for table in tables]))
        found.append(Excess(doing, doing.ns - usual))
    return tuple(sorted((e for e in found if e.ns > 0), key=lambda e: -e.ns))


def _largest(excess: tuple[Excess, ...]) -> str | None:
    """The resource with most of the excess."""
    totals: dict[str, float] = {}
    for one in excess:
        totals[one.doing.resource] = totals.get(one.doing.resource, 0.0) + one.ns
    return max(totals, key=lambda name: totals[name]) if totals else None


def _summary(one: Digest, pace: float, exchanged: Exchanged, step: float, straggles: str | None) -> RankSummary:
    bound, cause = one.own.bound, one.own.cause
    if straggles is not None:
        bound, cause = straggles if straggles != "device" else bound, "straggler"
    return RankSummary(
        rank=one.rank or 0,
        path=one.source,
        step_ns=round(step),
        pace_ns=round(pace),
        waiting_ns=max(round(step) - round(pace), 0),
        transfer_ns=exchanged.transfer_ns,
        late_share=None if np.isnan(exchanged.late_share) else exchanged.late_share,
        bound=bound,
        cause=cause,
        clock_offset_ns=exchanged.offset_ns,
        to_first_clock_ns=exchanged.to_first_clock_ns,
    )

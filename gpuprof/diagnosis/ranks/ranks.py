"""Several ranks of one training: which one the others wait for, and which additional work that rank does.

Each recording is read once and becomes a digest; the digests are replayed together, as recorded, without the profiler,
and with each rank, host, group and stage as fast as its peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.detect.ranks.gang import Gang, RankExcess
from gpuprof.diagnosis.ranks.rank_digests import digests_of
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.ranks.digest_data import Digest, Doing
from gpuprof.ranks.joined import Exchanged, Joined, joined
from gpuprof.ranks.summary import RankSummary
from gpuprof.ranks.verdicts import JointReplay, judge
from gpuprof.tracefile.trace import Trace

Read = Callable[[Path], Trace]
Note = tuple[str, str]
"""(id, sentence)"""


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


def _together(joined: Joined, found: JointReplay, notes: tuple[Note, ...]) -> Gang:
    digests, exchanged = joined.job.digests, joined.exchanged
    pace, late = np.median(found.paces_ns, axis=1), np.array([one.late_share for one in exchanged])
    order: NDArray[np.intp] = np.argsort(-pace, kind="stable")
    slow = found.slow
    excess: tuple[RankExcess, ...] = ()
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
    return math.copysign(math.sqrt(max(away**2 - math.log1p(noise_calibrated.GPU_PROCESS.value) ** 2, 0.0)), away)


def _excess(doings: tuple[Doing, ...], others: list[tuple[Doing, ...]]) -> tuple[RankExcess, ...]:
    """Work beyond the others' median, most first."""
    tables = [{(d.resource, d.phase, d.what): d.ns for d in table} for table in others]
    found = []
    for doing in doings:
        usual = float(np.median([table.get((doing.resource, doing.phase, doing.what), 0.0) for table in tables]))
        found.append(RankExcess(doing, doing.ns - usual))
    return tuple(sorted((e for e in found if e.ns > 0), key=lambda e: -e.ns))


def _largest(excess: tuple[RankExcess, ...]) -> str | None:
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

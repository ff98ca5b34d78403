"""The diagnosis of several ranks: that of the rank the others wait for, plus what all ranks show together."""

from __future__ import annotations

import statistics
from dataclasses import replace

from gpuprof.diagnosis.detect.ranks.gang import Gang
from gpuprof.diagnosis.detect.ranks.slow_rank import most_of_excess
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue, Quality, Verdict
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.sentences import Sentences, duration
from gpuprof.diagnosis.verdict.verdict import family_of
from gpuprof.ranks.summary import Job, RankSummary
from gpuprof.ranks.summary import scaled as scaled_job
from gpuprof.ranks.verdicts import SLOW_RANK
from gpuprof.units import Assumed, Share

_WARNINGS = ("rank_truncated", "joint_replay", "ranks_mismatched")
"""Notes that are warnings; the others only say which ranks are missing."""


EXPLAINED_BY_LENGTHS: Assumed[Share] = 0.5
"""Smallest share of the variation in backward time that forward time must explain, if batch lengths are the reason."""


def with_ranks(diagnosis: Diagnosis, gang: Gang) -> Diagnosis:
    """The diagnosis of rank `gang.shown` with what all ranks show. If a step was timed without a profiler, the ranks'
    times are scaled to it."""
    measured = diagnosis.steps.unprofiled_ns if diagnosis.steps else None
    if measured and gang.step_ns:
        gang = _at(gang, measured / gang.step_ns)
    verdict, found = diagnosis.verdict, list[Finding]()
    if verdict.bound is not None:
        looks = [one.across_ranks for one in BUILT_IN if one.across_ranks is not None]
        found = [finding for look in looks if (finding := look(gang)) is not None]
        verdict = _verdict(verdict, gang, bool(found))
    return replace(
        diagnosis,
        quality=_quality(diagnosis.quality, gang),
        verdict=verdict,
        findings=(*found, *diagnosis.findings),
        ranks=gang.ranks,
        job=gang.job,
    )


def _at(gang: Gang, factor: float) -> Gang:
    """All step times scaled by a factor."""

    def scaled(ns: int | None) -> int | None:
        return None if ns is None else round(ns * factor)

    def rank(one: RankSummary) -> RankSummary:
        return replace(one, step_ns=scaled(one.step_ns), pace_ns=scaled(one.pace_ns), waiting_ns=scaled(one.waiting_ns))

    def times(ns: float | None) -> float | None:
        return None if ns is None else ns * factor

    return replace(
        gang,
        ranks=tuple(map(rank, gang.ranks)),
        step_ns=times(gang.step_ns),
        low_ns=times(gang.low_ns),
        high_ns=times(gang.high_ns),
        next_pace_ns=times(gang.next_pace_ns),
        without_ns=times(gang.without_ns),
        job=scaled_job(gang.job, factor),
    )


def _verdict(verdict: Verdict, gang: Gang, waits: bool) -> Verdict:
    """The verdict with what all ranks show; `waits`: whether a finding says that they wait for the slow one."""
    if not waits or gang.slow is None:
        return replace(verdict, sentences=(*verdict.sentences, *_even(gang)))
    slow = gang.ranks[gang.slow]
    more = most_of_excess(gang)
    said = [
        f"The other {'rank waits' if len(gang.ranks) == 2 else 'ranks wait'} for rank {slow.rank}, which needs"
        f" {duration(slow.pace_ns or 0)} a step by itself; the next slowest needs {duration(gang.next_pace_ns or 0)}."
    ]
    if more:
        said.append(f"It does {duration(more[0].ns)} a step more in {more[0].doing.what} ({more[0].doing.phase}).")
    if gang.slow_is_elsewhere:
        said.append(f"It was recorded{_elsewhere(gang)}")
    bound = gang.excess_bound if gang.excess_bound in ("host", "input", "transfer") else verdict.bound
    return replace(
        verdict, bound=bound, family=family_of(bound), cause="straggler", sentences=(*said, *verdict.sentences),
        second=None, doubts=(),
    )  # type: ignore[arg-type]  # fmt: skip


def _elsewhere(gang: Gang) -> str:
    """What to do if the slow rank's recording is on another node."""
    return (
        " on another node, where gpuprof diagnose has its fixes; kernels and phases are of rank"
        f" {gang.ranks[gang.shown].rank}."
    )


def _even(gang: Gang) -> Sentences:
    """Sentences if no rank is slow."""
    if gang.job.verdict is not None and gang.job.culprit is not None:
        said = _not_one_rank(gang.job)
        return (*said, f"They were recorded{_elsewhere(gang)}") if said and gang.slow_is_elsewhere else said
    shown = gang.ranks[gang.shown]
    if not shown.late_share or any((one.late_share or 0) > shown.late_share for one in gang.ranks):
        return ()
    others = [one.late_share or 0 for i, one in enumerate(gang.ranks) if i != gang.shown]
    last = (
        f"This is rank {shown.rank}, which came last as often as others do"
        if max(others, default=0) >= shown.late_share
        else f"This is rank {shown.rank}, which came last most often ({100 * shown.late_share:.0f} % of the collectives"
        " that others waited in)"
    )
    said = f"{last}; no rank is slower than the others throughout."
    paces = [one.pace_ns for one in gang.ranks if one.pace_ns is not None]
    if shown.pace_ns is not None and SLOW_RANK * shown.pace_ns < statistics.median(paces):
        said += f" By itself it needs less than most, {duration(shown.pace_ns)} a step: it began later."
    return (said,)


_SAYS = {
    "slow_host": "The other ranks wait for those of {name} (ranks {ranks}): all of them are slow, so it is the machine",
    "slow_group": "The other ranks wait for {name} (ranks {ranks}): all of its members are slow",
    "stage_imbalance": "The pipeline waits for {name} (ranks {ranks}), which has more work than the others; with stages"
    " of equal work",
    "uneven_batches": "No rank is slow throughout: batches differ in work, and all wait for the longest; with"
    " batches of equal work",
    "slow_link": "The {name} (ranks {ranks}) are slower than others of their kind; with usual transfers",
}


def _not_one_rank(job: Job) -> Sentences:
    """Sentences if no single rank is slow, but the job waits for something."""
    culprit = job.culprit
    if culprit is None or job.verdict not in _SAYS:
        return ()
    numbers = ", ".join(map(str, culprit.ranks[:8])) + (", …" if len(culprit.ranks) > 8 else "")
    text = _SAYS[job.verdict].format(name=culprit.name, ranks=numbers)
    after = f"a step would take {duration(culprit.step_ns)} in place of {duration(job.step_ns)}"
    lengths = _lengths(job.lengths_share) if job.verdict == "uneven_batches" else ()
    return (f"{text}{', ' if 'with' in text else '; without that '}{after}.", *lengths)


def _lengths(share: float | None) -> Sentences:
    """Sentences about batches that differ in work."""
    if share is None:
        return ()
    percent = f"{100 * share:.0f} % of the variation in backward time"
    if share >= EXPLAINED_BY_LENGTHS:
        return (f"Their length is the reason: forward time explains {percent}.",)
    return (
        f"Their length is not the reason, since forward time explains only {percent}: look for what else varies"
        " (evaluation, checkpoints, garbage collection, other programs).",
    )


def _quality(quality: Quality, gang: Gang) -> Quality:
    issues = [Issue(id_, "warning" if id_ in _WARNINGS else "info", text) for id_, text in gang.notes]
    if gang.missing:
        some = ", ".join(map(str, gang.missing[:8])) + (" and more" if len(gang.missing) > 8 else "")
        issues.append(
            Issue(
                "ranks_missing",
                "info",
                f"Of the ranks {some} {'is' if len(gang.missing) == 1 else 'are'} missing: waiting for them"
                " cannot be distinguished from transfer. Add their recordings.",
            )
        )
    worse = quality.status == "ok" and any(issue.severity == "warning" for issue in issues)
    own = (issue for issue in quality.issues if issue.id != "other_processes")  # they are among the ranks
    return Quality("degraded" if worse else quality.status, (*own, *issues))

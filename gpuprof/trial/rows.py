"""Rows of a trial: the results of the processes with the same fixes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.errors import GpuprofError
from gpuprof.trial import judge, same_training
from gpuprof.trial.fixes import FixToTry, lines_for
from gpuprof.trial.starter import Outcome
from gpuprof.trial.trial import Row, Sameness, Status, TrialBaseline, TriedFix
from gpuprof.trial.turns import Turns

BROKEN = ("failed", "not_applied")
"""Statuses of fixes without a measurement."""


def name_of(fixes: Sequence[TriedFix]) -> str:
    """Name of the processes with these fixes."""
    return " + ".join(map(str, fixes))


def row_of(turns: Turns, fixes: tuple[TriedFix, ...], candidate: FixToTry) -> Row:
    """The results so far with these fixes; candidate: the prediction."""
    name = name_of(fixes)
    outcomes = turns.of(name)
    timed = [one for one in outcomes if one.process.step_ns is not None]
    why = next((one.not_applied for one in outcomes if one.not_applied), None)
    error = next((one.process.error for one in outcomes if one.process.error), None)
    found = judge.judged(name, turns.processes) if timed else None
    status: Status
    if error is not None:
        status, reason = "failed", error
    elif why is not None or found is None:
        status, reason = "not_applied", why or "it was not timed"
    else:
        status = found.decision or "unconfirmed"
        reason = "; ".join(filter(None, (timed[0].proof, found.why)))
    own = [flags for fix in fixes if (flags := turns.flags.get(fix))]
    plain = [one.ranks for one in turns.of("") if one.process.step_ns is not None]
    known = status not in BROKEN
    sameness = _sameness(timed, plain) if known else None
    if sameness is not None and sameness.repeats:
        status, reason, known = "not_applied", sameness.text, False
    steps = [one.process.step_ns for one in timed if one.process.step_ns]
    gain = found.gain if known and found else None
    right = judge.prediction_of(candidate.speedup, gain, bool(found and found.decision))
    return Row(
        fixes=fixes, finding=candidate.finding, status=status, reason=reason,
        predicted_step_ns=candidate.step_ns, predicted_speedup=candidate.speedup,
        step_ns=round(sum(steps) / len(steps)) if known and steps else None, speedup=gain,
        peak_bytes=max((one.process.peak_bytes or 0 for one in timed), default=0) or None,
        start_ns=max((one.process.start_ns or 0 for one in timed), default=0) or None,
        sameness=sameness, rounds=len(timed),
        lines=candidate.lines or (str(own[0]) if own else lines_for(fixes[0])),
        flags=" ".join(map(str, own)) or None, advised=candidate.advised, probability=candidate.probability,
        prediction="failed" if status == "failed" and candidate.speedup else right,
    )  # fmt: skip


def row_left_out(candidate: FixToTry, why: str) -> Row:
    """The row of a fix that was not tried."""
    return Row(
        (candidate.fix,), candidate.finding, "not_tried", why, candidate.step_ns, candidate.speedup, None, None, None,
        None, None, 0, candidate.lines or lines_for(candidate.fix), None, candidate.advised, candidate.probability,
    )  # fmt: skip


def baseline_of(turns: Turns, peak_of: str | None) -> TrialBaseline:
    """The unchanged command. Raises GpuprofError if it failed after its first process."""
    timed = [one.process for one in turns.of("") if one.process.step_ns]
    if not timed:
        failed = next((one.process.error for one in turns.of("")), None)
        raise GpuprofError(f"the command as it is failed after its first process: {failed}")
    steps = [process.step_ns for process in timed if process.step_ns]
    scatter = max(steps) / min(steps) - 1 if len(steps) > 1 else None
    return TrialBaseline(
        round(sum(steps) / len(steps)), max((p.peak_bytes or 0 for p in timed), default=0) or None, peak_of,
        max((p.start_ns or 0 for p in timed), default=0) or None, scatter,
    )  # fmt: skip


def _sameness(timed: Sequence[Outcome], plain: Sequence[tuple[dict, ...]]) -> Sameness | None:
    if not timed or not plain:
        return None
    return same_training.compare(timed[0].ranks, plain[0], plain[1] if len(plain) > 1 else None)

"""Runs a trial: processes of the command take turns, as it is and with each fix, and what they measured is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.record.redact import redact
from gpuprof.trial import judge, same_training
from gpuprof.trial.fixes import Candidate, combination, lines_for
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.plan import Plan, plan
from gpuprof.trial.processes import Outcome, Starter
from gpuprof.trial.trial import Baseline, Fix, Process, Row, Sameness, Status, Trial

STRETCH_S = 15.0
"""Seconds of the timed stretch at most; it ends earlier where its mean is known well enough."""
FIRST_LIMIT_S, SLOWER = 600.0, 4.0
"""When a process is given up: the first after this many seconds, the others after this many times as long as the
first."""
LEAST_LIMIT_S = 60.0
RANKS_SETTLE, RANKS_STEPS = 20, 40
"""Steps of several ranks, which cannot agree on their number while they run."""

Tell = Callable[[str], None]


@dataclass
class _Turns:
    """The processes so far."""

    starter: Starter
    tell: Tell
    settle: int | None = None
    steps: int | None = None
    limit_s: float = FIRST_LIMIT_S
    flags: dict[Fix, OwnFlags] = field(default_factory=dict)
    """Fixes that the program's own flags make."""
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, fixes: Sequence[Fix]) -> Outcome:
        """One more process; raises GpuprofError if it changed the user's files."""
        outcome = self.starter.run(fixes, self.settle, self.steps, STRETCH_S, self.limit_s, self.flags)
        for line in outcome.blocked:
            self.note(f"blocked: the program {line}")
        return outcome

    def turn(self, fixes: Sequence[Fix]) -> Outcome:
        """A process that counts. Where a flag of the program's does not do what it is named after, a patch does it."""
        outcome = self.run(fixes)
        own = self.flags.get(fixes[0]) if len(fixes) == 1 else None
        if own is not None and outcome.failure and not outcome.out_of_memory:
            self.note(f"{fixes[0]}: {own} did not do it ({outcome.failure}), so it is applied from outside")
            del self.flags[fixes[0]]
            outcome = self.run(fixes)
        self.outcomes.append(outcome)
        return outcome

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def processes(self) -> list[Process]:
        return [outcome.process for outcome in self.outcomes]

    def of(self, name: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.process.name == name]


def run_trial(
    starter: Starter,
    command: Sequence[str],
    candidates: Sequence[Candidate],
    *,
    run: Path | None,
    world_size: int,
    budget_s: float,
    rounds: int | None,
    tell: Tell,
) -> Trial:
    """Tries the candidates. Raises GpuprofError where the command as it is cannot be timed.

    run: the folder of the run that advised them. tell: says what is going on.
    """
    turns = _Turns(starter, tell)
    turns.flags = {one.fix: one.flags for one in candidates if one.flags is not None}
    if world_size > 1:
        # With room for what the workers have made ahead, by default two batches each.
        workers = (int(one.fix.value) for one in candidates if one.fix.name == "input_workers")
        turns.settle, turns.steps = RANKS_SETTLE + 2 * max(workers, default=0), RANKS_STEPS
    tell("first an unscored process as it is, which fills caches and shows how long a process takes")
    first = turns.run(())
    if first.process.step_ns is None:
        offline = "offline" in (first.process.error or "").lower()
        said = turns.notes[0] if turns.notes else "trials are offline" if offline else ""
        hint = f" ({said}; --yes allows connections)" if said else ""
        raise GpuprofError(f"the command as it is could not be timed: {first.process.error}{hint}")
    turns.settle, turns.steps = int(first.ranks[0]["settle"]), first.process.steps
    process_s = first.process.wall_ns / 1e9
    turns.limit_s = max(LEAST_LIMIT_S, SLOWER * process_s)
    chosen = plan(candidates, process_s, budget_s, rounds)
    _tell_plan(chosen, process_s, tell)
    rows = _take_turns(turns, chosen, tell)
    best = _together(turns, chosen, rows, budget_s if rounds is None else None, process_s, tell)
    rows += [_left_out(one, budget_s) for one in chosen.dropped]
    _note_disturbance(turns)
    rank = first.ranks[0]
    return Trial(
        command=tuple(redact(command)), run=None if run is None else str(run),
        gpu=(rank.get("gpu") or {}).get("name"), torch=rank.get("torch"),
        world_size=int(rank.get("world_size") or 1), rounds=chosen.rounds, settle_steps=turns.settle,
        timed_steps=turns.steps, baseline=_baseline(turns, rank.get("peak_of")), rows=tuple(rows), best=best,
        notes=tuple(turns.notes), processes=tuple(turns.processes),
    )  # fmt: skip


def _note_disturbance(turns: _Turns) -> None:
    """Says it where other programs had a part in the measurements."""
    timed = [process for process in turns.processes if process.step_ns is not None]
    disturbed = [process.other_cpus or 0.0 for process in timed if process.is_disturbed]
    if disturbed:
        turns.note(
            f"other programs kept the CPUs full while {len(disturbed)} of {len(timed)} processes were timed (they used "
            f"{sum(disturbed) / len(disturbed):.1f} CPUs): steps are longer and scatter more than on a quiet machine"
        )


def _tell_plan(chosen: Plan, process_s: float, tell: Tell) -> None:
    names = ", ".join(str(one.fix) for one in chosen.chosen)
    rounds = f"{chosen.rounds} rounds" if chosen.rounds > 1 else "1 round (which confirms nothing)"
    tell(f"{names}: {rounds} of processes that take about {process_s:.0f} s each, about {chosen.seconds:.0f} s in all")
    if chosen.dropped:
        tell(f"no time for {', '.join(str(one.fix) for one in chosen.dropped)}: a larger --budget tries more")


def _take_turns(turns: _Turns, chosen: Plan, tell: Tell) -> list[Row]:
    """As it is, each fix, and so on; at the end as it is."""
    dead: set[str] = set()
    for number in range(chosen.rounds):
        for fixes in [(), *((one.fix,) for one in chosen.chosen)]:
            name = " + ".join(map(str, fixes))
            if name in dead:
                continue
            outcome = turns.turn(fixes)
            _tell_outcome(outcome, number, tell)
            if fixes and outcome.failure:
                dead.add(name)
    _tell_outcome(turns.turn(()), chosen.rounds, tell)
    return [_row(turns, (one.fix,), one) for one in chosen.chosen]


def _tell_outcome(outcome: Outcome, number: int, tell: Tell) -> None:
    process = outcome.process
    took = process.error if process.step_ns is None else f"{process.step_ns / 1e6:,.1f} ms a step"
    why = outcome.not_applied
    tell(f"round {number + 1}, {process.name or 'as it is'}: {took}{f' (not applied: {why})' if why else ''}")


def _together(
    turns: _Turns, chosen: Plan, rows: list[Row], budget_s: float | None, process_s: float, tell: Tell
) -> tuple[Fix, ...]:
    """Tries the confirmed fixes together, if there are several; the best combination that was measured."""
    good = sorted((row for row in rows if row.status == "confirmed" and row.speedup), key=_gain, reverse=True)
    if not good and chosen.rounds == 1:
        good = sorted((r for r in rows if r.status == "unconfirmed" and _gain(r) > 1), key=_gain, reverse=True)
    by_name = {row.fixes[0].name: row for row in good}
    fixes = tuple(by_name[name].fixes[0] for name in combination(list(by_name)))
    if len(fixes) < 2:
        return fixes
    spent = sum(process.wall_ns for process in turns.processes) / 1e9
    if budget_s is not None and spent + process_s * 2 * chosen.rounds > 1.2 * budget_s:
        turns.note("there was no time to try the fixes together: a larger --budget does")
        return good[0].fixes
    for number in range(chosen.rounds):
        for these in (fixes, ()):
            _tell_outcome(turns.turn(these), number, tell)
    candidate = Candidate(fixes[0], None, lines="\n".join(by_name[fix.name].lines for fix in fixes))
    row = _row(turns, fixes, candidate)
    rows.append(row)
    return fixes if _gain(row) > _gain(good[0]) else good[0].fixes


def _gain(row: Row) -> float:
    return row.speedup.expected if row.speedup else 0.0


def _row(turns: _Turns, fixes: tuple[Fix, ...], candidate: Candidate) -> Row:
    """What the processes with these fixes showed."""
    name = " + ".join(map(str, fixes))
    outcomes = turns.of(name)
    timed = [one for one in outcomes if one.process.step_ns is not None]
    why = next((one.not_applied for one in outcomes if one.not_applied), None)
    error = next((one.process.error for one in outcomes if one.process.error), None)
    gain = judge.speedup(name, turns.processes) if timed else None
    status: Status
    if error is not None:
        status, reason = "failed", error
    elif why is not None or gain is None:
        status, reason = "not_applied", why or "it was not timed"
    else:
        status, reason = judge.status_of(gain), timed[0].proof
    own = [flags for fix in fixes if (flags := turns.flags.get(fix))]
    plain = [one.ranks for one in turns.of("") if one.process.step_ns is not None]
    known = status not in ("failed", "not_applied")
    sameness = _sameness(timed, plain) if known else None
    if sameness is not None and sameness.repeats:
        status, reason, known = "not_applied", sameness.text, False
    steps = [one.process.step_ns for one in timed if one.process.step_ns]
    return Row(
        fixes=fixes, finding=candidate.finding, status=status, reason=reason,
        predicted_step_ns=candidate.step_ns, predicted_speedup=candidate.speedup,
        step_ns=round(sum(steps) / len(steps)) if known and steps else None, speedup=gain if known else None,
        peak_bytes=max((one.process.peak_bytes or 0 for one in timed), default=0) or None,
        start_ns=max((one.process.start_ns or 0 for one in timed), default=0) or None,
        sameness=sameness, rounds=len(timed),
        lines=candidate.lines or (str(own[0]) if own else lines_for(fixes[0])),
        flags=" ".join(map(str, own)) or None,
    )  # fmt: skip


def _sameness(timed: Sequence[Outcome], plain: Sequence[tuple[dict, ...]]) -> Sameness | None:
    if not timed or not plain:
        return None
    return same_training.compare(timed[0].ranks, plain[0], plain[1] if len(plain) > 1 else None)


def _left_out(candidate: Candidate, budget_s: float) -> Row:
    reason = f"no time for two rounds of it in {budget_s:.0f} s: a larger --budget, or --fix {candidate.fix}"
    return Row(
        (candidate.fix,), candidate.finding, "not_tried", reason, candidate.step_ns, candidate.speedup, None, None,
        None, None, None, 0, candidate.lines or lines_for(candidate.fix),
    )  # fmt: skip


def _baseline(turns: _Turns, peak_of: str | None) -> Baseline:
    timed = [one.process for one in turns.of("") if one.process.step_ns]
    if not timed:
        failed = next((one.process.error for one in turns.of("")), None)
        raise GpuprofError(f"the command as it is failed after its first process: {failed}")
    steps = [process.step_ns for process in timed if process.step_ns]
    scatter = max(steps) / min(steps) - 1 if len(steps) > 1 else None
    return Baseline(
        round(sum(steps) / len(steps)), max((p.peak_bytes or 0 for p in timed), default=0) or None, peak_of,
        max((p.start_ns or 0 for p in timed), default=0) or None, scatter,
    )  # fmt: skip

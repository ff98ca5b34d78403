"""Runs a trial: alternates processes of the unchanged command and of each fix, until everything is decided, a gain is
reached, or the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.record.base.redact import redact
from gpuprof.record.patches import WORKERS
from gpuprof.trial import plan
from gpuprof.trial.fixes import FixToTry, combination
from gpuprof.trial.rows import baseline_of, name_of, row_left_out, row_of
from gpuprof.trial.starter import Starter
from gpuprof.trial.trial import Next, Row, Trial, TrialStop, TriedFix
from gpuprof.trial.turns import LEAST_PROCESS_LIMIT_S, SLOWER_THAN_FIRST, Tell, Turns
from gpuprof.units import Assumed, Seconds, Steps

STRETCH_S: Assumed[Seconds] = 15.0
"""Longest timed stretch, s; it ends earlier once its mean is known well enough."""
RANKS_SETTLE: Assumed[Steps] = 20
RANKS_STEPS: Assumed[Steps] = 40
"""Settling and timed steps with several ranks, which cannot agree on numbers while they run."""


def run_trial(
    starter: Starter,
    command: Sequence[str],
    candidates: Sequence[FixToTry],
    *,
    run: Path | None,
    world_size: int,
    budget_s: float,
    rounds: int | None,
    tell: Tell,
    until: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Tries the candidates. Raises GpuprofError if the unchanged command cannot be timed.
    run: the folder of the run that advised them. budget_s: the time limit, unless `rounds` says how often each fix is
    measured. until: the gain at which it stops. tell: prints progress. clock: seconds.
    """
    begun = clock()
    turns = Turns(starter, tell, STRETCH_S)
    turns.flags = {one.fix: one.flags for one in candidates if one.flags is not None}
    if world_size > 1:
        # With room for batches that the workers prefetched, by default two each.
        workers = (int(one.fix.value) for one in candidates if one.fix.name == WORKERS)
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
    turns.limit_s = max(LEAST_PROCESS_LIMIT_S, SLOWER_THAN_FIRST * process_s)
    game = _Game(turns, candidates, process_s, None if rounds else begun + budget_s, rounds, until, clock)
    stop = game.play(budget_s)
    rank = first.ranks[0]
    _note_disturbance(turns)
    return Trial(
        command=tuple(redact(command)), run=None if run is None else str(run),
        gpu=(rank.get("gpu") or {}).get("name"), torch=rank.get("torch"),
        world_size=int(rank.get("world_size") or 1), rounds=max((row.rounds for row in game.rows), default=1) or 1,
        settle_steps=turns.settle, timed_steps=turns.steps, baseline=baseline_of(turns, rank.get("peak_of")),
        rows=game.all_rows(budget_s), best=game.best, notes=tuple(turns.notes), processes=tuple(turns.processes),
        stop=stop, next=game.next(), until=until, budget_ns=None if rounds else round(budget_s * 1e9),
        spent_ns=round((clock() - begun) * 1e9),
    )  # fmt: skip


@dataclass
class _Arm:
    """Fixes that are tried together; usually one."""

    fixes: tuple[TriedFix, ...]
    candidate: FixToTry
    row: Row | None = None
    """None before its first round."""
    ended: bool = False
    """Whether it is decided, broken, or was measured the requested number of times."""

    @property
    def name(self) -> str:
        return name_of(self.fixes)

    @property
    def rounds(self) -> int:
        return self.row.rounds if self.row else 0


class _Game:
    """Decides which process runs next, and when the trial is over."""

    def __init__(
        self, turns: Turns, candidates: Sequence[FixToTry], process_s: float, end: float | None, rounds: int | None,
        until: float | None, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """end: on the clock; None if `rounds` are given."""
        self._turns, self._process_s, self._end, self._rounds, self._until = turns, process_s, end, rounds, until
        self._clock = clock
        self._waiting = [_Arm((one.fix,), one) for one in plan.in_order(candidates, process_s)]
        self._arms: list[_Arm] = []
        self._number = 1

    # -- the loop

    def play(self, budget_s: float) -> TrialStop:
        """Plays round after round; returns why it ended."""
        self._turns.turn((), 1)
        while True:
            self._admit()
            if self._promises():
                self._try_together()
            now = self._with_time() or (self._with_time() if self._try_together() else [])
            if not now:
                return self._stop(budget_s)
            for arm in now:
                outcome = self._turns.turn(arm.fixes, self._number)
                arm.ended = bool(outcome.failure)
            self._number += 1
            self._turns.turn((), self._number)
            self._look(now)
            reached = self._reached()
            if reached is not None:
                return reached

    def _look(self, played: Sequence[_Arm]) -> None:
        """Evaluates the round. A decision is final."""
        # With a fixed number of rounds, later unchanged processes count for all arms.
        for arm in self._arms if self._rounds else played:
            arm.row = row_of(self._turns, arm.fixes, arm.candidate)
            enough = arm.row.rounds >= self._rounds if self._rounds else arm.row.status != "unconfirmed"
            arm.ended = arm.ended or enough

    def _admit(self) -> None:
        """Admits the fixes for which there is time: enough rounds to decide them, and to try the best ones together."""
        if self._end is None:
            count = len(self._waiting)
        else:
            active = [arm for arm in self._arms if not arm.ended]
            missing = [max(plan.FEWEST_ROUNDS - arm.rounds, 0) * self._cost(arm) for arm in active]
            base = plan.FEWEST_ROUNDS * self._process_s if active else 0.0
            room = self._left_s() - sum(missing) - base
            count = plan.fitting([self._cost(arm) for arm in self._waiting], self._process_s, room)
            if not self._arms and not count:
                count = min(len(self._waiting), 1)  # a single measurement confirms nothing, but is informative
        if count:
            names = ", ".join(arm.name for arm in self._waiting[:count])
            later = ", ".join(arm.name for arm in self._waiting[count:])
            self._turns.tell(
                f"{names}: processes take about {self._process_s:.0f} s each"
                f"{f'; if there is time then {later}' if later else ''}"
            )
        self._arms += self._waiting[:count]
        del self._waiting[:count]

    def _with_time(self) -> list[_Arm]:
        """The undecided arms for which there is time for one more round; first those that may reach the requested
        gain."""
        active = [arm for arm in self._arms if not arm.ended]
        if self._until:
            active = [arm for arm in active if len(arm.fixes) > 1] or active
        if self._end is None:
            return active
        if not any(arm.row for arm in self._arms):
            room = max(self._left_s(), self._cost(active[0]) + self._process_s if active else 0.0)
        else:
            room = self._left_s()
            if active and all(len(arm.fixes) == 1 for arm in active) and self._combination():
                room -= plan.FEWEST_ROUNDS * plan.PROCESSES_TOGETHER * self._process_s
        while active and sum(map(self._cost, active)) + self._process_s > room:
            active.pop()
        return active

    def _try_together(self) -> bool:
        """Adds a combination, if there is one to try and time for it."""
        fixes = self._combination()
        if not fixes:
            return False
        needed = (self._rounds or plan.FEWEST_ROUNDS) * plan.PROCESSES_TOGETHER * self._process_s
        if self._end is not None and needed > self._left_s():
            return False
        lines = "\n".join(row.lines for row in self._confirmed() if row.fixes[0] in fixes)
        self._arms.append(_Arm(fixes, FixToTry(fixes[0], lines=lines)))
        self._turns.tell(f"{name_of(fixes)}: together")
        return True

    # -- what is known so far

    @property
    def rows(self) -> list[Row]:
        return [arm.row for arm in self._arms if arm.row is not None]

    def all_rows(self, budget_s: float) -> tuple[Row, ...]:
        """All rows, including fixes that were not tried."""
        why = f"no time for two rounds of it in {budget_s:.0f} s"
        if self._reached() is not None:
            why = f"{self._until:g}× was reached before"
        return (*self.rows, *(row_left_out(arm.candidate, why) for arm in self._waiting))

    @property
    def best(self) -> tuple[TriedFix, ...]:
        """The confirmed fixes that gain most."""
        row = self._best()
        return row.fixes if row else ()

    def next(self) -> tuple[Next, ...]:
        """What would be tried next: most expected gain per minute first."""
        found = []
        for arm in (*self._waiting, *(arm for arm in self._arms if not arm.ended)):
            one = arm.candidate
            expected = 1 / (1 - one.saves) if 0 < one.saves < 1 else None
            so_far = arm.row.speedup.expected if arm.row and arm.row.speedup else None
            rounds = plan.rounds_to_decide(so_far or expected)
            more = max(rounds - arm.rounds, arm.rounds, 1)  # assume that an undecided fix needs the same time again
            seconds = more * (self._cost(arm) + self._process_s) + self._process_s
            why = "not decided" if arm.row else "not tried"
            saves = 1 - 1 / so_far if so_far else one.saves
            found.append((saves / seconds, Next(arm.fixes, why, so_far or expected, one.probability, seconds)))
        together = self._combination()
        if together:
            expected = math.prod(_gain(row) for row in self._confirmed() if row.fixes[0] in together)
            seconds = (plan.FEWEST_ROUNDS * plan.PROCESSES_TOGETHER + 1) * self._process_s
            best = self._best()
            gained = expected / best.speedup.expected if best and best.speedup else expected
            found.append(((1 - 1 / gained) / seconds, Next(together, "together", expected, None, seconds)))
        return tuple(one for _, one in sorted(found, key=lambda pair: -pair[0]))

    def _confirmed(self) -> list[Row]:
        """Single fixes, most gain first."""
        found = [row for row in self.rows if row.status == "confirmed" and row.speedup and len(row.fixes) == 1]
        return sorted(found, key=_gain, reverse=True)

    def _best(self) -> Row | None:
        return max((row for row in self.rows if row.status == "confirmed"), key=_gain, default=None)

    def _combination(self) -> tuple[TriedFix, ...]:
        """The next combination of confirmed fixes: all that can be combined; if that is no better than the best single
        one, the best plus one other at a time. Empty if there is none."""
        confirmed = {row.fixes[0].name: row.fixes[0] for row in self._confirmed()}
        together = tuple(confirmed[name] for name in combination(list(confirmed)))
        tried = {frozenset(arm.fixes) for arm in self._arms}
        if len(together) < 2:
            return ()
        if frozenset(together) not in tried:
            return together
        best = self._best()
        if best is None or set(best.fixes) == set(together):
            return ()
        for fix in together:
            more = tuple(one for one in together if one in (*best.fixes, fix))
            if fix not in best.fixes and frozenset(more) not in tried:
                return more
        return ()

    def _promises(self) -> bool:
        """Whether a combination of confirmed fixes that is still untried may reach the requested gain."""
        fixes = self._combination()
        if self._until is None or not fixes:
            return False
        return math.prod(_gain(row) for row in self._confirmed() if row.fixes[0] in fixes) >= self._until

    def _reached(self) -> TrialStop | None:
        best = self._best()
        if self._until is None or best is None or best.speedup is None or best.speedup.expected < self._until:
            return None
        return TrialStop("until", f"{best.name} gains {best.speedup.expected:.2f}×: {self._until:g}× is reached")

    def _stop(self, budget_s: float) -> TrialStop:
        open_ = [arm.name for arm in self._arms if not arm.ended]
        missed = f"; {self._until:g}× is not reached" if self._until else ""
        if self._rounds:
            return TrialStop(
                "rounds", f"{self._rounds} {'round' if self._rounds == 1 else 'rounds'}, as asked for{missed}"
            )
        if not open_ and not self._waiting and not self._combination():
            return TrialStop("decided", f"every fix is decided{missed}")
        parts = [f"not decided: {', '.join(open_)}"] if open_ else []
        parts += [f"not tried: {', '.join(arm.name for arm in self._waiting)}"] if self._waiting else []
        return TrialStop("budget", "; ".join([f"the budget of {budget_s:.0f} s is used", *parts]) + missed)

    def _cost(self, arm: _Arm) -> float:
        """Seconds of a process with it."""
        return self._turns.usual_s(arm.name) or self._process_s + arm.candidate.once_s

    def _left_s(self) -> float:
        return math.inf if self._end is None else self._end - self._clock()


def _gain(row: Row) -> float:
    return row.speedup.expected if row.speedup else 0.0


def _note_disturbance(turns: Turns) -> None:
    """Adds a note if other programs disturbed the measurements."""
    timed = [process for process in turns.processes if process.step_ns is not None]
    disturbed = [process.other_cpus or 0.0 for process in timed if process.is_disturbed]
    if disturbed:
        turns.note(
            f"other programs kept the CPUs full while {len(disturbed)} of {len(timed)} processes were timed (they used "
            f"{sum(disturbed) / len(disturbed):.1f} CPUs); what was timed then confirms nothing"
        )

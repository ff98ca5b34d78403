"""The processes of a trial in order, and notes about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.starter import Outcome, Starter
from gpuprof.trial.trial import TimedProcess, TriedFix
from gpuprof.units import Assumed, Ratio, Seconds

FIRST_LIMIT_S: Assumed[Seconds] = 600.0
SLOWER_THAN_FIRST: Assumed[Ratio] = 4.0
"""Time limits of processes: the first gets FIRST_LIMIT_S seconds, the others SLOWER_THAN_FIRST times as long as the
first took."""
LEAST_PROCESS_LIMIT_S: Assumed[Seconds] = 120.0
"""Compiling a small model on a busy CPU takes more than a minute."""

Tell = Callable[[str], None]


@dataclass
class Turns:
    """The processes so far."""

    starter: Starter
    tell: Tell
    stretch_s: float
    """Longest timed stretch, s."""
    settle: int | None = None
    steps: int | None = None
    limit_s: float = FIRST_LIMIT_S
    flags: dict[TriedFix, OwnFlags] = field(default_factory=dict)
    """Fixes applied through the program's own flags."""
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, fixes: Sequence[TriedFix]) -> Outcome:
        """Runs one more process. Raises GpuprofError if it changed the user's files."""
        outcome = self.starter.run(fixes, self.settle, self.steps, self.stretch_s, self.limit_s, self.flags)
        for line in outcome.blocked:
            self.note(f"blocked: the program {line}")
        return outcome

    def turn(self, fixes: Sequence[TriedFix], round_number: int) -> Outcome:
        """Runs a process that counts. If the program's own flag does not apply the fix, the patch is used."""
        outcome = self.run(fixes)
        own = self.flags.get(fixes[0]) if len(fixes) == 1 else None
        if own is not None and outcome.failure and not outcome.out_of_memory:
            self.note(f"{fixes[0]}: {own} did not do it ({outcome.failure}), so it is applied from outside")
            del self.flags[fixes[0]]
            outcome = self.run(fixes)
        self.outcomes.append(outcome)
        self._tell(outcome, round_number)
        return outcome

    def _tell(self, outcome: Outcome, number: int) -> None:
        process = outcome.process
        took = process.error if process.step_ns is None else f"{process.step_ns / 1e6:,.1f} ms a step"
        why = outcome.not_applied
        full = ", while other programs keep the CPUs full" if process.is_disturbed else ""
        self.tell(
            f"round {number}, {process.name or 'as it is'}: {took}{full}{f' (not applied: {why})' if why else ''}"
        )

    def note(self, text: str) -> None:
        """Adds a note that is printed once, at the end."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def processes(self) -> list[TimedProcess]:
        return [outcome.process for outcome in self.outcomes]

    def of(self, name: str) -> list[Outcome]:
        """The outcomes with these fixes; empty: unchanged."""
        return [one for one in self.outcomes if one.process.name == name]

    def usual_s(self, name: str) -> float | None:
        """Duration of a process with these fixes, s; None if none succeeded."""
        walls = [one.process.wall_ns / 1e9 for one in self.of(name) if one.process.step_ns is not None]
        return sum(walls) / len(walls) if walls else None

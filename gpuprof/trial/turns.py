"""The processes of a trial as they are started one after the other, and what is to be said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.processes import Outcome, Starter
from gpuprof.trial.trial import Fix, Process
from gpuprof.units import Assumed, Ratio, Seconds

FIRST_LIMIT_S: Assumed[Seconds] = 600.0
SLOWER_THAN_FIRST: Assumed[Ratio] = 4.0
"""When a process is given up: the first after this many seconds, the others after this many times as long as the
first."""
LEAST_LIMIT_S: Assumed[Seconds] = 120.0
"""Compiling a small model on a busy CPU takes more than a minute."""

Tell = Callable[[str], None]


@dataclass
class Turns:
    """The processes so far."""

    starter: Starter
    tell: Tell
    stretch_s: float
    """Seconds of the timed stretch at most."""
    settle: int | None = None
    steps: int | None = None
    limit_s: float = FIRST_LIMIT_S
    flags: dict[Fix, OwnFlags] = field(default_factory=dict)
    """Fixes that the program's own flags make."""
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, fixes: Sequence[Fix]) -> Outcome:
        """One more process; raises GpuprofError if it changed the user's files."""
        outcome = self.starter.run(fixes, self.settle, self.steps, self.stretch_s, self.limit_s, self.flags)
        for line in outcome.blocked:
            self.note(f"blocked: the program {line}")
        return outcome

    def turn(self, fixes: Sequence[Fix], round_number: int) -> Outcome:
        """A process that counts. Where a flag of the program's does not do what it is named after, a patch does it."""
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
        """Says something once, at the end."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def processes(self) -> list[Process]:
        return [outcome.process for outcome in self.outcomes]

    def of(self, name: str) -> list[Outcome]:
        """Those with these fixes; empty: as it is."""
        return [one for one in self.outcomes if one.process.name == name]

    def usual_s(self, name: str) -> float | None:
        """What a process with these fixes takes; None where none ended well."""
        walls = [one.process.wall_ns / 1e9 for one in self.of(name) if one.process.step_ns is not None]
        return sum(walls) / len(walls) if walls else None

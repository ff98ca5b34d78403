"""How many processes there is time for, and in which order they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.trial.fixes import Candidate

ROUNDS = 2
"""The fewest that show how far one measurement is from the next."""
TOGETHER = 2
"""Processes of a round that tries several fixes together: one with them, one without."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried, and how often."""

    chosen: tuple[Candidate, ...]
    dropped: tuple[Candidate, ...]
    """For which there is no time."""
    rounds: int
    seconds: float
    """What it takes, the combination included."""


def plan(candidates: Sequence[Candidate], process_s: float, budget_s: float, rounds: int | None) -> Plan:
    """The fixes that fit the budget, those that promise most first.

    process_s: what one process takes. rounds: as asked for; None for ROUNDS, or for one where the budget allows no more
    even of a single fix.
    """
    ordered = sorted(candidates, key=lambda one: -(one.speedup.expected if one.speedup else 1.0))
    # What was asked for without a prediction keeps its place behind what is predicted.
    wanted = rounds or ROUNDS
    if rounds is None and ordered and seconds(1, wanted, process_s) > budget_s:
        wanted = 1
    count = len(ordered) if rounds is not None else 0
    while count < len(ordered) and (count == 0 or seconds(count + 1, wanted, process_s) <= budget_s):
        count += 1
    return Plan(tuple(ordered[:count]), tuple(ordered[count:]), wanted, seconds(count, wanted, process_s))


def seconds(fixes: int, rounds: int, process_s: float) -> float:
    """How long this many fixes take: a process without fix before each round, one at the end, and the combination."""
    processes = rounds * (fixes + 1) + 1 + (rounds * TOGETHER if fixes > 1 else 0)
    return processes * process_s


def process_seconds(start_s: float, step_s: float, settle: int, steps: int) -> float:
    """What one process takes from its start to its end."""
    return start_s + step_s * (settle + steps)

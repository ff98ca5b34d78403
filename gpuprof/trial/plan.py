"""In which order fixes are tried, what each is expected to take, and which of them fit into the time that is left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.trial.fixes import Candidate
from gpuprof.units import Assumed, Processes, Rounds

FEWEST_ROUNDS: Assumed[Rounds] = 2
"""The fewest that decide anything."""
MOST_ROUNDS: Assumed[Rounds] = 8
"""More are not planned for one fix, though there may be more."""
UNKNOWN_ROUNDS: Assumed[Rounds] = 3
"""Rounds planned for a fix of which nothing is predicted."""
PROCESSES_TOGETHER: Assumed[Processes] = 2
"""Processes of a round that tries several fixes together: one with them, one without."""


def rounds_to_decide(gain: float | None) -> int:
    """Rounds in which a gain is likely confirmed on a machine whose processes differ by PROCESS_NOISE: after them the
    gap between the groups counts as clear (`decision`)."""
    if gain is None:
        return UNKNOWN_ROUNDS
    if gain <= 1:
        return MOST_ROUNDS
    return min(max(FEWEST_ROUNDS, 1 + math.ceil(PROCESS_NOISE / math.log(gain))), MOST_ROUNDS)


def saved_per_minute(candidate: Candidate, process_s: float) -> float:
    """Share of the training's time that is expected to be saved, for each minute that deciding it takes."""
    gain = 1 / (1 - candidate.saves) if 0 < candidate.saves < 1 else None
    minutes = rounds_to_decide(gain) * (process_s + candidate.once_s) / 60
    return candidate.saves / max(minutes, 1e-9)


def in_order(candidates: Sequence[Candidate], process_s: float) -> list[Candidate]:
    """Those that are expected to gain most per minute of the trial first; what was asked for without a prediction keeps
    its place behind what is predicted to gain. process_s: what one process takes."""
    return sorted(candidates, key=lambda one: -saved_per_minute(one, process_s))


def seconds(fixes: int, rounds: int, process_s: float) -> float:
    """How long this many fixes take: a process without fix before each round, one at the end, and the combination."""
    processes = rounds * (fixes + 1) + 1 + (rounds * PROCESSES_TOGETHER if fixes > 1 else 0)
    return processes * process_s


def fitting(costs: Sequence[float], process_s: float, room_s: float, rounds: int = FEWEST_ROUNDS) -> int:
    """How many of these fixes, the first ones, can be decided in the time that is left. costs: what a process with
    each takes; the combination of several counts, too."""
    count, total = 0, 0.0
    for cost in costs:
        total += cost
        more = rounds * PROCESSES_TOGETHER * process_s if count else 0.0
        if rounds * (total + process_s) + more > room_s:
            break
        count += 1
    return count


def process_seconds(start_s: float, step_s: float, settle: int, steps: int) -> float:
    """What one process takes from its start to its end."""
    return start_s + step_s * (settle + steps)

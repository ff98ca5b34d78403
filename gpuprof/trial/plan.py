"""The order in which fixes are tried, the expected time for each, and which of them fit into the remaining time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.trial.fixes import FixToTry
from gpuprof.units import Assumed, Processes, Rounds

FEWEST_ROUNDS: Assumed[Rounds] = 2
"""Fewest rounds that can decide anything."""
MOST_ROUNDS: Assumed[Rounds] = 8
"""Most rounds planned for one fix, though more may follow."""
UNKNOWN_ROUNDS: Assumed[Rounds] = 3
"""Rounds planned for a fix without a prediction."""
PROCESSES_TOGETHER: Assumed[Processes] = 2
"""Processes in a round that tries several fixes together: one with them, one without."""


def rounds_to_decide(gain: float | None) -> int:
    """Rounds after which a gain is likely confirmed on a machine whose processes differ as much as usual: then the gap
    between the groups counts as clear (`decision`)."""
    if gain is None:
        return UNKNOWN_ROUNDS
    if gain <= 1:
        return MOST_ROUNDS
    return min(max(FEWEST_ROUNDS, 1 + math.ceil(noise_calibrated.PROCESS.value / math.log(gain))), MOST_ROUNDS)


def saved_per_minute(candidate: FixToTry, process_s: float) -> float:
    """Expected saving, as a share of the training's time, per minute that deciding it takes."""
    gain = 1 / (1 - candidate.saves) if 0 < candidate.saves < 1 else None
    minutes = rounds_to_decide(gain) * (process_s + candidate.once_s) / 60
    return candidate.saves / max(minutes, 1e-9)


def in_order(candidates: Sequence[FixToTry], process_s: float) -> list[FixToTry]:
    """Sorted by expected gain per minute of the trial; requested fixes without a prediction come after those predicted
    to gain, in their given order. process_s: duration of one process."""
    return sorted(candidates, key=lambda one: -saved_per_minute(one, process_s))


def seconds(fixes: int, rounds: int, process_s: float) -> float:
    """Time for this many fixes: an unchanged process before each round, one at the end, and the combination."""
    processes = rounds * (fixes + 1) + 1 + (rounds * PROCESSES_TOGETHER if fixes > 1 else 0)
    return processes * process_s


def fitting(costs: Sequence[float], process_s: float, room_s: float, rounds: int = FEWEST_ROUNDS) -> int:
    """How many of the first fixes can be decided in the remaining time, including their combination. costs: duration of
    a process with each."""
    count, total = 0, 0.0
    for cost in costs:
        total += cost
        more = rounds * PROCESSES_TOGETHER * process_s if count else 0.0
        if rounds * (total + process_s) + more > room_s:
            break
        count += 1
    return count


def process_seconds(start_s: float, step_s: float, settle: int, steps: int) -> float:
    """Duration of one process from start to end."""
    return start_s + step_s * (settle + steps)

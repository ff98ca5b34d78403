"""How long the free-running stretch must be for its mean step to be known well enough.

A loader with four workers makes every fourth step wait, a checkpoint every hundredth: neighbouring steps are not
independent, so the variance is taken over blocks of steps. The variance used here is the one that a circular block
bootstrap has in the limit (Politis and Romano 1992): of the mean of n / L blocks of L steps, drawn with replacement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..base.quantiles import t80

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Blocks, Measured, Ratio, Seconds, Share, Steps, WholeNs


PRECISE_MEAN: Assumed[Share] = 0.05
"""Half the width of the 80 % interval of the mean step, as a share of it, at which the stretch may end."""
MOST_TIMED_STEPS: Assumed[Steps] = 200
LONGEST_STRETCH_S: Assumed[Seconds] = 20.0
"""The stretch ends after MOST_TIMED_STEPS steps or LONGEST_STRETCH_S seconds in any case; its interval is then wide."""
GROWTH: Assumed[Ratio] = 1.4
"""The stretch is checked again after this many times the steps: the check costs CPU time."""
FEWEST_BLOCKS: Assumed[Blocks] = 3
"""Fewer blocks say nothing about how blocks differ, so a short stretch uses shorter blocks than requested."""

AFTERMATH_NS: Measured[WholeNs] = 5_000_000_000
"""The first steps after a recording are slower: memory is freed and the trace is read at the same time. That took 3 s
for 130 MB, and made launch-bound steps up to 30 % longer (H200 host, 16 cores)."""


def block_of(workers: int | None) -> int:
    """Steps in a block: two rounds of the loader's workers, which deliver batches in turn; at least 2."""
    return max(2 * (workers or 0), 2)


def half_width(step_ns: Sequence[float], block: int) -> float:
    """Half the 80 % interval of the mean of `step_ns`, in ns; infinite for fewer than FEWEST_BLOCKS steps.

    `block`: steps in a block; shorter blocks are used where there would be fewer than FEWEST_BLOCKS.
    """
    n = len(step_ns)
    if n < FEWEST_BLOCKS:
        return math.inf
    length = max(min(block, n // FEWEST_BLOCKS), 1)
    mean = math.fsum(step_ns) / n
    sums = [0.0]
    for ns in (*step_ns, *step_ns[: length - 1]):
        sums.append(sums[-1] + ns - mean)
    # Mean of every block of `length` steps, the stretch closed to a ring.
    variance = math.fsum(((sums[i + length] - sums[i]) / length) ** 2 for i in range(n)) / n
    blocks = n / length
    freedom = max(blocks - 1, 1.0)
    # Few blocks underestimate how blocks differ: Bessel's correction, and Student's t.
    variance *= blocks / freedom
    return t80(freedom) * math.sqrt(variance / blocks)


class AfterWindows:
    """A free stretch that was too short and continues after the windows: where the training does not say how long it
    is, and with several ranks. Each rank may decide this for itself, since nothing depends on it.
    free_ns: steps of the first part. ahead: batches that the loader's workers prefetched during the pause. begun_ns:
    now, on the monotonic clock.
    """

    def __init__(self, free_ns: Sequence[float], workers: int, ahead: int, begun_ns: int) -> None:
        self._known, self._workers, self._ahead = list(free_ns), workers, ahead
        self._begun_ns, self._steps = begun_ns, 0
        self._due = len(self._known) + more_steps(free_ns, workers)

    def add(self, now_ns: int, ns: float) -> None:
        """A step has ended. It counts if it began after the recording's own costs were over and the prefetched batches
        were used up."""
        self._steps += 1
        if self._steps > self._ahead and now_ns - ns >= self._begun_ns + AFTERMATH_NS:
            self._known.append(ns)

    def wants_more(self) -> bool:
        """Whether the mean needs more steps; checked as rarely as `more_steps` says."""
        if len(self._known) >= self._due:
            self._due = len(self._known) + more_steps(self._known, self._workers)
        return len(self._known) < self._due


def more_steps(step_ns: Sequence[float], workers: int | None) -> int:
    """Further steps that the stretch needs before it is checked again; 0 if it may end."""
    n, total = len(step_ns), math.fsum(step_ns)
    if n >= MOST_TIMED_STEPS or total >= LONGEST_STRETCH_S * 1e9 or not n:
        return 0
    if half_width(step_ns, block_of(workers)) <= PRECISE_MEAN * total / n:
        return 0
    left = min(MOST_TIMED_STEPS - n, math.ceil((LONGEST_STRETCH_S * 1e9 - total) / (total / n)))
    return max(min(math.ceil((GROWTH - 1) * n), left), 1)

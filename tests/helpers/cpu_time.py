"""The cost of some work relative to other work of the same process: a slow or busy machine slows down both."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_s(work: Callable[[], object], tries: int = 3) -> float:
    """The least CPU time that a call took in this process, all its threads included, in seconds."""
    taken_s = []
    for _ in range(tries):
        begun = time.process_time()
        work()
        taken_s.append(time.process_time() - begun)
    return min(taken_s)


def times_as_long(work: Callable[[], object], other: Callable[[], object], tries: int = 3) -> float:
    """CPU time of a call of `work` / that of a call of `other`, each the best of some tries."""
    return least_s(work, tries) / least_s(other, tries)

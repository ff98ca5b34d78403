"""Independent computations at the same time: numpy and compiled functions let go of the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

MOST = 4
LARGE = 50_000
"""Computations on columns from this length on are worth a thread; on short ones threads would only wait for each
other."""

Item = TypeVar("Item")
Other = TypeVar("Other")
Found = TypeVar("Found")


_this = threading.local()


def processors() -> int:
    """Threads to compute with: one per processor available to us, or fewer if numba is configured to take fewer."""
    wanted = os.environ.get("NUMBA_NUM_THREADS", "")
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        found = os.cpu_count() or 1
    return min(found, MOST, int(wanted) if wanted.isdecimal() and int(wanted) else MOST)


def each(function: Callable[[Item], Found], items: Iterable[Item], rows: int) -> list[Found]:
    """The function of every item, in order; by several threads where it computes on columns of many `rows`, unless this
    is one of such threads. The first exception, in order, is raised."""
    count = 1 if rows < LARGE or getattr(_this, "is_one_of_several", False) else processors()
    if count < 2:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count, initializer=lambda: setattr(_this, "is_one_of_several", True)) as pool:
        return list(pool.map(function, items))


def both(one: Callable[[], Found], other: Callable[[], Other], rows: int) -> tuple[Found, Other]:
    """What two functions return, computed as `each` does."""
    found: list = each(lambda function: function(), (one, other), rows)
    return found[0], found[1]

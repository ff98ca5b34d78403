"""Runs work in another thread while this one continues."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")


def processors() -> int:
    """Number of CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class Background:
    """One more thread, if there is a CPU for it; it ends with this object. It helps for work that releases the GIL,
    such as machine code."""

    def __init__(self, *, worth_it: bool = True) -> None:
        self._pool = ThreadPoolExecutor(1) if worth_it and processors() > 1 else None

    def begin(self, work: Callable[Given, Found], *arguments: Given.args, **named: Given.kwargs) -> Callable[[], Found]:
        """Begins some work; returns a function that waits for its result, or raises its exception. Without another
        thread the work is done at once."""
        if self._pool is not None:
            return self._pool.submit(work, *arguments, **named).result
        found = work(*arguments, **named)
        return lambda: found

"""A bar on stderr while a large file is read: only on a terminal, only if it takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuprof.units import Assumed, Seconds

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Assumed[Seconds] = 1.0
"""Seconds before the bar appears."""


@contextmanager
def reading(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a function to call with (bytes read, bytes in all), or None if a bar would not be visible."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _LateBar(f"reading {name}")
    try:
        yield bar.update
    finally:
        bar.close()


class _LateBar:
    """A progress bar that appears after PATIENCE_S and is removed at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begun_s = time.monotonic()
        self._bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._bar is None and time.monotonic() - self._begun_s < PATIENCE_S:
            return
        bar = self._bar = self._bar or _open(self._title)
        bar.update(bar.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _open(title: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from gpuprof.report.names import shown

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(shown(title, 50), total=None)
    bar.start()
    return bar

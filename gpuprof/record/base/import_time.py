"""The moment at which the libraries that a training needs had been imported."""

from __future__ import annotations

import time


class Imported:
    """Remembers when the last of the watched libraries had been imported."""

    def __init__(self) -> None:
        self.unix_ns: int | None = None

    def mark(self) -> None:
        self.unix_ns = time.time_ns()


imported = Imported()
"""This process's Imported."""

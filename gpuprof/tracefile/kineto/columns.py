"""Growing columns: rows are added in pieces, and end up as one array per field."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.tracefile.kineto import layout
from gpuprof.units import Assumed, Ratio, Share

LEAST_READ: Assumed[Share] = 0.02
"""Share of a file that must have been read to estimate the number of its rows."""
ROOM_BEYOND: Assumed[Ratio] = 1.1
"""Rows that are reserved, per expected row."""


class Growing:
    """The columns of one table."""

    def __init__(self, dtype: np.dtype) -> None:
        self.count = 0
        self._columns = {name: np.empty(0, dtype[name]) for name in dtype.names or ()}

    def add(
        self,
        rows: NDArray | dict[str, NDArray],
        count: int,
        numbers: NDArray[np.int32] | None = None,
        done: float = 0.0,
    ) -> None:
        """Appends `count` rows, an array of the table's dtype or columns.

        `numbers`: text number in the rows → text number here, with NO_TEXT at its end.
        `done`: share of the file that has been read, to estimate the final number of rows.
        """
        end = self.count + count
        self._reserve(end, done)
        for name, column in self._columns.items():
            target = column[self.count : end]
            if numbers is not None and name in layout.TEXT_FIELDS:
                np.take(numbers, rows[name], out=target, mode="wrap")
            else:
                target[:] = rows[name]
        self.count = end

    def renumber(self, numbers: NDArray[np.int32]) -> None:
        """Gives every text another number: `numbers[old]`, with NO_TEXT at its end."""
        for name, column in self._columns.items():
            if name in layout.TEXT_FIELDS:
                column[: self.count] = numbers[column[: self.count]]

    def rows_with(self, texts: NDArray[np.bool_]) -> int:
        """Number of rows in which one of the flagged texts occurs; the last flag is for NO_TEXT."""
        hits = np.zeros(self.count, bool)
        for name, column in self._columns.items():
            if name in layout.TEXT_FIELDS:
                hits |= texts[column[: self.count]]
        return int(hits.sum())

    def take(self) -> dict[str, NDArray]:
        """Returns the columns and gives them up."""
        columns, self._columns = self._columns, {}
        return {name: column[: self.count] for name, column in columns.items()}

    def _reserve(self, count: int, done: float) -> None:
        columns = self._columns
        held = len(next(iter(columns.values())))
        if count <= held:
            return
        # Unwritten memory costs nothing, a copy does, so reserve generously.
        expected = int(count / done * ROOM_BEYOND) if done > LEAST_READ else 0
        room = max(min(expected, 32 * count), 2 * held, count)
        for name, column in columns.items():
            columns[name] = np.empty(room, column.dtype)
            columns[name][: self.count] = column[: self.count]


class KinetoTables(dict[str, Growing]):
    """The columns of all tables."""

    def __init__(self) -> None:
        super().__init__({name: Growing(dtype) for name, dtype in layout.ROWS.items()})

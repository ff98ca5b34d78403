"""The page's table of texts. Names from the recording are given as ids and are escaped, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuprof.report.names import shown, shown_kernel
from gpuprof.tracefile.distinct import distinct, numbered
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Cells, Convention

WIDTH: Convention[Cells] = 120
"""Characters of a shortened name: more than any box that it is drawn in has room for."""
WHOLE_WIDTH: Convention[Cells] = 2_000
"""Characters of a whole name. Longer ones, which no one reads, keep both ends."""


class Texts:
    """Texts with their indices; `full` has the whole form of the shortened ones."""

    def __init__(self, strings: list[str]) -> None:
        self.texts: list[str] = []
        self.full: dict[int, str] = {}
        self._strings = strings
        self._known: dict[str, int] = {}
        self._names: dict[tuple[str, int], int] = {}

    def add(self, text: str) -> int:
        """Index of a printable text."""
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def name(self, string_id: int) -> int:
        """Index of one name of an op, call, range or frame."""
        return self._name(string_id, "name", _short_name)

    def names(self, ids: I32 | I64, missing: str = "–") -> I64:
        """Indices of names of ops, calls, ranges and frames by their string ids; ids below 0 are `missing`."""
        return self._all(ids, "name", _short_name, missing)

    def kernels(self, ids: I32 | I64) -> I64:
        """Indices of the readable names of kernels, by their string ids."""
        return self._all(ids, "kernel", lambda text: shown_kernel(text, WIDTH), "–")

    def _all(self, ids: I32 | I64, kind: str, short: Callable[[str], str], missing: str) -> I64:
        known = [self.add(missing) if i < 0 else self._name(i, kind, short) for i in distinct(ids).tolist()]
        return np.array(known, np.int64)[numbered(ids)]

    def _name(self, string_id: int, kind: str, short: Callable[[str], str]) -> int:
        """A separate text for each name: two kernels may share the readable part."""
        key = (kind, string_id)
        if key not in self._names:
            text = self._strings[string_id]
            name, whole = short(text), shown(text, WHOLE_WIDTH)
            if name == whole:
                self._names[key] = self.add(name)
            else:
                self._names[key] = len(self.texts)
                self.full[len(self.texts)] = whole
                self.texts.append(name)
        return self._names[key]


def _short_name(text: str) -> str:
    return shown(text, WIDTH)


def coded(*columns: np.ndarray) -> tuple[I64, I64]:
    """(the first row of each distinct combination of values, the number of its combination for each row)."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        number = numbered(column)
        # Numbered again each time, so that the codes stay below the square of the rows.
        code = numbered(code * (int(number.max(initial=0)) + 1) + number)
    first = np.empty(int(code.max(initial=-1)) + 1, np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)  # of equal ones the first row is written last
    return first, code

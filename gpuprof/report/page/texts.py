"""The page's table of texts. Names from the recording come in as ids and leave escaped, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuprof.report.names import shown, shown_kernel
from gpuprof.tracefile.trace import I32, I64

WIDTH = 120
"""Cells of a name where it is short: more than any box that it is drawn in."""
WHOLE = 2_000
"""Cells of a name where it is whole. Longer ones, which no one reads, keep both ends."""


class Texts:
    """Texts with their indices; `full` has the whole form of those that are shortened."""

    def __init__(self, strings: list[str]) -> None:
        self.texts: list[str] = []
        self.full: dict[int, str] = {}
        self._strings = strings
        self._known: dict[str, int] = {}
        self._names: dict[tuple[str, int], int] = {}

    def add(self, text: str) -> int:
        """Index of a text that is fit to be shown."""
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def names(self, ids: I32 | I64, missing: str = "–") -> I64:
        """Indices of names of ops, calls, ranges, frames by their string ids; below 0 they are `missing`."""
        return self._all(ids, "name", lambda text: shown(text, WIDTH), missing)

    def kernels(self, ids: I32 | I64) -> I64:
        """Indices of the readable names of kernels, by their string ids."""
        return self._all(ids, "kernel", lambda text: shown_kernel(text, WIDTH), "–")

    def _all(self, ids: I32 | I64, kind: str, short: Callable[[str], str], missing: str) -> I64:
        distinct, inverse = np.unique(ids, return_inverse=True)
        known = [self.add(missing) if i < 0 else self._name(int(i), kind, short) for i in distinct.tolist()]
        return np.array(known, np.int64)[inverse] if len(distinct) else np.empty(0, np.int64)

    def _name(self, string_id: int, kind: str, short: Callable[[str], str]) -> int:
        """A text of its own for each name: two kernels may share the readable part."""
        key = (kind, string_id)
        if key not in self._names:
            text = self._strings[string_id]
            name, whole = short(text), shown(text, WHOLE)
            if name == whole:
                self._names[key] = self.add(name)
            else:
                self._names[key] = len(self.texts)
                self.full[len(self.texts)] = whole
                self.texts.append(name)
        return self._names[key]


def coded(*columns: np.ndarray) -> tuple[I64, I64]:
    """(a row of each distinct combination of values, per row the number of its combination)."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, inverse = np.unique(column, return_inverse=True)
        # Numbered again each time, so that the matmul stays below the square of the rows.
        code = np.unique(code * max(len(distinct), 1) + inverse, return_inverse=True)[1]
    _, first = np.unique(code, return_index=True)
    return first.astype(np.int64), code.astype(np.int64)

"""An index from ids to the rows of a column, so that a look-up visits only matching rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from types import FunctionType

import numpy as np
from numpy.typing import NDArray

from gpuprof.units import Assumed, Values

FIRST_LONG_ID: Assumed[Values] = 2**15
"""Ids below this fit two bytes, which numpy radix-sorts in a sixth of the time."""


class RowsById:
    """ids: the id of each row, -1 for none; count: upper bound of the ids."""

    def __init__(self, ids: NDArray[np.int32], count: int) -> None:
        self._rows = np.argsort(ids.astype(np.int16) if count <= FIRST_LONG_ID else ids, kind="stable")
        each = np.bincount(ids + 1, minlength=count + 1)
        self._first = np.cumsum(each)  # without an id: those before the first
        self.present: list[int] = np.flatnonzero(each[1:]).tolist()
        """The ids that some row has, ascending."""

    def mask(self, ids: Iterable[int]) -> NDArray[np.bool_]:
        """The rows that have one of the ids."""
        found = np.zeros(len(self._rows), bool)
        for one in ids:
            found[self._rows[self._first[one] : self._first[one + 1]]] = True
        return found


def same_again(test: Callable[[str], object]) -> Hashable | None:
    """What is equal for two tests only if they give the same results: the code of a function that refers to nothing but
    its argument and its module's names, or a method of an object that does not change. None for other tests."""
    if isinstance(test, FunctionType):
        return None if test.__closure__ or test.__defaults__ else test.__code__
    return test if isinstance(getattr(test, "__self__", None), (re.Pattern, frozenset, tuple, str)) else None

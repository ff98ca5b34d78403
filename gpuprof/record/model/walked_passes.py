"""What a walk over autograd's graph finds at the start of each backward pass, walked in one step and marked in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Code, Published

_NUMBERED: Published[Code] = 1 << 62
"""Nodes that accumulate gradients report a sequence number above this, which is not a real one."""


class WalkedPasses:
    """Marks forward ops by sequence number when a backward pass begins. Subclasses say which ops and name the marks."""

    def __init__(self, open_range: Callable[[str], Callable[[], None] | None]) -> None:
        self._open = open_range
        self._known: list[list[Any]] | None = None
        """For each backward pass of a step, what was found: sequence numbers relative to that of its loss."""
        self._pass = 0
        self._walked: list[list[Any]] = []
        self._is_whole = False
        """Whether the current step was seen from its beginning."""

    def new_step(self) -> None:
        """The result of the first complete step is used for all later ones."""
        if self._known is None and self._walked and self._is_whole:
            self._known = self._walked
        self._walked, self._pass, self._is_whole = [], 0, True

    def backward(self, root: Any) -> None:
        """A backward pass begins, of this tensor."""
        node = getattr(root, "grad_fn", None)
        number = number_of(node)
        if number is None:
            return
        if self._known is None:
            self._walked.append(self._found(node, number))
            return
        at, self._pass = self._pass, self._pass + 1
        for name in self._names(self._known[at], number) if at < len(self._known) else ():
            close = self._open(name)
            if close is not None:
                close()

    def _found(self, node: Any, number: int) -> list[Any]:
        """What lies below a node, relative to its sequence number."""
        raise NotImplementedError

    def _names(self, found: list[Any], number: int) -> list[str]:
        """Names of the ranges that mark it."""
        raise NotImplementedError


def number_of(node: Any) -> int | None:
    """Sequence number of the op that made a node, as in torch's profiler; None if it has none."""
    try:
        number = int(node._sequence_nr())
    except (AttributeError, RuntimeError, TypeError):
        return None
    return number if 0 <= number < _NUMBERED else None

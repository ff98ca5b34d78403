"""Finds the ends of training steps from the optimizers' events."""

from __future__ import annotations

from collections import Counter, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Code, Convention, Events


REMEMBERED_EVENTS: Assumed[Events] = 64
"""Optimizer events that are remembered: enough for a critic that trains dozens of times per generator."""


INSIDE: Convention[Code] = 0
"""Key for all optimizers that step inside a backward pass (perhaps one per parameter): together they count as one that
steps at its end."""
UNKNOWN_GAP: Assumed[Events] = 8
"""Events within which an optimizer that has ended once is expected again."""


class StepFinder:
    """A step ends with the optimizer that steps least often; among equals, with the last in order.
    So two optimizers in sequence make one step, and a GAN's generator closes the step of its critics. An optimizer
    that has not stepped for twice its longest gap belongs to a training that is over.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=REMEMBERED_EVENTS)
        self._order: list[int] = []
        self._count = 0
        self._last: dict[int, int] = {}
        self._gap: dict[int, int] = {}
        """Most events between two ends of an optimizer."""
        self._since_backward: set[int] | None = None
        """Optimizers that ended since the last backward pass; None until one was seen."""
        self.needs_backwards = False
        """Whether an optimizer ended twice after one backward pass, so that only backward passes separate its steps."""

    def without_backwards(self) -> None:
        """No backward pass will be reported any more."""
        self._since_backward = None

    def backward(self) -> None:
        """A backward pass has begun: gradients are new for every optimizer."""
        self._since_backward = set()

    @property
    def only(self) -> int | None:
        """The only optimizer, if each of its steps ends a training step without regard to backward passes; else
        None."""
        return self._order[0] if len(self._order) == 1 and self._since_backward is None else None

    @property
    def single(self) -> int | None:
        """The only optimizer; None if there are several, or if none has ended since the last backward pass began."""
        if len(self._order) != 1 or (self._since_backward is not None and self._order[0] not in self._since_backward):
            return None
        return self._order[0]

    def ended_before(self, times: int, backward: bool = False) -> None:
        """The only optimizer has ended `times` times without a report. backward: a backward pass has begun since."""
        self._count += times
        if backward and self._since_backward is not None:
            self._since_backward = set()

    def ended(self, optimizer: int) -> bool:
        """Whether the step of this optimizer, which has just ended, ends a training step.

        An optimizer whose class calls `super().step()` ends twice in a row; only the first time counts.
        """
        if self._since_backward is not None:
            if optimizer in self._since_backward:
                self.needs_backwards = True
                return False
            self._since_backward.add(optimizer)
        if len(self._order) == 1 and self._order[0] == optimizer:
            self._count += 1
            return True
        self._note(optimizer)
        return optimizer == self._closer()

    def _note(self, optimizer: int) -> None:
        if len(self._order) == 1:  # a single optimizer is only counted
            only = self._order[0]
            if self._count > self._last[only]:
                self._gap.setdefault(only, 1)
            self._last[only] = self._count
            self._recent.extend([only] * min(self._count, REMEMBERED_EVENTS // 2))
        self._count += 1
        if optimizer in self._last:
            self._gap[optimizer] = max(self._gap.get(optimizer, 0), self._count - self._last[optimizer])
        self._last[optimizer] = self._count
        self._recent.append(optimizer)
        seen = dict.fromkeys([*self._order, optimizer])
        self._order = [who for who in seen if self._is_alive(who)]
        if len(self._order) == 1:
            self._recent.clear()

    def _is_alive(self, who: int) -> bool:
        return self._count - self._last[who] <= 2 * self._gap.get(who, UNKNOWN_GAP)

    def _closer(self) -> int:
        counts = Counter(who for who in self._recent if who in self._order)
        if len(self._order) == 1:
            return self._order[0]
        # If the remembered events begin in the middle of a cycle, equals differ by one.
        whole_cycles = sum(counts.values()) > 2 * len(counts)
        most = min(counts.values()) + (1 if whole_cycles else 0)
        return [who for who in self._order if counts[who] <= most][-1]

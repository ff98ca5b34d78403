"""Marks the parts of steps that are sampled, with few hooks: each only notes the time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident
from time import perf_counter_ns
from typing import Any

from ..base.optimizer_hooks import Counter
from ..stacks.sampling import Sampling


class BareMarks:
    """The marks of consecutive steps. sampling: gets them. thread: the one that trains."""

    def __init__(self, sampling: Sampling, thread: int) -> None:
        self._sampling, self._thread = sampling, thread
        self.noted: list[tuple[str, int]] = []
        """What begins or ends, and when, on the monotonic clock; in order."""

    def passing(self, backward: Any, _: Any) -> Callable[..., Any]:
        """What stands in for `torch.autograd.backward`."""
        noted, now, identity, thread, inside = self.noted, perf_counter_ns, get_ident, self._thread, Lock()

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if identity() != thread or not inside.acquire(blocking=False):
                return backward(*args, **kwargs)
            noted.append(("backward", now()))
            try:
                return backward(*args, **kwargs)
            finally:
                noted.append(("backward_end", now()))
                inside.release()

        return wrapper

    def before_optimizer(self) -> Counter:
        """The hook before the step of an optimizer."""
        noted, now = self.noted, perf_counter_ns

        def before(_: Any, __: Any, ___: Any) -> None:
            noted.append(("optimizer", now()))

        return before

    def hand_over(self, ends_ns: list[int]) -> None:
        """Hands what was noted to the sampling. ends_ns: of the steps since the last time."""
        noted = self.noted[:]
        del self.noted[: len(noted)]
        self._sampling.noted(ends_ns, noted)

"""Which forward passes of a generate loop a window records: a long loop is thousands of launches a token, all alike.

The first ones hold the prompt, the middle and the last ones show how the cost of a token grows with the cache.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Calls, WholeNs


MOST_PASSES: Assumed[Calls] = 8
FEWEST_PASSES: Assumed[Calls] = 2
"""Forward passes that are recorded of each part of a long loop: its beginning, middle and end."""
PART_NS: Assumed[WholeNs] = 100_000_000
"""A part of the loop is recorded for about this long. Passes that take long launch many kernels, and the profiler needs
time for each when it stops: parts of 160 ms, with the rest of an iteration, took it 2.8 s (GRPO, 12 layers, H200)."""
SHORT_LOOP_PASSES: Assumed[Calls] = 6 * MOST_PASSES
"""A loop of fewer forward passes is recorded whole."""


class DecodeWindow:
    """Says after each forward pass of a generate loop whether the next one is to be recorded.

    expected: forward passes of a loop, by those before; 0 where none was seen.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.part = MOST_PASSES
        """Forward passes of each part."""
        self._forward_ns = 0
        """Of one of them, in the fastest loop."""

    def seen(self, forwards: int, ns: int = 0) -> None:
        """A loop is over, after this number of forward passes and this time; 0 where it was not measured. A loop
        that was slower than those before was held up: it launches no more than they did."""
        self.expected = forwards
        if forwards and ns:
            forward_ns = max(ns // forwards, 1)
            self._forward_ns = min(self._forward_ns or forward_ns, forward_ns)
            self.part = min(max(PART_NS // self._forward_ns, FEWEST_PASSES), MOST_PASSES)

    def records(self, number: int) -> bool:
        """Whether the forward pass of this number, from 1, is recorded."""
        if self.expected <= SHORT_LOOP_PASSES or number <= self.part:
            return True
        middle = self.expected // 2
        in_middle = middle - self.part // 2 <= number < middle + self.part - self.part // 2
        # A loop may be a little longer than the last one was.
        return in_middle or abs(number - self.expected) < self.part

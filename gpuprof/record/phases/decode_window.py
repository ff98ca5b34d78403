"""Which forward passes of a generate loop a window records: a long loop has thousands of launches per token, all alike.
The first passes process the prompt; the middle and last ones show how the cost of a token grows with the cache.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Calls, WholeNs


MOST_PASSES: Assumed[Calls] = 8
FEWEST_PASSES: Assumed[Calls] = 2
"""Forward passes that are recorded of each part of a long loop: its beginning, middle and end."""
LOOP_PART_NS: Assumed[WholeNs] = 100_000_000
"""Each part of the loop is recorded for about this long. Slow passes launch many kernels, and the profiler needs time
for each when it stops: 2.8 s for parts of 160 ms and the rest of an iteration (GRPO, 12 layers, H200)."""
SHORT_LOOP_PASSES: Assumed[Calls] = 6 * MOST_PASSES
"""A loop of fewer forward passes is recorded whole."""


class DecodeWindow:
    """Decides after each forward pass of a generate loop whether the next one is recorded.

    expected: number of forward passes in a loop, from earlier loops; 0 before the first.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.part = MOST_PASSES
        """Forward passes of each part."""
        self._forward_ns = 0
        """Time of one forward pass in the fastest loop."""

    def seen(self, forwards: int, ns: int = 0) -> None:
        """A loop is over, after this number of forward passes and `ns` (0: not measured). The fastest loop counts: a
        slower one launches no more kernels, it was only delayed."""
        self.expected = forwards
        if forwards and ns:
            forward_ns = max(ns // forwards, 1)
            self._forward_ns = min(self._forward_ns or forward_ns, forward_ns)
            self.part = min(max(LOOP_PART_NS // self._forward_ns, FEWEST_PASSES), MOST_PASSES)

    def records(self, number: int) -> bool:
        """Whether the forward pass of this number, from 1, is recorded."""
        if self.expected <= SHORT_LOOP_PASSES or number <= self.part:
            return True
        middle = self.expected // 2
        in_middle = middle - self.part // 2 <= number < middle + self.part - self.part // 2
        # A loop may be a little longer than the last one was.
        return in_middle or abs(number - self.expected) < self.part

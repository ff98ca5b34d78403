"""Which forward passes of a generate loop a window records: a long loop is thousands of launches a token, all alike.

The first ones hold the prompt, the middle and the last ones show how the cost of a token grows with the cache.
"""

from __future__ import annotations

FIRST, MIDDLE, LAST = 8, 8, 8
"""Forward passes that are recorded of each part of a long loop."""
SHORT = 2 * (FIRST + MIDDLE + LAST)
"""A loop of fewer forward passes is recorded whole."""


class DecodeWindow:
    """Says after each forward pass of a generate loop whether the next one is to be recorded.

    expected: forward passes of a loop, by those before; 0 where none was seen.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected

    def seen(self, forwards: int) -> None:
        """A loop is over, after this number of forward passes."""
        self.expected = forwards

    def records(self, number: int) -> bool:
        """Whether the forward pass of this number, from 1, is recorded."""
        if self.expected <= SHORT or number <= FIRST:
            return True
        middle = self.expected // 2
        in_middle = middle - MIDDLE // 2 <= number < middle + MIDDLE // 2
        # A loop may be a little longer than the last one was.
        return in_middle or abs(number - self.expected) < LAST

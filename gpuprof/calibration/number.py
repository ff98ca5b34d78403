"""What is known of one calibrated number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["fitted", "measured", "published", "assumed"]
"""fitted: computed from recordings that are kept, by a command; measured: read off recordings or timings, of which not
all are kept; published: from a paper or a datasheet; assumed: a guess, so its interval is wide."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that code uses, with how sure it is.

    `low` and `high`: its 80 % interval, the ends that predictions are computed with where they have a best and a worst
    case. `unit` is empty for a plain ratio.
    """

    value: float
    low: float
    high: float
    unit: str
    source: Source
    what: str
    """What it is, and what it was read off."""
    recordings: tuple[str, ...] = ()
    """Paths from the root of a checkout; below `shared/` recordings that do not come with it. Empty: none was kept."""
    command: str = ""
    """Computes it again, or prints what it was chosen from; empty if it was measured by hand."""

    @property
    def whole(self) -> int:
        """The value as an integer, for counts and for comparison with integer times."""
        return int(self.value)

    @property
    def rising(self) -> tuple[float, float, float]:
        """(low, value, high), for numbers of which the lowest is the best case."""
        return self.low, self.value, self.high

    @property
    def falling(self) -> tuple[float, float, float]:
        """(high, value, low), for numbers of which the highest is the best case."""
        return self.high, self.value, self.low

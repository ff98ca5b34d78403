"""When a window may close before its planned end: its steps have many ops, and the training would stall for long.

The profiler needs time for every event when it stops. The number of events in a step can be estimated beforehand:
autograd numbers the ops that it records, and each comes with its kernels, their launches and its backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import fmean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Measured, Share, Steps, WholeNs


NODE_NS: Measured[WholeNs] = 200_000
"""Time that stopping the profiler takes per op that autograd records: 8 to 17 events of about 15 µs (medians of 37
recorded programs, H200 machines, torch 2.11)."""
STALL_NS: Assumed[WholeNs] = 2_000_000_000
"""The training should not stall for longer than this, or than one of its steps."""
MEAN_DIFFERS: Assumed[Share] = 0.1
"""Relative difference up to which the means of the recorded and the baseline steps count as equal."""
FEWEST_TIMED: Assumed[Steps] = 2
"""With fewer steps in the baseline, the usual step is not known."""


class EnoughSteps:
    """Compares the steps of a window with those of the baseline, by their tokens and by their ops."""

    def __init__(self) -> None:
        self._timed: list[tuple[int | None, int]] = []
        self._recorded: list[tuple[int | None, int]] = []

    def timed(self, tokens: int | None, ops: int) -> None:
        """A step of the baseline has ended. tokens: None where not known; ops: number of ops that autograd recorded."""
        self._timed.append((tokens, ops))

    def recorded(self, tokens: int | None, ops: int) -> None:
        """A step of the window has ended."""
        self._recorded.append((tokens, ops))

    def are_enough(self, planned: int, step_ns: float) -> bool:
        """Whether the window may close early: recording all planned steps would stall the training for too long, no
        further step fits, and the recorded steps represent the baseline's. step_ns: duration of a usual step."""
        if len(self._timed) < FEWEST_TIMED or not self._recorded:
            return False
        most = int(max(STALL_NS, step_ns) // max(NODE_NS * fmean(ops for _, ops in self._timed), 1))
        return most < planned and len(self._recorded) >= most and self._represent()

    def _represent(self) -> bool:
        of_tokens = _alike(_known(self._recorded), _known(self._timed))
        return of_tokens and _alike([ops for _, ops in self._recorded], [ops for _, ops in self._timed])


def _known(steps: Sequence[tuple[int | None, int]]) -> list[int]:
    return [tokens for tokens, _ in steps if tokens is not None]


def _alike(some: Sequence[int], usual: Sequence[int]) -> bool:
    """Whether the means agree; true if either is unknown."""
    if not some or not usual:
        return not some and not usual
    return abs(fmean(some) - fmean(usual)) <= MEAN_DIFFERS * fmean(usual)


def ops_counter() -> Callable[[], int]:
    """torch's function that returns how many ops autograd has recorded in the calling thread so far; one that returns 0
    if this torch has none."""
    read = getattr(sys.modules.get("torch.autograd"), "_get_sequence_nr", None)
    return int if read is None else read

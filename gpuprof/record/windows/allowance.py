"""How much GPU memory a recording may hold while the training runs: pure arithmetic, no GPU is queried."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes


RESERVE_BYTES: Assumed[Bytes] = 2 << 30
"""Always left to the training: for steps longer than those before, for fragmentation, and for the arguments of calls,
which the recording also keeps and whose size is not known beforehand."""
GROWTH_BYTES: Assumed[Bytes] = 16 << 20
"""Growth within a window that is normal for any program: many keep each step's loss."""


def to_keep(headroom: int) -> int:
    """Bytes that the recorded calls may keep. headroom: bytes left at the training's memory peak."""
    return max(0, headroom - max((headroom + 1) // 2, RESERVE_BYTES))


def has_outgrown(grown: int, steps: int, headroom: int) -> bool:
    """Whether memory has grown so much in `steps` recorded steps that one more might not fit."""
    return grown + grown // max(steps, 1) > max(headroom // 2, GROWTH_BYTES)


class Allowance:
    """Which calls of a step may be recorded, if each keeps what it allocates until the window closes.

    The first calls of a step are recorded; from the first one without room on, all are left out. Each step gets the
    same share, so that similar steps are recorded alike. A call is assumed to need as much as the largest so far, so
    no more than `budget` is kept, except by a call that turns out larger than all before it.
    """

    def __init__(self) -> None:
        self.calls = self.left_out = 0
        """Calls of the recorded steps."""
        self.kept = 0
        """Bytes that the recorded calls keep, at most."""
        self._largest: int | None = None
        self._budget = self._share = self._kept_before = 0
        self._is_full = False

    def grant(self, budget: int, steps: int) -> None:
        """Recording of `steps` steps begins; they may keep `budget` bytes in all."""
        self._budget, self._share = budget, budget // max(steps, 1)

    def measured(self, size: int, keeps: bool) -> None:
        """What a call allocated. keeps: whether it was recorded."""
        size = max(0, size)  # negative if the program reset its memory statistics meanwhile
        self._largest = max(size, self._largest or 0)
        if keeps:
            self.kept += size

    def admit(self) -> bool:
        """A call of a recorded step begins; returns whether it may be recorded. One of unknown size may not."""
        self.calls += 1
        if not self._is_full:
            self._is_full = self._largest is None or not self._budget or not self._has_room(self._largest)
        self.left_out += self._is_full
        return not self._is_full

    def _has_room(self, size: int) -> bool:
        return self.kept - self._kept_before + size <= self._share and self.kept + size <= self._budget

    def end_step(self, grown: int = 0) -> None:
        """A step has ended. grown: by how much memory has grown since the first recorded one began."""
        self.kept = max(self.kept, grown)
        self._kept_before, self._is_full = self.kept, False

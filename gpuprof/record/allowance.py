"""How much GPU memory a recording may keep from the training: arithmetic, without a GPU in it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes


RESERVE_BYTES: Assumed[Bytes] = 2 << 30
"""Left to the training whatever is to be recorded: for a step longer than those before, for gaps between tensors, and
for what calls are given, which is kept, too, and is not known beforehand."""
GROWTH_BYTES: Assumed[Bytes] = 16 << 20
"""By so much in a window the memory of any program may grow; many keep each step's loss."""


def to_keep(headroom: int) -> int:
    """Bytes that calls may be recorded for. headroom: what was left when the training's need was greatest."""
    return max(0, headroom - max((headroom + 1) // 2, RESERVE_BYTES))


def has_outgrown(grown: int, steps: int, headroom: int) -> bool:
    """Whether memory has grown so far in `steps` recorded steps that another such step could be one too many."""
    return grown + grown // max(steps, 1) > max(headroom // 2, GROWTH_BYTES)


class Allowance:
    """Which calls of a step may be recorded, if each keeps what it allocates until the window closes.

    The first calls of a step are recorded, and from the first for which there is no room all are left out; each step
    gets the same share, so that like steps are recorded alike. A call may take as much as the largest so far. Thus no
    more than `budget` is kept, but for the one call that first turns out larger than all before it.
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
        """From now on `steps` steps are recorded."""
        self._budget, self._share = budget, budget // max(steps, 1)

    def measured(self, size: int, keeps: bool) -> None:
        """What a call allocated. keeps: whether it was recorded."""
        size = max(0, size)  # less than nothing where the program set its account to zero meanwhile
        self._largest = max(size, self._largest or 0)
        if keeps:
            self.kept += size

    def admit(self) -> bool:
        """A call of a recorded step begins; whether it may be recorded. One of unknown size may not."""
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

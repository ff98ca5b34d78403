"""The ranks of one training together, as their joint replay shows them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.ranks.digest_data import Doing
from gpuprof.ranks.summary import Job, RankSummary
from gpuprof.tracefile.traces_in_folder import is_digest


@dataclass(frozen=True, slots=True)
class RankExcess:
    """Work of a rank per step beyond the median of the other ranks."""

    doing: Doing
    ns: float


@dataclass(frozen=True, slots=True)
class Gang:
    """All ranks together."""

    ranks: tuple[RankSummary, ...]
    shown: int
    """Index of the rank whose diagnosis is shown: the one that the others wait for."""
    slow: int | None
    """The same index if that rank is a straggler, slower than every other by a set factor; None if there is none."""
    step_ns: float | None
    low_ns: float | None
    high_ns: float | None
    """`low_ns` and `high_ns`: ends of the step's 80 % interval."""
    next_pace_ns: float | None
    """The second slowest pace."""
    without_ns: float | None
    """The step of all ranks if the straggler did its work as fast as the others."""
    profiled: tuple[float, float]
    """How the ratio of the straggler's step to a usual rank's would change if recording had cost more, and less, than
    estimated: two factors; 1 without a straggler."""
    excess: tuple[RankExcess, ...]
    """Excess work of the straggler, most first."""
    excess_bound: str | None
    """Resource with most of the excess."""
    missing: tuple[int, ...]
    """Ranks of the training without a recording."""
    notes: tuple[tuple[str, str], ...]
    """(id, sentence) about recordings that could not be used, or only in part."""
    job: Job
    """The joint replay of all."""

    @property
    def slow_is_elsewhere(self) -> bool:
        """Whether all ranks that the others wait for were recorded on other nodes."""
        slow: tuple[int, ...] = ()
        if self.slow is not None:
            slow = (self.ranks[self.slow].rank,)
        elif self.job.culprit is not None and self.job.verdict in ("slow_host", "slow_group", "stage_imbalance"):
            slow = tuple(self.job.culprit.ranks)
        return bool(slow) and all(is_digest(one.path) for one in self.ranks if one.rank in slow)

    @property
    def known_step_ns(self) -> float | None:
        """The step of all ranks, if their joint replay reproduces the recorded step."""
        return None if self.job.even_ns is None else self.step_ns

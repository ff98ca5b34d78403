"""What a finding proposes: a change of the graph, said in words that a person can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuprof.diagnosis.diagnosis import Evidence
from gpuprof.diagnosis.fix import Fix
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.replay.bound import Bound
    from gpuprof.replay.loader_queue import Loader

LEAST_GAIN: Assumed[Ratio] = 1.05
"""A fix that gains less cannot be distinguished from noise: steps of one program differ by as much."""
SURE_GAIN: Assumed[Ratio] = 1.02
"""A fix is sure where it gains this much at the low end of its 80 % interval: nine of ten do."""
CERTAIN_CHANCE: Assumed[Share] = 0.9
"""Likewise, where it also needs something that a recording does not show."""
NEGLIGIBLE_CHANGE: Assumed[Share] = 0.01
"""A step that changes by less stays as it is."""
LEAST_CHANCE: Assumed[Share] = 0.5
"""A fix that is less likely than this to gain that much is not worth trying."""
SEVERE_GAIN: Assumed[Ratio] = 1.3
MARKED_GAIN: Assumed[Ratio] = 1.1
"""Speedups from which a finding is of high and of medium severity."""


@dataclass(frozen=True, slots=True)
class Page:
    """What `gpuprof explain` and docs/findings say about a kind of finding; Markdown."""

    id: str
    title: str
    """Names the problem."""
    means: str
    """What it is and why it costs time."""
    detected: str
    """What in a recording shows it, with the thresholds and their reasons."""
    gain: str
    """How the predicted step comes about."""
    wrong: str
    """When the prediction, or the advice, does not hold."""
    applies: tuple[str, ...] = ("training", "inference")
    """Kinds of work that it is looked for in; work of unknown kind is treated as training."""
    removes: Bound | None = None
    """The verdict that names just this problem: under it, the fix comes before others that may gain no more."""

    def applies_to(self, kind: str) -> bool:
        """Whether a recording of this kind of work can have the problem."""
        return ("training" if kind == "unknown" else kind) in self.applies


@dataclass(frozen=True, slots=True)
class Proposal:
    """One fix for one recording."""

    title: str
    """The fix in a few words: what a list of fixes shows."""
    evidence: tuple[Evidence, ...]
    fix: Fix
    """What to do, for the stack of the recording."""
    change: Change
    """What the fix does to the graph, as expected."""
    best: Change | None = None
    """The same where the fix works as well as it can, and below as badly: eight of ten lie between. None: as
    expected."""
    worst: Change | None = None
    work: float = 1.0
    """How many times the work of a step is done in it: 8 for eight times the batch."""
    same_batch: bool = False
    """Whether that further work comes without a larger batch: other processes do it, or nothing interrupts it."""
    least_ns: float = 0.0
    """The step cannot be shorter, for a reason outside the graph (workers that prepare batches)."""
    loader: Loader | None = None
    """The workers that prepare batches after the fix; None: as before."""
    lumps: Mapping[str, float] = field(default_factory=dict)
    """Cause of excess (`save`, `logging` …) → factor on what it adds to the mean step."""
    spread: float = 1.0
    """Further factor of uncertainty of the predicted step, both ways: 1.1 means 10 %."""
    changes: str = ""
    """What it changes about the training itself (samples of an optimizer step, rounding); empty: nothing."""
    once_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """What it costs once before it gains (compiling): low, expected, high."""
    excludes: tuple[str, ...] = ()
    """Findings that do the same in another way, or are without object after this one."""
    launches: bool = False
    """Whether it makes launching and kernels quicker and nothing else: it gains no more than what the GPU waits for the
    CPU, and what its kernels get shorter."""
    last: bool = False
    """Whether it rewrites whatever the other fixes leave (a compiler), and so is made after them: what they replace
    it cannot make faster too."""
    needs: str = ""
    """What has to be done first, or has to hold, where the fix is a chain; empty: nothing."""
    odds: float = 1.0
    """Probability that it works at all, where what it needs cannot be seen in the recording; else it gains nothing."""
    parts: tuple[str, ...] = ()
    """The links of a chain in a few words each, in the order in which they are made; empty of a single fix."""
    key: str = ""
    """Tells several proposals of one finding apart."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A usual remedy where its finding has nothing to advise: its name, and why, from what the recording shows."""

    title: str
    why: Callable[[Analysis], str | None]
    """None: there is nothing to say about this recording."""


Finder = Callable[["Analysis"], Iterable[Proposal]]
"""`find(case)` of a file in findings/: the fixes it has for a recording, none where the problem is not there."""

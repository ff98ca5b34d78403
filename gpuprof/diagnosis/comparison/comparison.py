"""The Comparison of two recordings, A before and B after; `json` writes it as `gpuprof.comparison/1`.

Times are whole nanoseconds a step, counts are means a step. A difference is B's less A's: negative where B is faster.
None means "cannot be known from these recordings", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpuprof.bounds import OneOf, Share, Signed
from gpuprof.diagnosis.detect.pair.side import Known, Side
from gpuprof.diagnosis.diagnosis import Diagnosis, Range
from gpuprof.timeline.unit import STEP, Unit, common_unit
from gpuprof.tracefile.source import Severity

SCHEMA = "gpuprof.comparison/1"

Outcome = Literal["faster", "slower", "same"]
"""Of B, seen from A."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much more B does in a step; of several measures the one that both know best."""

    measure: Literal["tokens", "samples", "product FLOPs"]
    a: float
    b: float
    ratio: float
    equal: bool
    a_ns_per: float | None
    """Time per token or sample; None for FLOPs. Where the work differs, over all steps that were timed without a
    profiler, if both have such; else the step's."""
    b_ns_per: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """The step of A, of B, and the outcome."""

    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    ratio: float
    """B's step over A's."""
    speedup: float
    """How many times as fast B trains, work counted: A's time per unit of work over B's."""
    outcome: Outcome
    alike: bool
    """Whether both steps are known in the same way."""
    sure: bool = True
    """False: the outcome is likely, but the test does not rule out that it is scatter."""


@dataclass(frozen=True, slots=True)
class Significance:
    """The rank-sum test over steps of both."""

    of: Literal["unprofiled", "recorded"]
    a_steps: int
    b_steps: int
    a_median_ns: int
    b_median_ns: int
    p: Share | None
    """Two-sided; None where a side has no step."""
    significant: bool | None
    """None where so few steps could not show any difference."""
    exact: bool
    correlation: Signed[float] | None
    """The larger of both sides' correlations of a step with the next."""
    p_each: Share | None = None
    """p of the time for each token or sample; None where the work is the same or not known."""


@dataclass(frozen=True, slots=True)
class PhasePart:
    """The part of a term that is in one phase."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class Term:
    """One bar of the waterfall. The terms' `a_ns` sum to A's step, `b_ns` to B's, and so their differences do."""

    kind: Literal["busy", "idle"]
    name: str
    """Of busy time the category of the kernels, of idle time its cause."""
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    phases: tuple[PhasePart, ...]


@dataclass(frozen=True, slots=True)
class PhaseDifference:
    """A phase of the step on the device; sums to the step like the terms."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    a_busy_ns: int
    b_busy_ns: int


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """One kernel, launched from one op, in both; times as recorded, summed over streams."""

    name: str
    category: str
    op: str | None
    module: str | None
    """The class of the nn.Module around it, where both recordings tell."""
    change: Literal["new", "gone", "count", "duration", "both", "none"]
    a_ns: int
    b_ns: int
    a_count: float
    b_count: float
    difference_ns: Signed[int]
    """The next two sum to it."""
    count_ns: Signed[int]
    """By running more or less often."""
    duration_ns: Signed[int]
    """By taking more or less time each."""


@dataclass(frozen=True, slots=True)
class KernelDifferences:
    """All GPU work; `rows` and `rest_ns` sum to `difference_ns`."""

    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    count_ns: Signed[int]
    duration_ns: Signed[int]
    new: int
    """Kernels that only B runs; below those that only A runs, and those that both do."""
    gone: int
    both: int
    rows: tuple[KernelDifference, ...]
    """Largest difference first."""
    rest_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class OpDifference:
    """A host op of one phase in both; its own time, without the ops in it, as recorded."""

    name: str
    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    a_count: float
    b_count: float
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one side's diagnosis predicted of a fix, next to what the other measured."""

    finding: str
    title: str
    by: Literal["a", "b"]
    """Whose diagnosis: A's of what B did, or B's of what A had done already."""
    step_ns: Range
    measured_ns: int
    known: Known
    inside: bool
    """Whether the measured step is within the predicted 80 % interval."""
    error: Signed[float]
    """(expected − measured) ÷ measured."""
    scale: float = 1.0
    """Work that was done over the work that the diagnosis predicted for; step_ns is for the work that was done."""
    tried_ns: int | None = None
    """The step that gpuprof try measured with this fix alone, for the same work; None: not tried."""


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """The part of a difference that is in one phase."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    difference_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A change of what the program does, and the part of the difference that is where it acts."""

    id: str
    """Of a finding, where there is one of that kind; else `work`, `launches`, `host`, `kernels`, `gpu` or `memory`."""
    title: str
    text: str
    """The quantities that moved."""
    difference_ns: Signed[int]
    share: Signed[float] | None
    """Of the whole difference; None where that is nothing."""
    phases: tuple[PhaseShare, ...]
    """Sum to `difference_ns`."""
    found: Literal["a", "b", "both", "none"]
    """Whose diagnosis has the finding."""
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True, slots=True)
class RankDifference:
    """One rank of both runs, the profiler's cost removed; None where a recording does not say."""

    rank: int
    a_pace_ns: int | None
    """The step that it would take if no other rank were ever late."""
    b_pace_ns: int | None
    a_waiting_ns: int | None
    """Of a step, for other ranks."""
    b_waiting_ns: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader of a comparison must know."""

    id: str
    severity: Severity
    message: str


@dataclass(frozen=True)
class Comparison:
    """Everything gpuprof says about two recordings."""

    a: Side
    b: Side
    step: Step
    work: Work | None
    significance: Significance | None
    summary: str
    mechanisms: tuple[Mechanism, ...]
    """Largest part of the difference first."""
    unexplained_ns: Signed[int]
    """What no mechanism accounts for; with the mechanisms' it sums to the difference."""
    terms: tuple[Term, ...]
    phases: tuple[PhaseDifference, ...]
    kernels: KernelDifferences
    ops: tuple[OpDifference, ...]
    ranks: tuple[RankDifference, ...] | None = None
    """Of runs of several ranks; all else is of one rank of each."""
    notes: tuple[Note, ...] = ()
    diagnoses: tuple[Diagnosis, Diagnosis] | None = field(default=None, repr=False, compare=False)
    """Of A and of B; not part of the JSON."""

    @property
    def unit(self) -> Unit:
        """What to call a step of both."""
        return common_unit(self.diagnoses[0].unit, self.diagnoses[1].unit) if self.diagnoses else STEP

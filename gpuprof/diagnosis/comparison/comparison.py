"""The Comparison of two recordings, A before and B after; `json` writes it as `gpuprof.comparison/1`.

Times are whole nanoseconds per step, counts are means per step. A difference is B − A: negative if B is faster.
None means "cannot be known from these recordings", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpuprof import documents
from gpuprof.bounds import OneOf, Share, Signed
from gpuprof.diagnosis.detect.pair.side import Known, Side
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.timeline.unit import STEP, Unit, common_unit
from gpuprof.tracefile.source import Severity
from gpuprof.value_range import Range

SCHEMA = "gpuprof.comparison/1"
DOCUMENT = documents.Kind(SCHEMA, left_out=("diagnoses",))

Outcome = Literal["faster", "slower", "same", "other"]
"""How B compares with A."""


@dataclass(frozen=True, slots=True)
class ComparedWork:
    """How much more work B does in a step, by the best measure that both have."""

    measure: Literal["tokens", "samples", "product FLOPs"]
    a: float
    b: float
    ratio: float
    equal: bool
    a_ns_per: float | None
    """Time per token or sample; None for FLOPs. If the work differs and both were timed without a profiler, it is over
    all timed steps; otherwise it is that of the compared step."""
    b_ns_per: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """The step of A, of B, and the outcome."""

    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    ratio: float
    """B's step / A's step."""
    speedup: float
    """How many times as fast B trains for equal work: A's time per unit of work / B's."""
    outcome: Outcome
    """Of B for the same work; "other": the programs are different, so that neither is the other with a change."""
    alike: bool
    """Whether both step times were obtained in the same way."""
    sure: bool = True
    """False: the outcome is likely, but the test does not rule out scatter."""


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
    """None if there are too few steps to show any difference."""
    exact: bool
    correlation: Signed[float] | None
    """Correlation of a step with the next, the larger of both sides."""
    p_each: Share | None = None
    """p for the time per token or sample; None if the work is the same or unknown."""


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
    """The kernels' category for busy time, the cause for idle time."""
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    phases: tuple[PhasePart, ...]


@dataclass(frozen=True, slots=True)
class PhaseDifference:
    """A phase of the step on the device; the phases sum to the step, as the terms do."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    a_busy_ns: int
    b_busy_ns: int


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """One kernel launched from one op, in both recordings; times as recorded, summed over streams."""

    name: str
    category: str
    op: str | None
    module: str | None
    """The class of the nn.Module around it; None unless both recordings have modules."""
    change: Literal["new", "gone", "count", "duration", "both", "none"]
    a_ns: int
    b_ns: int
    a_count: float
    b_count: float
    difference_ns: Signed[int]
    """Equals `count_ns` + `duration_ns`."""
    count_ns: Signed[int]
    """Part due to a different number of runs."""
    duration_ns: Signed[int]
    """Part due to a different time per run."""


@dataclass(frozen=True, slots=True)
class KernelDifferences:
    """All GPU work; `rows` and `rest_ns` sum to `difference_ns`."""

    a_ns: int
    b_ns: int
    difference_ns: Signed[int]
    count_ns: Signed[int]
    duration_ns: Signed[int]
    new: int
    """Kernels that only B runs; `gone`: only A; `both`: both."""
    gone: int
    both: int
    rows: tuple[KernelDifference, ...]
    """Largest difference first."""
    rest_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class OpDifference:
    """A CPU op of one phase in both; its self time, without nested ops, as recorded."""

    name: str
    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    a_count: float
    b_count: float
    a_ns: int
    b_ns: int
    difference_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """What one side's diagnosis predicted for a fix, next to what the other side measured."""

    finding: str
    title: str
    by: Literal["a", "b"]
    """Side whose diagnosis made the prediction: A's about what B did, or B's about what A had already done."""
    step_ns: Range
    measured_ns: int
    known: Known
    inside: bool
    """Whether the measured step is within the predicted 80 % interval."""
    error: Signed[float]
    """(expected − measured) ÷ measured."""
    scale: float = 1.0
    """Work done / work that was predicted for; step_ns is scaled to the work done."""
    tried_ns: int | None = None
    """The step that gpuprof try measured with only this fix, for the same work; None: not tried."""


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """The part of a difference that is in one phase."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    difference_ns: Signed[int]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A change of what the program does, with its part of the difference."""

    id: str
    """Id of a finding if there is one of that kind; else `work`, `launches`, `host`, `kernels`, `gpu` or `memory`."""
    title: str
    text: str
    """The quantities that changed."""
    difference_ns: Signed[int]
    share: Signed[float] | None
    """Share of the whole difference; None if that is 0."""
    phases: tuple[PhaseShare, ...]
    """They sum to `difference_ns`."""
    found: Literal["a", "b", "both", "none"]
    """Side whose diagnosis has the finding."""
    predictions: tuple[PredictionCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class RankDifference:
    """One rank in both runs, the profiler's cost removed; None if a recording does not say."""

    rank: int
    a_pace_ns: int | None
    """The step if no other rank were ever late."""
    b_pace_ns: int | None
    a_waiting_ns: int | None
    """Waiting for other ranks per step."""
    b_waiting_ns: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader of the comparison must know."""

    id: str
    severity: Severity
    message: str


@dataclass(frozen=True)
class Comparison:
    """Everything gpuprof says about two recordings."""

    a: Side
    b: Side
    step: Step
    work: ComparedWork | None
    significance: Significance | None
    summary: str
    mechanisms: tuple[Mechanism, ...]
    """Largest part of the difference first."""
    unexplained_ns: Signed[int]
    """Part of the difference that no mechanism explains; mechanisms and this sum to the difference."""
    terms: tuple[Term, ...]
    phases: tuple[PhaseDifference, ...]
    kernels: KernelDifferences
    ops: tuple[OpDifference, ...]
    ranks: tuple[RankDifference, ...] | None = None
    """For runs with several ranks; everything else compares one rank of each."""
    notes: tuple[Note, ...] = ()
    diagnoses: tuple[Diagnosis, Diagnosis] | None = field(default=None, repr=False, compare=False)
    """The diagnoses of A and B; not part of the JSON."""

    @property
    def unit(self) -> Unit:
        """What a step of both is called."""
        return common_unit(self.diagnoses[0].unit, self.diagnoses[1].unit) if self.diagnoses else STEP

"""The Diagnosis: what gpuprof has found, one frozen dataclass per concept; `json` writes it as `gpuprof.diagnosis/1`.

All times are whole nanoseconds. `start_ns` counts from the window's start, except in `AnalysedWindow` itself, whose
ends are on the trace's own clock. None means "cannot be known from this trace", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gpuprof.bounds import Above0, OneOf, Percent, Positive, Share, Signed, Words
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.result.above_reach import AboveReach
from gpuprof.diagnosis.result.counters_model import Counters
from gpuprof.diagnosis.result.cpu_step import CpuStep
from gpuprof.diagnosis.result.finding_model import Combined, Considered, Finding
from gpuprof.diagnosis.result.host_model import Host
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.sentences import Sentences
from gpuprof.errors import GpuprofError
from gpuprof.replay.bound import Bound, Resource
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.source import Issue, Source
from gpuprof.units import Assumed

if TYPE_CHECKING:
    from gpuprof.diagnosis.mean_step.timed_steps import TimedSteps
    from gpuprof.diagnosis.result.iteration_model import Iteration
    from gpuprof.diagnosis.result.tables import Tables
    from gpuprof.memory.memory_report import MemoryReport
    from gpuprof.ranks.summary import Job, RankSummary
    from gpuprof.replay.sensitivity import Sensitivities
    from gpuprof.tracefile.run_folder.run import RunFolder

SCHEMA = "gpuprof.diagnosis/1"

Status = Literal["ok", "degraded", "unusable"]
Family = Literal["compute", "memory", "host", "other"]


@dataclass(frozen=True, slots=True)
class Quality:
    status: Status
    issues: tuple[Issue, ...]


@dataclass(frozen=True, slots=True)
class GpuName:
    device: Signed[int]
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Environment:
    gpus: tuple[GpuName, ...]
    versions: dict[Words, Words | int | float]
    rank: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that were analysed. `recorded_ns` is their median, `unprofiled_ns` a step measured without a
    profiler."""

    source: Annotated[str, OneOf(("profiler_step", "user_range", "optimizer", "periodicity", "none"))]
    """How the steps were found: profiler_step | user_range | optimizer | periodicity | none (the whole recording)."""
    name: str | None
    """Name of the range whose repetitions are the steps; None if the steps were found in another way."""
    count: Positive[int]
    each_ns: tuple[int, ...]
    recorded_ns: int
    """Median step as recorded."""
    unprofiled_ns: int | None
    """Measured without a profiler."""
    estimated_ns: int | None
    """Without the profiler's cost: median step, or the mean if more than half of the steps launch nothing."""
    inflation: Above0 | None
    """recorded_ns / unprofiled_ns; if no unprofiled step was measured, the replayed step including the cost of
    recording / estimated_ns."""
    cut: int
    """Steps left out because the recording began or ended inside them."""


@dataclass(frozen=True, slots=True)
class AnalysedWindow:
    """The span of CPU time that was analysed, on the trace's own clock."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CauseTime:
    """Idle time of one cause. `count`: gaps that it contributes to."""

    cause: Annotated[str, OneOf(of="gpuprof.diagnosis.idle.gaps:IDLE_CAUSES")]
    ns: int
    count: int


@dataclass(frozen=True, slots=True)
class Device:
    """How one device spent the window; compute, communication, copy and idle sum to `window_ns` exactly."""

    device: Signed[int]
    window_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    busy_ns: int
    carry_in_ns: int
    """Busy time inside the window from work that was launched before it."""
    carry_out_ns: int
    """Busy time after the window from work that was launched inside it."""
    cpu_bound_fraction: Share | None
    streams: int
    idle_by_cause: tuple[CauseTime, ...] = ()
    """Sums to `idle_ns`."""


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """One step of a device with the profiler's cost removed."""

    device: Signed[int]
    step_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    cpu_bound_fraction: Share | None
    idle_by_cause: tuple[CauseTime, ...] = ()
    """Sums to `idle_ns`."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A maximal interval in which nothing ran on a device, and the work it waited for."""

    start_ns: Signed[int]
    ns: int
    device: Signed[int]
    cause: Annotated[str, OneOf(of="gpuprof.diagnosis.idle.gaps:CAUSES")]
    op: str | None
    module: str | None
    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    frame: str | None
    """`file(line): function` that the CPU is in, in torch's format: from the recording (`--stacks`), or else from most
    samples of unprofiled steps at the same place of the step; None if neither is known."""


@dataclass(frozen=True, slots=True)
class PhaseGaps:
    """Idle time before the work of one phase, the op that most of it waits for, and the class of that op's module."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    ns: int
    count: int
    op: str | None
    module: str | None


@dataclass(frozen=True, slots=True)
class Gaps:
    count: int
    total_ns: int
    by_cause: tuple[CauseTime, ...]
    by_phase: tuple[PhaseGaps, ...]
    largest: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class CategoryTime:
    category: Annotated[str, OneOf(of="gpuprof.timeline.categories:CATEGORIES")]
    ns: int
    count: int
    bound: Annotated[str, OneOf(of="gpuprof.replay.bound:PARTS")] | None


@dataclass(frozen=True, slots=True)
class NamedTime:
    name: str
    ns: int
    count: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    name: str
    category: Annotated[str, OneOf(of="gpuprof.timeline.categories:CATEGORIES")]
    ns: int
    count: int
    op: str | None
    flops: int | None
    bytes: int | None
    bound: Annotated[str, OneOf(of="gpuprof.replay.bound:PARTS")] | None
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class Kernels:
    """GPU work (kernels, copies, sets) that belongs to the window; times are sums over streams, not a union."""

    count: int
    launches_per_step: float
    total_ns: int
    unattributed_ns: int
    """Part of `total_ns` for which no op was found."""
    median_ns: int | None
    by_category: tuple[CategoryTime, ...]
    by_op: tuple[NamedTime, ...]
    by_phase: tuple[NamedTime, ...]
    top: tuple[KernelTime, ...]
    after_ns: int = 0
    """Part of `total_ns` that ran after the window's end: work that was launched inside the window and queued."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Phases partition the window: `ns` sums to it, and `busy_ns` + `idle_ns` = `ns` (busy: any device at work)."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    ns: int
    busy_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class RangeTime:
    """User ranges of one name (an index at its end becomes #) in the window, and the GPU work launched in them."""

    name: str
    count: Positive[int]
    ns: int
    """CPU wall time in the window, summed."""
    gpu_ns: int
    """Time of that GPU work, summed over streams; `busy_ns` is the time in which any of it ran."""
    busy_ns: int
    launches: int
    """Kernels and copies."""


@dataclass(frozen=True, slots=True)
class PhaseActivity:
    """GPU counters while the work of a phase ran, in percent of the device's peak."""

    phase: Annotated[str, OneOf(of="gpuprof.timeline.phases:PHASES")]
    busy_ns: int
    sm_percent: Percent | None
    tensor_percent: Percent | None
    dram_percent: Percent | None


@dataclass(frozen=True, slots=True)
class Profiler:
    """Time that the profiler itself may have added to a step."""

    events_per_step: int
    """Ops, calls and frames recorded on the threads that drive the device."""
    low_ns: int
    typical_ns: int
    high_ns: int
    """What recording these events may have added to a step: low, typical, high. Never more than the step's idle
    time."""


@dataclass(frozen=True, slots=True)
class UsefulWork:
    """Which of a step's model FLOPs are useful, as far as the recording shows it."""

    share: float | None
    """Useful FLOPs / model FLOPs that ran, 0 to 1; None if the model's FLOPs are unknown. FLOPs of which nothing is
    known count as useful."""
    unknown: dict[str, str]
    """What is not known (`tokens`, `attention_scores`, `labels`) → why."""


@dataclass(frozen=True, slots=True)
class RooflineSummary:
    """The window's kernel time by what limits it; the five times sum to `kernels.total_ns`."""

    ceilings: dict[Words, Any]
    """The GPU and where its ceilings come from (`gpu`, `source`), `flops` per dtype (FLOP/s), `memory_bytes_per_s`."""
    mfu: float | None
    """Of useful FLOPs alone."""
    hfu: float | None
    """Of all FLOPs that ran."""
    compute_ns: int
    memory_ns: int
    latency_ns: int
    inefficient_ns: int
    unmodelled_ns: int
    useful: UsefulWork | None = None
    """None where the step was not replayed: then MFU counts all model FLOPs."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How well the unchanged graph reproduces the recording."""

    error: float | None
    """Error of the replayed window's length, as a share."""
    shown: bool
    """Whether it is good enough for predictions."""
    reason: str = ""
    """Why nothing is predicted; empty if something is."""
    steps: Positive[int] | None = None
    """Number of replayed steps: of a long recording a representative selection."""


@dataclass(frozen=True, slots=True)
class StartUpPart:
    """Time of one kind of start-up: loading code, creating the context, first allocations, compiling."""

    name: Words
    ns: int


@dataclass(frozen=True, slots=True)
class StartUpTime:
    """CPU wall time of the window in which the program starts, which happens once. The parts sum to `ns`."""

    ns: int
    share: Share
    """Of the window."""
    parts: tuple[StartUpPart, ...]


UNCLEAR_CONFIDENCE: Assumed[Share] = 0.5
"""Confidence below which the headline says that the verdict is unclear, and names the other candidate, if any."""
VERDICT_CAUSES = (
    "launch", "sync", "python", "allocator", "compile", "planning", "loading", "locking", "cpu_compute", "slow_call",
    "straggler", "transfer", "peer_wait", "save", "logging", "garbage_collection",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    bound: Bound | None
    family: Family | None
    cause: Annotated[str, OneOf(VERDICT_CAUSES)] | None
    confidence: Share | None
    """How sure the bound is, 0 to 1; None if nothing could be replayed."""
    sentences: Sentences
    """The verdict in sentences, the most important first."""
    second: Bound | None = None
    """What it is if not `bound`: the runner-up, where confidence is low; None where no other would gain anything."""
    doubts: tuple[str, ...] = ()
    """What lowers the confidence, the weightiest first, each with what would settle it."""
    turns: int = 0
    """Number of the process's GPUs that work one after the other; 0 if they work at the same time."""
    slow_calls: Annotated[str, OneOf(("planning", "loading", "compile", "allocator", "locking"))] | None = None
    """What single long CPU calls spend most of their time on: planning | loading | compile | allocator | locking; None
    if unknown, or if there are none."""
    computes: str | None = None
    """The phase in which the CPU does most of its own computing on tensors in host memory; None if the GPU hardly
    waits for that."""
    usual: Resource | None = None
    """The resource that limits the usual step, where `bound` names what makes some steps longer and that is another
    one."""

    @property
    def summary(self) -> str:
        """All sentences as one text."""
        return " ".join(self.sentences)

    @property
    def unclear(self) -> bool:
        """Whether it is too unsure to be said without a word about that."""
        return self.confidence is not None and self.confidence < UNCLEAR_CONFIDENCE


@dataclass(frozen=True)
class Diagnosis:
    """Everything gpuprof says about one recording."""

    source: Source
    quality: Quality
    environment: Environment
    steps: Steps | None
    budget: Budget | None
    """The mean step, which is what training time consists of: mean_ns = usual_ns + sum of excess[].mean_ns +
    residual_ns, exactly."""
    window: AnalysedWindow | None
    devices: tuple[Device, ...]
    devices_estimated: tuple[DeviceEstimate, ...] | None
    gaps: Gaps | None
    kernels: Kernels | None
    phases: tuple[PhaseTime, ...]
    profiler: Profiler | None
    verdict: Verdict
    run: Run | None = None
    """The run; None unless `gpuprof trace` made the recording."""
    roofline: RooflineSummary | None = None
    workload: Workload | None = None
    """Whether the recording is of training or inference, and what one of its steps is called."""
    start_up: StartUpTime | None = None
    """CPU wall time of the window in which the program starts, which happens once."""
    replay: Replay = Replay(None, False)
    sensitivities: Sensitivities | None = None
    findings: tuple[Finding, ...] = ()
    combined: Combined | None = None
    """Several of the findings' fixes together; None if no two gain more than one alone."""
    considered: tuple[Considered, ...] = ()
    """Usual remedies that are ruled out, and the facts that rule them out."""
    worth_trying: tuple[Finding, ...] = ()
    """Fixes that gain 2 % with a probability of 0.5 or more and are expected to gain 5 %, in the order of
    `findings`."""
    above_reach: AboveReach | None = None
    """What the usual step should cost, and what it costs beyond that: usual_ns = reach_ns + the sum of the items' ns +
    residual_ns, exactly. None if nothing was replayed, or no fixes were looked for."""
    cpu_step: CpuStep | None = None
    """Parts of the mean step of a run without a GPU; the three times sum to it. Null for any other run."""
    host: Host | None = None
    """Python functions of unprofiled steps, sampled by another process; None if nothing was sampled."""
    counters: Counters | None = None
    """Counters of Nsight Compute next to gpuprof's limits for the same kernels; None if no table was given (--ncu)."""
    ranges: tuple[RangeTime, ...] = ()
    """Most CPU wall time first; at most one hundred names."""
    activity: tuple[PhaseActivity, ...] | None = None
    """None if no counters were recorded."""
    ranks: tuple[RankSummary, ...] | None = None
    """One summary per rank, if several were diagnosed together."""
    memory: MemoryReport | None = None
    """Who held the GPU's memory, as gpuprof.memory/1 without its schema and series; None without a snapshot or memory
    events."""
    iteration: Iteration | None = None
    """The mean iteration of a training on its own generations (GRPO, RLOO, online DPO), which generates once and trains
    for some optimizer steps. phases sum to mean_ns exactly. None for any other training."""
    job: Job | None = None
    """The joint replay of all ranks."""
    _analysis: Any = field(default=None, repr=False, compare=False)
    """The `gpuprof.diagnosis.analysis.Analysis` that it was made from: columns, the run's steps, the replayed graph.
    Not part of the JSON; None if the diagnosis was loaded from JSON."""

    @property
    def step_ns(self) -> int | None:
        """The mean step, or else the best known step time, ns; None without steps."""
        steps = self.steps
        if steps is None:
            return None
        if self.budget is not None and self.budget.source == "free":
            return self.budget.mean_ns
        known = (steps.unprofiled_ns, self.budget and self.budget.mean_ns, steps.estimated_ns, steps.recorded_ns)
        return next(ns for ns in known if ns is not None)

    @property
    def unit(self) -> Unit:
        """What a step is called: step, iteration, request or token."""
        return self.workload.unit if self.workload else STEP

    @property
    def tables(self) -> Tables:
        """The columns behind the summaries as pandas DataFrames: `.gaps()`, `.kernels()`, `.ops()`, `.steps()`,
        `.findings()`, `.projections(to)`.

        Raises GpuprofError if the trace held nothing to analyse.
        """
        if self._analysis is None or self._analysis.recorded is None:
            raise GpuprofError(f"{self.source.path}: {self._no_columns}")
        return replace(self._analysis.tables, diagnosis=self)

    @property
    def _no_columns(self) -> str:
        """Why there are no tables."""
        if self._analysis is None:
            return "this diagnosis was loaded from JSON, which holds no events; diagnose the recording for that"
        return "nothing was recorded that could be shown as a table"

    @property
    def folder(self) -> RunFolder | None:
        """The run that was diagnosed: every step's time and memory, telemetry. None for a trace without a run, and if
        the diagnosis was loaded from JSON."""
        return None if self._analysis is None else self._analysis.folder

    @property
    def timed(self) -> TimedSteps | None:
        """The free-running steps that the budget describes, split by what each waited for. None if none were timed, or
        if the diagnosis was loaded from JSON."""
        return None if self._analysis is None else self._analysis.timed

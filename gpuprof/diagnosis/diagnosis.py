"""The Diagnosis: what gpuprof has found, one frozen dataclass per concept; `json` writes it as `gpuprof.diagnosis/1`.

All times are whole nanoseconds. `start_ns` counts from the window's start, except in `Window` itself, whose ends
are on the trace's own clock. None means "cannot be known from this trace", never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from gpuprof.diagnosis.above_reach import AboveReach
from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.counters_model import Counters
from gpuprof.diagnosis.cpu_step import CpuStep
from gpuprof.diagnosis.fix import FixLine, Patch, Setting
from gpuprof.diagnosis.host_model import Host
from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.sentences import Sentences
from gpuprof.diagnosis.value_range import Range
from gpuprof.errors import GpuprofError
from gpuprof.replay.bound import Bound
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.source import Issue, Source

if TYPE_CHECKING:
    from gpuprof.diagnosis.iteration_model import Iteration
    from gpuprof.diagnosis.tables import Tables
    from gpuprof.diagnosis.timed_steps import TimedSteps
    from gpuprof.memory.memory_report import MemoryReport
    from gpuprof.ranks.summary import Job, RankSummary
    from gpuprof.replay.sensitivity import Sensitivities
    from gpuprof.tracefile.run import RunFolder

SCHEMA = "gpuprof.diagnosis/1"

Status = Literal["ok", "degraded", "unusable"]
Family = Literal["compute", "memory", "host", "other"]


@dataclass(frozen=True, slots=True)
class Quality:
    status: Status
    issues: tuple[Issue, ...]


@dataclass(frozen=True, slots=True)
class GpuName:
    device: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Environment:
    gpus: tuple[GpuName, ...]
    versions: dict[str, str | int | float]
    rank: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that were analysed. `recorded_ns` is their median; `unprofiled_ns` a measured step without a profiler."""

    source: str
    """How the steps were found: profiler_step | user_range | optimizer | periodicity | none (the whole recording)."""
    name: str | None
    """The range whose repetitions are the steps, where there is one."""
    count: int
    each_ns: tuple[int, ...]
    recorded_ns: int
    unprofiled_ns: int | None
    estimated_ns: int | None
    """Without the profiler's cost: the median step, or the mean where more than half of the steps launch nothing."""
    inflation: float | None
    """The recorded step over the unprofiled one; where that is estimated, the replayed step with the cost of recording
    over the one without it; None where that is a mean."""
    cut: int
    """Steps left out because the recording cut them."""


@dataclass(frozen=True, slots=True)
class Window:
    """The span of host time that was analysed, on the trace's own clock."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CauseTime:
    """Idle time of one cause. `count`: gaps that it has a part in."""

    cause: str
    ns: int
    count: int


@dataclass(frozen=True, slots=True)
class Device:
    """How one device spent the window; compute, communication, copy and idle sum to `window_ns` exactly."""

    device: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    busy_ns: int
    carry_in_ns: int
    """Busy time inside the window with work that was launched before it."""
    carry_out_ns: int
    """Busy time after the window with work that was launched inside it."""
    cpu_bound_fraction: float | None
    streams: int
    idle_by_cause: tuple[CauseTime, ...] = ()
    """Sums to `idle_ns`."""


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """One step of a device with the profiler's cost removed."""

    device: int
    step_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    cpu_bound_fraction: float | None
    idle_by_cause: tuple[CauseTime, ...] = ()
    """Sums to `idle_ns`."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A maximal interval in which nothing ran on a device, and the work it waited for."""

    start_ns: int
    ns: int
    device: int
    cause: str
    op: str | None
    module: str | None
    phase: str
    frame: str | None
    """`file(line): function` that the CPU is in, as torch writes it: as recorded (`--stacks`), else where most samples
    of unprofiled steps are at that place of the step; None where neither is known."""


@dataclass(frozen=True, slots=True)
class PhaseGaps:
    """Idle time before the work of one phase; the op that most of it waits for, and the class of module that is in."""

    phase: str
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
    category: str
    ns: int
    count: int
    bound: str | None


@dataclass(frozen=True, slots=True)
class NamedTime:
    name: str
    ns: int
    count: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    name: str
    category: str
    ns: int
    count: int
    op: str | None
    flops: int | None
    bytes: int | None
    bound: str | None
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class Kernels:
    """GPU work (kernels, copies, sets) that belongs to the window; times are sums over streams, not a union."""

    count: int
    launches_per_step: float
    total_ns: int
    unattributed_ns: int
    """Part of `total_ns` that no op could be found for."""
    median_ns: int | None
    by_category: tuple[CategoryTime, ...]
    by_op: tuple[NamedTime, ...]
    by_phase: tuple[NamedTime, ...]
    top: tuple[KernelTime, ...]
    after_ns: int = 0
    """Part of `total_ns` that ran after the window's end: work that was launched in it and had to queue."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Phases partition the window: `ns` sums to it, and `busy_ns` + `idle_ns` = `ns` (busy: any device at work)."""

    phase: str
    ns: int
    busy_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class RangeTime:
    """User ranges of one name (the index at its end as #) in the window, and the GPU work launched in them."""

    name: str
    count: int
    ns: int
    """Host time in the window, summed."""
    gpu_ns: int
    """Of the work, summed over streams; `busy_ns` the time in which any of it ran."""
    busy_ns: int
    launches: int
    """Kernels and copies."""


@dataclass(frozen=True, slots=True)
class PhaseActivity:
    """What the GPU's counters showed while the work of a phase ran, in percent of what the device can do."""

    phase: str
    busy_ns: int
    sm_percent: float | None
    tensor_percent: float | None
    dram_percent: float | None


@dataclass(frozen=True, slots=True)
class Profiler:
    """What the profiler itself may have added to a step."""

    events_per_step: int
    """Ops, calls and frames recorded on the threads that drive the device."""
    low_ns: int
    typical_ns: int
    high_ns: int
    """What recording them may have added to a step: least, likely, most. Never more than the step's idle time."""


@dataclass(frozen=True, slots=True)
class RooflineSummary:
    """The window's kernel time by what limits it; the five sum to `kernels.total_ns`."""

    ceilings: dict[str, Any]
    """What they are of (`gpu`, `source`), `flops` per dtype (FLOP/s) and `memory_bytes_per_s`."""
    mfu: float | None
    hfu: float | None
    compute_ns: int
    memory_ns: int
    latency_ns: int
    inefficient_ns: int
    unmodelled_ns: int


@dataclass(frozen=True, slots=True)
class Replay:
    """How well the untouched graph replays what was recorded."""

    error: float | None
    """Of the window's length, as a share."""
    shown: bool
    """Whether it is good enough for predictions."""
    reason: str = ""
    """Why there are none."""
    steps: int | None = None
    """Steps that were replayed: of a long recording some that stand for all."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Something in the recording that a person can go and look at."""

    text: str
    start_ns: int | None = None
    ns: int | None = None
    where: str | None = None
    """The track: `GPU 0` or a host thread, and the op, module or frame."""
    part: str | None = None
    """The module and phase, else the op, whose longest place this is: `LlamaMLP, backward`."""
    part_ns: int | None = None
    """What that part of the program has of the statement's time in a step, without the profiler's cost."""
    begins_with: str | None = None
    """The kernel, op or call that begins the stretch, where `text` says that it is not most of it; else None."""
    on_gpu: bool = False
    """Whether the track is a GPU's."""
    lines: tuple[str, ...] = ()
    """Of a statement about the CPU: the lines of the user's code that most of it comes from, `train.py:42 step`, most
    first; empty where neither Python frames nor samples were recorded, or none is the user's."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest of the run: as it is, and with a fix."""

    now: int
    low: int
    expected: int
    high: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What `gpuprof try` measured of a fix on the user's own command."""

    status: str
    """confirmed | slower | no_difference | unconfirmed | not_applied | failed."""
    step_ns: int | None
    speedup_low: float | None
    """Ends of the 80 % interval; None of a single measurement."""
    speedup: float | None
    speedup_high: float | None
    sameness: str | None
    """Whether the training computes the same: bitwise | within_scatter | other_random_numbers | different."""
    reason: str
    """What shows that it took effect, or why it did not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with its evidence and the fix, replayed."""

    id: str
    title: str
    severity: Literal["high", "medium", "low"]
    evidence: tuple[Evidence, ...]
    fix: str
    """What to do, as text."""
    step_ns: Range
    """The mean step with the fix, without a profiler. How well the mean step itself is known counts in its interval."""
    speedup: Range
    """Of the training: more work in a step counts. How well the mean step is known counts only as far as it does not
    scale the step with the fix, too."""
    work: float = 1.0
    """How many times the work of a step is done in it."""
    remaining_ns: Remaining | None = None
    """What it costs once is in it."""
    changes: str | None = None
    """What it changes about the training itself; None: the same samples per optimizer step, the same arithmetic."""
    once_ns: Range | None = None
    """What it costs once before it gains: compiling."""
    measured: Measured | None = None
    """None where it was not tried."""
    probability: float = 1.0
    """That it gains 2 % or more, 0 to 1."""
    settle: str | None = None
    """The command that settles whether it gains, with that of the training where it is known; None: by hand."""
    needs: str | None = None
    """What has to be done first, or has to hold; None: nothing."""
    acts_on: tuple[str, ...] = ()
    """Resources that it takes work off: host | input | transfer | communication | device; most first."""
    parts: tuple[str, ...] = ()
    """The links of a chain of fixes, in their order; empty of a single fix."""
    settings: tuple[Setting, ...] = ()
    """What the fix sets, in the order of its text."""
    patch: Patch | None = None
    """By which `gpuprof try` makes it; None: by hand."""
    fix_lines: tuple[FixLine, ...] = ()
    """The same as `fix`, code and prose apart; empty in diagnoses of older versions."""

    @property
    def shown_lines(self) -> tuple[FixLine, ...]:
        """How the fix is shown: of older versions all of it as code."""
        return self.fix_lines or tuple(FixLine(line, True) for line in self.fix.splitlines())

    def __rich_repr__(self) -> Iterator[tuple[str, object] | tuple[str, object, object]]:
        """What rich prints of it: the fix and what it gains, without the evidence. Times in ms."""
        yield "id", self.id
        yield "title", self.title
        yield "severity", self.severity
        step, gain = self.step_ns, self.speedup
        yield "step_ms", tuple(round(ns / 1e6, 2) for ns in (step.low, step.expected, step.high))
        yield "speedup", tuple(round(times, 2) for times in (gain.low, gain.expected, gain.high))
        yield "work", self.work, 1.0
        yield "fix", self.fix
        yield "changes", self.changes, None


@dataclass(frozen=True, slots=True)
class Considered:
    """A usual remedy that is ruled out, and by what fact."""

    id: str
    """Of the finding that would advise it."""
    title: str
    reason: str
    step_ns: Range | None = None
    """The mean step with it, where that was predicted; its interval as in a finding."""
    speedup: Range | None = None
    """Of the training with it, where that was predicted: why it is not advised."""
    failed: bool = False
    """Whether it was advised, tried, and failed."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Several fixes at once."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    step_ns: Range
    speedup: Range
    work: float = 1.0
    remaining_ns: Remaining | None = None


@dataclass(frozen=True, slots=True)
class StartUpPart:
    """Time of one kind of start-up: loading code, creating the context, first allocations, compiling."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class StartUpTime:
    """Host time of the window in which the program starts, which happens once. The parts sum to `ns`."""

    ns: int
    share: float
    """Of the window."""
    parts: tuple[StartUpPart, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    bound: Bound | None
    family: Family | None
    cause: str | None
    confidence: float | None
    """How sure the bound is, 0 to 1; None where nothing could be replayed."""
    sentences: Sentences
    """What is said of it, the most important first."""
    second: Bound | None = None
    """What it is if not `bound`: the runner-up, where confidence is low."""
    doubts: tuple[str, ...] = ()
    """What lowers the confidence, the weightiest first, each with what would decide it."""
    turns: int = 0
    """GPUs of the process that work one after the other; 0 where they work together, or there is one."""
    slow_calls: str | None = None
    """What single long calls of the CPU do most of their time: planning | loading | compile | allocator | locking; None
    where that is not known, or there are none."""
    computes: str | None = None
    """The phase in which the CPU computes most of the time that it does so itself, on tensors in host memory; None
    where the GPU hardly waits for that."""

    @property
    def summary(self) -> str:
        """All that is said of it."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Diagnosis:
    """Everything gpuprof says about one recording."""

    source: Source
    quality: Quality
    environment: Environment
    steps: Steps | None
    budget: Budget | None
    """Of the mean step; None where nothing was timed or recorded."""
    window: Window | None
    devices: tuple[Device, ...]
    devices_estimated: tuple[DeviceEstimate, ...] | None
    gaps: Gaps | None
    kernels: Kernels | None
    phases: tuple[PhaseTime, ...]
    profiler: Profiler | None
    verdict: Verdict
    run: Run | None = None
    """Where the recording is of a run that `gpuprof trace` made."""
    roofline: RooflineSummary | None = None
    workload: Workload | None = None
    """Whether it is training or inference; None where nothing was recorded."""
    start_up: StartUpTime | None = None
    """None where nothing was recorded."""
    replay: Replay = Replay(None, False)
    sensitivities: Sensitivities | None = None
    findings: tuple[Finding, ...] = ()
    combined: Combined | None = None
    considered: tuple[Considered, ...] = ()
    """Usual remedies that are ruled out, in the order of the findings."""
    worth_trying: tuple[Finding, ...] = ()
    """What is not sure to gain but expected to, with what settles it, in the order of `findings`."""
    above_reach: AboveReach | None = None
    """What the step should cost, and what lies above that; None where nothing was replayed."""
    cpu_step: CpuStep | None = None
    """Of a run without a GPU what its mean step consists of; None of any other, and where its steps were not timed."""
    host: Host | None = None
    """The Python functions of unprofiled steps, where a run sampled them."""
    counters: Counters | None = None
    """What Nsight Compute counted of the same kernels; None where no table was given."""
    ranges: tuple[RangeTime, ...] = ()
    """Most host time first; of many names the first hundred."""
    activity: tuple[PhaseActivity, ...] | None = None
    """None where no counters were recorded."""
    ranks: tuple[RankSummary, ...] | None = None
    """One summary per rank, where several were diagnosed together."""
    memory: MemoryReport | None = None
    """Who held the GPU's memory, where a snapshot or memory events were recorded."""
    iteration: Iteration | None = None
    """Of a training on its own generations: the mean iteration by phase. None of any other."""
    job: Job | None = None
    """Their joint replay."""
    _analysis: Any = field(default=None, repr=False, compare=False)
    """The `gpuprof.diagnosis.analysis.Analysis` that it was made from: columns, the run's steps, the replayed graph.
    Not part of the JSON; None where it was loaded from there."""

    @property
    def step_ns(self) -> int | None:
        """What a step costs: the mean step, else the best that is known of a step; None without steps."""
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

        Raises GpuprofError where the trace held nothing to analyse.
        """
        if self._analysis is None or self._analysis.recorded is None:
            raise GpuprofError(f"{self.source.path}: {self._no_columns}")
        return replace(self._analysis.tables, diagnosis=self)

    @property
    def _no_columns(self) -> str:
        """Why there are none."""
        if self._analysis is None:
            return "this diagnosis was loaded from JSON, which holds no events; diagnose the recording for that"
        return "nothing was recorded that could be shown as a table"

    @property
    def folder(self) -> RunFolder | None:
        """The run that was diagnosed: every step's time and memory, telemetry. None of a bare trace, and where the
        diagnosis was loaded from JSON."""
        return None if self._analysis is None else self._analysis.folder

    @property
    def timed(self) -> TimedSteps | None:
        """The free-running steps that the budget is of, split by what each waited for. None where none were timed, and
        where the diagnosis was loaded from JSON."""
        return None if self._analysis is None else self._analysis.timed

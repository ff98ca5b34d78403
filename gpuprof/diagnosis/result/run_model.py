"""The run of `gpuprof trace` in a diagnosis: its steps without a profiler, work, memory and GPUs.

One frozen dataclass per concept, as in `diagnosis`: times are whole nanoseconds, None means "cannot be known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from gpuprof.bounds import OneOf, Positive, Share, Signed, Words
from gpuprof.tracefile.run_folder.compiler import Compiler
from gpuprof.tracefile.run_folder.program import Program

if TYPE_CHECKING:
    from gpuprof.diagnosis.mean_step.baseline import RareStep


@dataclass(frozen=True, slots=True)
class Exit:
    """How the training ended: its exit code, or the signal that ended it."""

    code: Signed[int] | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Steps of the run timed before any profiler ran in it."""

    free_ns: int | None
    """A free-running step, scaled to the work of the recorded ones."""
    free_low_ns: int | None
    """10th percentile of these steps."""
    free_high_ns: int | None
    """90th percentile of these steps."""
    free_steps: int
    """Number of steps from which it was estimated."""
    synchronised_ns: int | None
    """The same for steps that each end in a device synchronisation."""
    synchronised_steps: int
    equal_work: bool | None
    """Whether these steps do the same work as the recorded ones; None: work is unknown."""
    fitted: bool
    """Whether the step time is read off a line of time over work."""
    rare: RareStep | None = None
    """Longer steps that recur at a fixed distance: they save, evaluate or log."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of all ranks together, over the unprofiled steps."""

    tokens_per_s: float | None
    """Without padding if the attention mask shows it, otherwise with padding."""
    padded_tokens_per_s: float | None
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class StepWork:
    """Mean work of a recorded step of one rank."""

    samples: float | None
    tokens: float | None
    """Padding included."""
    real_tokens: float | None
    micro_steps: float | None
    real_share: float | None = None
    """Share of non-padding tokens in all steps that the run counted, 0 to 1: a few recorded steps may not be typical of
    the training's lengths."""
    useful_pairs: float | None = None
    """Share of pairs of tokens in one row that lie within one document and are not padding; None if masks, positions
    and lengths in host memory do not show it."""
    labelled_share: float | None = None
    """Share of tokens with a label; None if unknown."""


@dataclass(frozen=True, slots=True)
class RunMemory:
    """torch's allocator over the steps of one rank: medians, and the highest peak, bytes."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """One GPU while the baseline ran: medians, and the highest temperature."""

    index: int
    power_w: float | None
    limit_w: float | None
    sm_mhz: float | None
    sm_mhz_max_seen: float | None
    """The highest clock of the whole run."""
    temperature_c: float | None
    utilization: float | None
    """In percent, as NVML reports it."""
    throttled: dict[Words, float]
    """Share of the samples in which a reason held the clock back."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    gpus: tuple[GpuTelemetry, ...]
    samples: int
    load1: float | None


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of an unprofiled step: mean power of the board × the mean step. For one GPU; with several ranks the mean
    over their GPUs; for a process that uses several GPUs the sum."""

    source: Annotated[str, OneOf(("counter", "samples"))]
    """counter: NVML's energy counter; samples: the average of the power that NVML reports."""
    gpus: Positive[int]
    """Number of sampled GPUs; the figures are their mean, or the sum over `boards` of them."""
    steps: Positive[int]
    """Steps of the measured stretch, which lasted for `ns`."""
    ns: int
    """Duration of that stretch."""
    power_w: float
    idle_w: float | None
    """Power before the first step, without work; None if it was not sampled."""
    step_j: float
    """Energy per step: the mean power × the mean step."""
    step_low_j: float
    """Ends of its interval, from the sensor's error and the ends of the stretch."""
    step_high_j: float
    work_j: float | None
    """Energy per step without the board's idle power."""
    token_j: float | None
    """Energy per token, without padding if that is known."""
    work_token_j: float | None
    estimated_w: float | None = None
    """Power by the projections' power model; None if nothing was recorded, or if the GPU is not in the table."""
    boards: Positive[int] = 1
    """Number of GPUs that the figures are summed over: those of one process."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The wall time of the whole run: `wall_ns` = `productive_ns` + the sum of `lost_ns`, exactly."""

    wall_ns: int
    steps: Positive[int]
    usual_ns: int
    """The median free-running step of the rank."""
    productive_ns: int
    """`steps` × `usual_ns`, at most the time of the training loop."""
    share: Share
    """Productive share of the wall time, 0 to 1."""
    lost_ns: dict[Words, int]
    """Lost time by cause; `other` is unexplained, of either sign."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run that a recording belongs to, as `gpuprof trace` recorded it on the diagnosed rank."""

    path: str
    status: Annotated[str, OneOf(of="gpuprof.tracefile.run_folder.run:STATUSES")] | None
    """running | finished | failed | killed | interrupted."""
    exit: Exit | None
    step_source: str | None
    """What counted the steps."""
    steps_seen: int
    steps_total: int | None
    remaining_ns: int | None
    """Remaining steps × the current unprofiled step; for a run that ended early, what was left."""
    baseline: Baseline
    """A step timed before any profiler ran in the process, scaled to the work of the recorded ones."""
    after_ns: int | None
    """An unprofiled step after the recording, scaled to the same work."""
    throughput: Throughput
    """Throughput of the whole run: samples and tokens of one rank × world_size."""
    work: StepWork
    """Mean work of a recorded step of one rank; tokens with padding, real_tokens without."""
    model: dict[Words, Any] | None
    """As recorded."""
    optimizer: dict[Words, Any] | None
    """As recorded."""
    loader: dict[Words, Any] | None
    """As recorded."""
    memory: RunMemory
    """Torch's allocator in the unprofiled steps of one rank: medians, and the highest peak."""
    telemetry: Telemetry | None
    notes: tuple[str, ...]
    startup_ns: int | None = None
    """Time from the program's start to its first step: imports, loading the model and the data."""
    goodput: Goodput | None = None
    """The wall time of the whole run: productive_ns and lost_ns add up to wall_ns exactly."""
    program: Program | None = None
    """As recorded: classes of the trainer and its arguments, flags, warnings of slow paths."""
    energy: Energy | None = None
    """Measured over unprofiled steps; None if they were not sampled for long enough."""
    compiler: Compiler | None = None
    """What torch.compile did: functions with their failed guards, graph breaks with their calls, CUDA graph skips; None
    if nothing was compiled or the run does not say."""
    command: tuple[str, ...] | None = None
    """Words of the recorded command, secrets masked; None if the program recorded itself."""

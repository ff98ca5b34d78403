"""What a diagnosis says of the run that `gpuprof trace` made: its steps without a profiler, work, memory and GPUs.

One frozen dataclass per concept, as in `model`: times are whole nanoseconds, None means "cannot be known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from gpuprof.bounds import OneOf, Positive, Share, Signed, Words
from gpuprof.tracefile.compiler import Compiler
from gpuprof.tracefile.program import Program

if TYPE_CHECKING:
    from gpuprof.diagnosis.baseline import RareStep


@dataclass(frozen=True, slots=True)
class Exit:
    """How the training ended: its exit code, or the signal that ended it."""

    code: Signed[int] | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Steps of the run timed before any profiler ran in it."""

    free_ns: int | None
    """A free-running step, at the work of the recorded ones."""
    free_low_ns: int | None
    """10th percentile of the steps."""
    free_high_ns: int | None
    """Eight of ten steps lie between the two."""
    free_steps: int
    """Steps that it was estimated from."""
    synchronised_ns: int | None
    """The same where every step was closed by a device synchronisation."""
    synchronised_steps: int
    equal_work: bool | None
    """Whether the steps counted do the work of the recorded ones; None: work is not known."""
    fitted: bool
    """Whether the step is read off a line of time over work."""
    rare: RareStep | None = None
    """Steps that come back at a fixed distance and take longer: they save, evaluate, log."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of all ranks together, over the unprofiled steps."""

    tokens_per_s: float | None
    """Without padding where the attention mask shows it, else with it."""
    padded_tokens_per_s: float | None
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Work:
    """What a recorded step of one rank goes through, on average."""

    samples: float | None
    tokens: float | None
    """Padding included."""
    real_tokens: float | None
    micro_steps: float | None
    real_share: float | None = None
    """Of the tokens of all steps that the run counted, 0 to 1, those that are no padding: few recorded steps can have
    batches of other lengths than the training has."""
    useful_pairs: float | None = None
    """Of the pairs of tokens in one row, those within one document and without padding; None where masks, positions and
    lengths in host memory do not show it."""
    labelled_share: float | None = None
    """Of the tokens, those with a label; None where that is not known."""


@dataclass(frozen=True, slots=True)
class RunMemory:
    """torch's allocator over the steps of one rank: medians, and the highest peak."""

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
    """What an unprofiled step takes of the board's energy: the mean power times the mean step. One GPU's, of several
    ranks the mean; of a process that uses several GPUs the sum."""

    source: Annotated[str, OneOf(("counter", "samples"))]
    """counter: NVML's energy counter; samples: the power that it reports, averaged."""
    gpus: Positive[int]
    """GPUs that were sampled; the figures are their mean, or the sum of `boards` of them."""
    steps: Positive[int]
    """Steps of the stretch that was measured, which lasted for `ns`."""
    ns: int
    """How long that stretch lasted."""
    power_w: float
    idle_w: float | None
    """Before the first step, without work; None where it was not sampled."""
    step_j: float
    """Of a step, one GPU's board: the mean power times the mean step."""
    step_low_j: float
    """Ends of its interval: the sensor's error, and the ends of the stretch."""
    step_high_j: float
    work_j: float | None
    """Of a step, without what the board takes idle."""
    token_j: float | None
    """Of a token, without padding where that is known."""
    work_token_j: float | None
    estimated_w: float | None = None
    """By the model of power that projections use; None where nothing was recorded, or the GPU is not in the table."""
    boards: Positive[int] = 1
    """GPUs that the figures are the sum of: those of one process."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The wall time of the whole run: `wall_ns` = `productive_ns` + the sum of `lost_ns`, exactly."""

    wall_ns: int
    steps: Positive[int]
    usual_ns: int
    """The median free-running step of the rank."""
    productive_ns: int
    """`steps` × `usual_ns`, as far as the training's loop took that long."""
    share: Share
    """Productive share of the wall time, 0 to 1."""
    lost_ns: dict[Words, int]
    """By cause; other is what no measurement explains, of either sign."""


@dataclass(frozen=True, slots=True)
class Run:
    """What `gpuprof trace` knows of the run that a recording is from, as the diagnosed rank has it."""

    path: str
    status: Annotated[str, OneOf(of="gpuprof.tracefile.run:STATUSES")] | None
    """running | finished | failed | killed | interrupted."""
    exit: Exit | None
    step_source: str | None
    """What counted the steps."""
    steps_seen: int
    steps_total: int | None
    remaining_ns: int | None
    """Steps left times a current unprofiled step; for a run that has ended early, what was left."""
    baseline: Baseline
    """A step timed before any profiler ran in the process, at the work of the recorded ones."""
    after_ns: int | None
    """An unprofiled step after the recording, at the same work."""
    throughput: Throughput
    """Of the whole run: steps count samples and tokens per rank, these are times world_size."""
    work: Work
    """A recorded step of one rank, on average; tokens with padding, real_tokens without."""
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
    """From the start of the program to its first step: imports, loading the model and the data."""
    goodput: Goodput | None = None
    """The wall time of the whole run: productive_ns and lost_ns add up to wall_ns exactly."""
    program: Program | None = None
    """As recorded: classes of the trainer and its arguments, flags, warnings of slow paths."""
    energy: Energy | None = None
    """Measured over unprofiled steps; None where they were not sampled for long enough."""
    compiler: Compiler | None = None
    """What torch.compile did: functions with their failed guards, graph breaks with their calls, CUDA graph skips; None
    where nothing was compiled or the run does not say."""
    command: tuple[str, ...] | None = None
    """Words of the recorded command, secrets masked; None where the program recorded itself."""

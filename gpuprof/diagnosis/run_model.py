"""What a diagnosis says of the run that `gpuprof trace` made: its steps without a profiler, work, memory and GPUs.

One frozen dataclass per concept, as in `model`: times are whole nanoseconds, None means "cannot be known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.tracefile.compiler import Compiler
from gpuprof.tracefile.program import Program

if TYPE_CHECKING:
    from gpuprof.diagnosis.baseline import RareStep


@dataclass(frozen=True, slots=True)
class Exit:
    """How the training ended: its exit code, or the signal that ended it."""

    code: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Steps of the run timed before any profiler ran in it."""

    free_ns: int | None
    """A free-running step, at the work of the recorded ones."""
    free_low_ns: int | None
    free_high_ns: int | None
    """Eight of ten steps lie between the two."""
    free_steps: int
    """Steps that it was estimated from."""
    synchronised_ns: int | None
    """The same where every step was closed by a device synchronisation."""
    synchronised_steps: int
    equal_work: bool | None
    """Whether the steps counted do the work of the recorded ones; None where the run does not say."""
    fitted: bool
    """Whether the step is read off a line of time over work."""
    rare: RareStep | None = None
    """The steps that save, evaluate or log, where they come back at a fixed distance."""


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
    """Of the pairs of tokens in one row, 0 to 1, those within one document and without padding, over all steps that
    tell; None where masks, positions and lengths in host memory do not."""
    labelled_share: float | None = None
    """Of the tokens, 0 to 1, those with a label; None where that is not known."""


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
    throttled: dict[str, float]
    """Share of the samples in which the clock was held back, by reason."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    gpus: tuple[GpuTelemetry, ...]
    samples: int
    load1: float | None


@dataclass(frozen=True, slots=True)
class Energy:
    """What an unprofiled step takes of the board's energy: the mean power times the mean step. One GPU's, of several
    ranks the mean; of a process that uses several GPUs the sum."""

    source: str
    """`counter`: NVML's energy counter; `samples`: the power that it reports, averaged."""
    gpus: int
    steps: int
    """Steps of the stretch that was measured, which lasted for `ns`."""
    ns: int
    power_w: float
    idle_w: float | None
    """Before the first step, without work; None where it was not sampled."""
    step_j: float
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
    boards: int = 1
    """GPUs that the figures are the sum of: those of one process."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The wall time of the whole run: `wall_ns` = `productive_ns` + the sum of `lost_ns`, exactly."""

    wall_ns: int
    steps: int
    usual_ns: int
    """The median free-running step of the rank."""
    productive_ns: int
    """`steps` × `usual_ns`, as far as the training's loop took that long."""
    share: float
    """Productive share of the wall time, 0 to 1."""
    lost_ns: dict[str, int]
    """By cause (`gpuprof.record.goodput.CAUSES`); `other` has either sign."""


@dataclass(frozen=True, slots=True)
class Run:
    """What `gpuprof trace` knows of the run that a recording is from, as the diagnosed rank has it."""

    path: str
    status: str | None
    """running | finished | failed | killed | interrupted."""
    exit: Exit | None
    step_source: str | None
    steps_seen: int
    steps_total: int | None
    remaining_ns: int | None
    """Steps left × a current unprofiled step."""
    baseline: Baseline
    after_ns: int | None
    """An unprofiled step after the recording, at the work of the recorded ones."""
    throughput: Throughput
    work: Work
    model: dict[str, Any] | None
    optimizer: dict[str, Any] | None
    loader: dict[str, Any] | None
    memory: RunMemory
    telemetry: Telemetry | None
    notes: tuple[str, ...]
    startup_ns: int | None = None
    """From the start of the program to its first step: imports, loading the model and the data."""
    goodput: Goodput | None = None
    """Of the whole run; None where no free-running steps were timed."""
    program: Program | None = None
    """Trainer, arguments' fields, flags and warnings; None where the run does not say."""
    energy: Energy | None = None
    """Measured over the unprofiled steps; None where they were not sampled for long enough."""
    compiler: Compiler | None = None
    """What torch.compile did; None where nothing was compiled, or the run does not say."""
    command: tuple[str, ...] | None = None
    """Words of the command that was recorded, secrets masked; None where the program recorded itself."""

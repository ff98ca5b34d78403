"""The Projection: what the recorded step would be on other GPUs; written as `gpuprof.projection/1`.
None means "cannot be known from this recording", never zero. Intervals are 80 % intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuprof import documents
from gpuprof.bounds import OneOf, Words
from gpuprof.replay.bound import Bound
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.value_range import Range

SCHEMA = "gpuprof.projection/1"
DOCUMENT = documents.Kind(SCHEMA, whole_ns=True)


@dataclass(frozen=True, slots=True)
class ProjectedWork:
    """The work of one step on one GPU."""

    samples: float | None
    tokens: float | None
    """Padding included."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The step that everything is projected from: unprofiled, on the GPU and CPU that it was recorded on."""

    path: str
    gpu: str
    """Its name in the table of GPUs."""
    device_name: str | None
    """As the recording gives it."""
    step_ns: Range
    busy_ns: float
    """GPU work of a step, summed over its kernels and copies."""
    work: ProjectedWork
    layers: int | None
    experts: int | None
    unmodelled_share: float
    """Share of the GPU's time in kernels whose FLOPs and bytes are not known."""
    usual_ns: float | None = None
    """The usual step, if usual steps are compared; None if mean steps are."""


@dataclass(frozen=True, slots=True)
class ProjectionRequest:
    """What was asked for."""

    batch: int | None
    """Samples of a step; None: as recorded."""
    sample_tokens: float | None
    host_factor: float
    """CPU time there over CPU time here: 0.5 is a CPU twice as fast."""
    host_source: Annotated[str, OneOf(("assumed", "given", "measured"))]
    """assumed | given | measured."""
    layers: int | None
    experts: int | None
    ranks: tuple[int, ...]
    epoch_samples: int | None


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that a GPU is assumed to sustain."""

    half_flops: float
    """FLOP/s of matmuls in its half-precision training format."""
    half_source: Annotated[str, OneOf(("measured", "table", "power", "stated"))]
    """measured: on this machine; table: on such a GPU elsewhere; power: by the model of its power limit;
    stated: the usual share of the datasheet's."""
    half_spread: float
    """The 80 % interval: within this factor either way."""
    memory_bytes_per_s: float
    memory_source: Annotated[str, OneOf(of="gpuprof.projection.sustained_rates:BANDWIDTH_SPREAD")]
    """measured | table | stated."""
    memory_spread: float


@dataclass(frozen=True, slots=True)
class FitWith:
    """What fits with one change of the training, from the footprint that `gpuprof memory` uses."""

    fix: str
    title: str
    fits: bool
    """Whether the requested batch fits."""
    largest_batch: int | None
    largest_batch_low: int | None
    largest_batch_high: int | None


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether the batch fits, all in bytes."""

    usable_bytes: int
    """What an allocator may hand out: less what the driver, CUDA's context and fragmentation take."""
    static_bytes: int
    """Weights, adapters and optimizer state, which do not depend on the batch."""
    activation_bytes: int
    """Activations and gradients: the peak of a step with the requested batch, above what stays."""
    fits: bool
    largest_batch: int | None
    """In samples; None if the samples of a pass are not known."""
    largest_batch_low: int | None
    """The same if activations grow as much as they may; `largest_batch_high`: as little as they may."""
    largest_batch_high: int | None
    with_fixes: tuple[FitWith, ...] = ()
    """The changes that the recording offers; empty for another model or other lengths than the recorded ones."""


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_hour: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class ProjectionCost:
    """Money and energy; energy is that of the GPU's board alone. `per_epoch` is for the requested samples."""

    power_w: float | None
    """Mean power over a step, W."""
    kwh_per_million_tokens: float | None
    kwh_per_epoch: float | None
    price: Price | None
    usd_per_million_tokens: float | None
    usd_per_epoch: float | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Several such GPUs, each with its own batch (data parallel)."""

    gpus: int
    step_ns: float
    collective_ns: float
    """Time of exchanging the gradients, hidden or not."""
    exposed_ns: float
    efficiency: float
    """Work per time and GPU, over that of a single GPU."""
    link: str


@dataclass(frozen=True, slots=True)
class HostStep:
    """The same step with another CPU (host)."""

    host_factor: float
    step_ns: float


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The step on one kind of GPU."""

    gpu: str
    architecture: str
    confidence: str
    """Confidence in the table's figures: A, B, C, or user."""
    rates: Rates
    batch: float | None
    """Samples of the step that is described here: the requested batch, or the largest half, quarter … of it that
    fits."""
    batch_share: float
    """Share of the requested batch; 1 if it fits or that is not known."""
    work: ProjectedWork
    step_ns: Range
    speedup: Range
    """Work per time over that of the recorded step; both are usual steps if `step_ns` is one, else both are means."""
    busy_ns: float
    host_floor_ns: float
    """The step if the GPU took no time at all."""
    bound: Bound | None
    """As in a diagnosis; None if the limit of most kernels is not known."""
    sensitivities: dict[Words, float]
    samples_per_hour: float | None
    tokens_per_hour: float | None
    host_steps: tuple[HostStep, ...]
    memory: MemoryFit | None
    """None if the recording does not show how much memory was used."""
    cost: ProjectionCost
    scaling: tuple[Scaling, ...]
    assumptions: tuple[str, ...]
    """Assumptions that hold only for this GPU."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why one GPU beats another, in the order in which they are weighed."""

    id: Annotated[str, OneOf(("host_floor", "capacity", "host_speed", "compute", "bandwidth", "rest"))]
    """host_floor | capacity | host_speed | compute | bandwidth | rest."""
    factor: float | None
    """Work per time of the first over that of the second due to this reason alone, after the reasons before it were
    made equal; None: no factor."""
    text: str


@dataclass(frozen=True, slots=True)
class ProjectionExplanation:
    first: str
    second: str
    factor: Range
    """Work per time of the first over that of the second."""
    summary: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """The recorded step on the requested GPUs, best first."""

    summary: str
    recorded: RecordedStep
    asked: ProjectionRequest
    gpus: tuple[OnGpu, ...]
    explanation: ProjectionExplanation | None
    assumptions: tuple[str, ...]
    """Assumptions of the whole projection, in sentences."""
    unit: Unit = STEP
    """What the recorded step is called: an iteration, a request or a token of inference."""

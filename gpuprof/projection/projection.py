"""The Projection: what the recorded step would be on other GPUs; `json` writes it as `gpuprof.projection/1`.

None means "cannot be known from this recording", never zero. Intervals are meant: eight of ten lie inside.
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
    """What one step goes through on one GPU."""

    samples: float | None
    tokens: float | None
    """Padding included."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The step that everything is projected from: unprofiled, on the GPU and the host that it was recorded on."""

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
    """Of the GPU's time, kernels whose FLOPs and bytes are not known."""
    usual_ns: float | None = None
    """The usual step, where usual steps are what is compared; None where the mean ones are."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for."""

    batch: int | None
    """Samples of a step; None: as recorded."""
    sample_tokens: float | None
    host_factor: float
    """Host time there over host time here: 0.5 is a host twice as fast."""
    host_source: Annotated[str, OneOf(("assumed", "given", "measured"))]
    """assumed | given | measured."""
    layers: int | None
    experts: int | None
    ranks: tuple[int, ...]
    epoch_samples: int | None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU is taken to sustain."""

    half_flops: float
    """FLOP/s of matmuls in the half-precision format that it trains in."""
    half_source: Annotated[str, OneOf(("measured", "table", "power", "stated"))]
    """measured: on this machine; table: on such a GPU elsewhere; power: by the model of its power limit;
    stated: the usual share of the datasheet's."""
    half_spread: float
    """Eight of ten lie within this many times more or less."""
    memory_bytes_per_s: float
    memory_source: Annotated[str, OneOf(of="gpuprof.projection.sustained_rates:BANDWIDTH_SPREAD")]
    """measured | table | stated."""
    memory_spread: float


@dataclass(frozen=True, slots=True)
class FitWith:
    """What fits with one change of the training, by the footprint that `gpuprof memory` uses."""

    fix: str
    title: str
    fits: bool
    """The batch that is asked for."""
    largest_batch: int | None
    largest_batch_low: int | None
    largest_batch_high: int | None


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether the batch fits, all in bytes."""

    usable_bytes: int
    """What an allocator may hand out: less what the driver, CUDA's context and fragmentation take."""
    static_bytes: int
    """Weights, adapters and optimizer state: there whatever the batch."""
    activation_bytes: int
    """At the peak of a step of the batch asked for, above what stays: activations and gradients."""
    fits: bool
    largest_batch: int | None
    """In samples; None where a sample is not known."""
    largest_batch_low: int | None
    """The same if activations grow as much as they may; likewise `largest_batch_high`, if as little."""
    largest_batch_high: int | None
    with_fixes: tuple[FitWith, ...] = ()
    """The changes that the recording offers; none of another model or other lengths than the recorded ones."""


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_hour: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Money and energy; energy is the GPU's board alone. `per_epoch` is of the samples asked for."""

    power_w: float | None
    """Mean over a step."""
    kwh_per_million_tokens: float | None
    kwh_per_epoch: float | None
    price: Price | None
    usd_per_million_tokens: float | None
    usd_per_epoch: float | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Several such GPUs, each with a batch of its own (data parallel)."""

    gpus: int
    step_ns: float
    collective_ns: float
    """Exchanging the gradients, whether it is hidden or not."""
    exposed_ns: float
    efficiency: float
    """Work per time and GPU over that of one."""
    link: str


@dataclass(frozen=True, slots=True)
class HostStep:
    """The same step with another host."""

    host_factor: float
    step_ns: float


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The step on one kind of GPU."""

    gpu: str
    architecture: str
    confidence: str
    """Of the table's figures: A, B, C, or user."""
    rates: Rates
    batch: float | None
    """Samples of the step that is described here: what was asked for, or as large a half, quarter … of it as fits."""
    batch_share: float
    """Of what was asked for; 1 where it fits or is not known to fit."""
    work: ProjectedWork
    step_ns: Range
    speedup: Range
    """Work per time over the recorded one's; of usual steps where `step_ns` is one, of mean steps where it is that."""
    busy_ns: float
    host_floor_ns: float
    """The step if the GPU took no time at all."""
    bound: Bound | None
    """As of a diagnosis; None where what most kernels are limited by is not known."""
    sensitivities: dict[Words, float]
    samples_per_hour: float | None
    tokens_per_hour: float | None
    host_steps: tuple[HostStep, ...]
    memory: MemoryFit | None
    """None where the recording does not say what memory it used."""
    cost: Cost
    scaling: tuple[Scaling, ...]
    assumptions: tuple[str, ...]
    """What only holds for this GPU."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why one GPU beats another, in the order in which they are weighed."""

    id: Annotated[str, OneOf(("host_floor", "capacity", "host_speed", "compute", "bandwidth", "rest"))]
    """host_floor | capacity | host_speed | compute | bandwidth | rest."""
    factor: float | None
    """Work per time of the first over the second by this reason alone, those before it made equal; None: no factor."""
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    first: str
    second: str
    factor: Range
    """Work per time of the first over the second."""
    summary: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """The recorded step on the GPUs that were asked for, best first."""

    summary: str
    recorded: RecordedStep
    asked: Asked
    gpus: tuple[OnGpu, ...]
    explanation: Explanation | None
    assumptions: tuple[str, ...]
    """What all of it rests on, in sentences."""
    unit: Unit = STEP
    """What the recorded step is called: an iteration, a request or a token of inference."""

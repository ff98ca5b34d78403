"""What fits: weights, adapters and optimizer state, which are there whatever the batch, and a pass's activations.

Static is what the allocator held between steps. What the peak is above that scales with the tokens of the largest
forward pass, as `activations` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.calibration import memory as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.projection.memory.activations import Activations, Line, RecordedPeak, activations
from gpuprof.projection.projection import MemoryFit
from gpuprof.units import Assumed, Samples

MOST_BATCH: Assumed[Samples] = 1_000_000
"""A batch that is larger is one that memory does not limit."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The optimizer's state for the trained parameters."""

    parameters: float
    state_bytes: float
    gradient_bytes: float
    """Of all gradients."""
    adam: bool
    """Whether it is an Adam of two moments: what its state in 8 bits takes is known."""
    single_adapters: bool
    """Whether they are adapters in single precision next to a model in half."""
    tensors: int = 0
    """That they are; 0: not known."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a recording says about memory, scaled to the model that is asked for."""

    static_bytes: float
    activations: Activations
    static_spread: float = 0.0
    """Static is more or less by this share."""


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """Memory and model of a run."""

    allocated_bytes: int
    """Between steps, the median."""
    recorded: RecordedPeak
    """The highest peak above it."""
    embedding_bytes: float = 0.0
    """Of `allocated_bytes` what does not scale with the layers: embeddings and the head."""
    expert_share: float = 0.0
    """Of the layers' part what scales with the experts."""
    cast_bytes: float | None = None
    """Per token what layers keep less with adapters in half precision; None where that is not known."""
    trained: Trained | None = None
    reserved_bytes: int | None = None
    """By the allocator, the median at the ends of steps."""


def usage(
    recorded: RecordedMemory, deeper: float = 1.0, wider: float = 1.0, more_layers: int = 0, longer: float = 1.0
) -> Usage:
    """Memory of the model with `deeper` times the layers, which are `more_layers` more, `wider` times the experts, and
    samples `longer` times as long."""
    layers = max(recorded.allocated_bytes - recorded.embedding_bytes, 0.0)
    by_expert = layers * recorded.expert_share
    static = min(recorded.embedding_bytes, recorded.allocated_bytes) + deeper * (layers - by_expert + wider * by_expert)
    spread = 0.0 if deeper == wider == 1 else calibrated.UNSEEN_STATIC.value
    return Usage(static, activations(recorded.recorded, deeper, more_layers, longer), spread)


def usable_bytes(gpu: Gpu, memory_bytes: int | None = None) -> int:
    """What tensors may take; `memory_bytes`: as its driver reported it."""
    total = memory_bytes or gpu.memory_bytes * (2**30 * thresholds_calibrated.GIB_OF_GB.value / 1e9)
    return int((total - calibrated.CONTEXT_BYTES.whole) / calibrated.FRAGMENTS.value)


def fit(gpu: Gpu, use: Usage, tokens: float, batch: float | None, memory_bytes: int | None = None) -> MemoryFit:
    """Whether a forward pass of `tokens` tokens fits; `batch`: its samples, where known."""
    usable = usable_bytes(gpu, memory_bytes)
    room = usable - use.static_bytes
    away = use.static_bytes * use.static_spread
    found = use.activations

    def largest(line: Line, room: float) -> int | None:
        return None if not batch or not tokens else int(min(line.most_tokens(room) * batch / tokens, MOST_BATCH))

    # Of batches smaller than the recorded one the flattest line asks for most.
    lines = (found.least, found.likely, found.most)
    ends = [
        sorted(size for line in lines if (size := largest(line, room + sign * away)) is not None) for sign in (-1, 1)
    ]
    return MemoryFit(
        usable_bytes=usable,
        static_bytes=int(use.static_bytes),
        activation_bytes=int(found.likely.at(tokens)),
        fits=room >= found.likely.at(tokens),
        largest_batch=largest(found.likely, room),
        largest_batch_low=ends[0][0] if ends[0] else None,
        largest_batch_high=ends[1][-1] if ends[1] else None,
    )


def share_that_fits(found: MemoryFit, use: Usage, tokens: float, batch: float | None) -> float | None:
    """The largest of a half, a quarter … of a pass of `tokens` tokens and `batch` samples that fits; None if none
    does."""
    room = found.usable_bytes - use.static_bytes
    share = 1.0
    while use.activations.likely.at(share * tokens) > room:
        share /= 2
        if share * (batch or 64) < 1:
            return None
    return share

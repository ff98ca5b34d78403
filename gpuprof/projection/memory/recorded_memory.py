"""What fits: weights, adapters and optimizer state, which do not depend on the batch, and a pass's activations.

Static is what the allocator held between steps. The peak above that scales with the tokens of the largest forward pass,
see `activations`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.calibration import memory as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.projection.memory.activations import ActivationBytes, LinearBytes, RecordedPeak, activations
from gpuprof.projection.projection import MemoryFit
from gpuprof.units import Assumed, Samples

MOST_BATCH: Assumed[Samples] = 1_000_000
"""A larger batch is reported as not limited by memory."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The trained parameters and the optimizer's state for them."""

    parameters: float
    state_bytes: float
    gradient_bytes: float
    """Bytes of all gradients."""
    adam: bool
    """Whether the optimizer is an Adam with two moments, whose state in 8 bits has a known size."""
    single_adapters: bool
    """Whether the parameters are adapters in single precision in a model in half precision."""
    tensors: int = 0
    """Number of trained tensors; 0: not known."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The recorded memory, scaled to the requested model."""

    static_bytes: float
    activations: ActivationBytes
    static_spread: float = 0.0
    """Uncertainty of the static memory, as a share of it."""


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """Memory and model of a run."""

    allocated_bytes: int
    """Allocated between steps, the median."""
    recorded: RecordedPeak
    """The highest peak above `allocated_bytes`."""
    embedding_bytes: float = 0.0
    """The part of `allocated_bytes` that does not scale with the layers: embeddings and the head."""
    expert_share: float = 0.0
    """Share of the layers' part that scales with the experts."""
    cast_bytes: float | None = None
    """How much less layers keep per token with adapters in half precision; None if that is not known."""
    trained: Trained | None = None
    reserved_bytes: int | None = None
    """Reserved by the allocator, the median at the ends of steps."""


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
    """Bytes that tensors may use; `memory_bytes`: the memory that the driver reported."""
    total = memory_bytes or gpu.memory_bytes * (2**30 * thresholds_calibrated.GIB_OF_GB.value / 1e9)
    return int((total - calibrated.CONTEXT_BYTES.whole) / calibrated.FRAGMENTS.value)


def fit(gpu: Gpu, use: Usage, tokens: float, batch: float | None, memory_bytes: int | None = None) -> MemoryFit:
    """Whether a forward pass of `tokens` tokens fits; `batch`: its samples, where known."""
    usable = usable_bytes(gpu, memory_bytes)
    room = usable - use.static_bytes
    away = use.static_bytes * use.static_spread
    found = use.activations

    def largest(line: LinearBytes, room: float) -> int | None:
        return None if not batch or not tokens else int(min(line.most_tokens(room) * batch / tokens, MOST_BATCH))

    # For batches smaller than the recorded one the flattest line needs most.
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

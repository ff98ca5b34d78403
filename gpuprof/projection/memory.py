"""What fits: the allocator's peak of the recording, parted into what is there whatever the batch and what grows.

Static are weights, adapters and optimizer state, as the allocator held them between steps. What the peak is above that
are activations and gradients, taken to grow with the tokens of a forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.costs.hardware import Gpu
from gpuprof.projection.model import MemoryFit

GIB_OF_GB = 2**30 * 0.99 / 1e9
"""What drivers report over the gigabytes of a GPU's name, which are binary ones: 139.8 GiB of an H200's 141."""
CONTEXT_BYTES = 1_500_000_000
"""Driver, CUDA's context and libraries: 1.5 GB beside what the allocator held, on H200s with torch 2.11."""
FRAGMENTS = 1.04
"""Reserved over allocated at the peak: 1.01 and 1.04 in two recordings."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a recording says about memory, scaled to the model that is asked for."""

    static_bytes: float
    bytes_per_token: float
    """Of activations and gradients at the peak, per token of a forward pass."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a run tells of its memory and its model."""

    allocated_bytes: int
    """Between steps, the median."""
    peak_bytes: int
    tokens: float
    """Of the largest forward pass up to the peak, padding included."""
    embedding_bytes: float = 0.0
    """Of `allocated_bytes` what does not go with the layers: embeddings and the head."""
    expert_share: float = 0.0
    """Of the layers' part what goes with the experts."""
    checkpointing: bool = False
    kept_bytes: float = 0.0
    """Per token what each layer keeps on the GPU for its recomputation: its input, or nothing if that is offloaded."""


def usage(told: Told, deeper: float = 1.0, wider: float = 1.0, more_layers: int = 0) -> Usage:
    """Memory of the model with `deeper` times the layers, which are `more_layers` more, and `wider` times the experts.

    With checkpointing the peak is one layer's or the head's, and each layer more adds what it keeps for its
    recomputation; without it activations go with the layers.
    """
    layers = max(told.allocated_bytes - told.embedding_bytes, 0.0)
    by_expert = layers * told.expert_share
    static = min(told.embedding_bytes, told.allocated_bytes) + deeper * (layers - by_expert + wider * by_expert)
    above = max(told.peak_bytes - told.allocated_bytes, 0) / max(told.tokens, 1.0)
    if told.checkpointing:
        return Usage(static, above + max(more_layers, 0) * told.kept_bytes)
    return Usage(static, above * deeper)


def usable_bytes(gpu: Gpu, memory_bytes: int | None = None) -> int:
    """What tensors may take; `memory_bytes`: as its driver reported it."""
    total = memory_bytes or gpu.memory_bytes * GIB_OF_GB
    return int((total - CONTEXT_BYTES) / FRAGMENTS)


def fit(gpu: Gpu, use: Usage, tokens: float, batch: float | None, memory_bytes: int | None = None) -> MemoryFit:
    """Whether a forward pass of so many tokens fits; `batch`: its samples, where known."""
    usable = usable_bytes(gpu, memory_bytes)
    activations = use.bytes_per_token * tokens
    room = usable - use.static_bytes
    largest = None
    if batch and activations > 0:
        largest = max(int(room * batch / activations), 0)
    return MemoryFit(
        usable_bytes=usable,
        static_bytes=int(use.static_bytes),
        activation_bytes=int(activations),
        fits=room >= activations,
        largest_batch=largest,
    )


def share_that_fits(found: MemoryFit, batch: float | None) -> float | None:
    """As large a half, quarter … of the batch as fits; None if nothing of it does."""
    room = found.usable_bytes - found.static_bytes
    share = 1.0
    while share * found.activation_bytes > room:
        share /= 2
        if share * (batch or 64) < 1:
            return None
    return share

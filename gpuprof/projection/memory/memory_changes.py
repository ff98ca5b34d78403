"""Effects of changes on a training's memory, each a function Footprint → Footprint; they compose.

Sizes of checkpointing, chunked losses and 8-bit state are formulas with the constants of `calibration.memory`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuprof.calibration import memory as calibrated
from gpuprof.projection.memory.footprint import Footprint, FootprintParts
from gpuprof.units import Assumed, Convention, Ratio

MemoryChange = Callable[[Footprint], Footprint]

INPUT_BYTES_AN_ELEMENT: Assumed[Ratio] = 2.0
"""Bytes per element of a layer's input, which checkpointing keeps."""
BYTES_LESS_IN_HALF: Convention[Ratio] = 2.0
"""Bytes that a parameter saves in half instead of single precision; likewise for each of Adam's two moments."""


def each_end(found: Footprint, change: Callable[[FootprintParts, int], FootprintParts]) -> Footprint:
    """The footprint with the same change applied to its three bounds; the bound's number selects the constants."""
    low, likely, high = (change(parts, end) for end, parts in enumerate(found.ends))
    return replace(found, low=low, likely=likely, high=high)


def checkpointed(layers: int, hidden: int, share: float = 1.0) -> MemoryChange:
    """Gradient checkpointing of a `share` of the layers: they keep their input and, during the backward pass of one of
    them, what it has recomputed."""
    inputs = INPUT_BYTES_AN_ELEMENT * hidden

    def change(parts: FootprintParts, end: int) -> FootprintParts:
        each = parts.layers / layers
        kept = share * layers * min(inputs, each) + (1 - share) * parts.layers
        again = each + parts.scores / layers + max(parts.backward, calibrated.BACKWARD_BYTES.rising[end] * hidden)
        return replace(parts, layers=kept, scores=(1 - share) * parts.scores, backward=again)

    return lambda found: each_end(found, change)


def offloaded_activations(layers: int, hidden: int) -> MemoryChange:
    """What layers keep is moved to the CPU and back, one layer at a time."""

    def change(parts: FootprintParts, end: int) -> FootprintParts:
        each, scores = parts.layers / layers, parts.scores / layers
        kept = min(calibrated.OFFLOADED_LAYERS.rising[end], layers) * (each + scores)
        backward = each + scores + max(parts.backward, calibrated.BACKWARD_BYTES.rising[end] * hidden)
        return replace(parts, layers=min(kept, parts.layers), scores=0.0, backward=backward)

    return lambda found: each_end(found, change)


def without_checkpointing(layers: int, kept: float, inputs: float) -> MemoryChange:
    """All layers keep what autograd needs: `kept` bytes per token in all, instead of their `inputs`."""

    def change(parts: FootprintParts, end: int) -> FootprintParts:
        more = calibrated.KEPT_MAY.rising[end] * kept - inputs
        return replace(parts, layers=parts.layers + more, backward=max(parts.backward - kept / layers, 0.0))

    return lambda found: each_end(found, change)


def chunked_loss(hidden: int) -> MemoryChange:
    """A loss that never holds the logits of all rows: the peak moves to the last layer's backward pass."""

    def change(parts: FootprintParts, end: int) -> FootprintParts:
        chunk = min(calibrated.CHUNK_BYTES.rising[end] * hidden, parts.logits)
        return replace(
            parts, logits=chunk, backward=max(parts.backward, calibrated.BACKWARD_BYTES.rising[end] * hidden)
        )

    return lambda found: each_end(found, change)


def smaller_passes(factor: int, gradient_bytes: float) -> MemoryChange:
    """The same samples in `factor` times the passes; `gradient_bytes` of gradients, which did not exist during a pass
    before, are held from the first pass on."""
    shorter = shorter_passes(1 / factor)

    def change(parts: FootprintParts, _: int) -> FootprintParts:
        return replace(parts, fixed_bytes=parts.fixed_bytes + gradient_bytes)

    return lambda found: each_end(shorter(found), change)


def shorter_passes(share: float) -> MemoryChange:
    """Passes with a share of their tokens. (Scores shrink at least as much.)"""

    def change(parts: FootprintParts, _: int) -> FootprintParts:
        return replace(
            parts, layers=parts.layers * share, scores=parts.scores * share, logits=parts.logits * share,
            backward=parts.backward * share,
        )  # fmt: skip

    return lambda found: each_end(found, change)


def fused_attention() -> MemoryChange:
    """Attention that does not write scores to memory."""
    return lambda found: each_end(found, lambda parts, _: replace(parts, scores=0.0, backward=0.0))


def no_temporaries() -> MemoryChange:
    """An optimizer that makes no copy of the parameters in its step."""
    return lambda found: each_end(found, lambda parts, _: replace(parts, floor_bytes=0.0))


def temporaries(copy_bytes: float) -> MemoryChange:
    """An optimizer that copies the parameters in its step, while the gradients exist."""
    return lambda found: each_end(found, lambda parts, _: replace(parts, floor_bytes=copy_bytes))


def eight_bit_state(state_bytes: float, parameters: float) -> MemoryChange:
    """The state of Adam in 8 bits, tensor by tensor and so without a copy of the parameters."""
    return less_static(max(state_bytes - calibrated.EIGHT_BIT_STATE.value * parameters, 0.0), without_temporaries=True)


def less_static(saved_bytes: float, without_temporaries: bool = False) -> MemoryChange:
    """Less memory that stays between steps."""

    def change(found: Footprint) -> Footprint:
        less = replace(found, static_bytes=max(found.static_bytes - saved_bytes, 0.0))
        return no_temporaries()(less) if without_temporaries else less

    return change


def half_adapters(parameters: float, cast_bytes: float, with_state: bool = True) -> MemoryChange:
    """Adapters in half precision: their weights, gradients and state take half, and `cast_bytes` per token of inputs
    that were cast for them are no longer kept. with_state: whether Adam's state has the adapters' precision."""
    static = less_static((3 if with_state else 1) * BYTES_LESS_IN_HALF * parameters)

    def change(parts: FootprintParts, _: int) -> FootprintParts:
        floor = parts.floor_bytes / 2
        return replace(parts, layers=max(parts.layers - cast_bytes, 0.0), floor_bytes=floor)

    return lambda found: each_end(static(found), change)

"""The allocator's peak above what stays between steps, as a function of the tokens of a forward pass.

A recorded peak is one point. It is extended to a line, `fixed + per_token · tokens`, that never falls below a floor:

- if the passes of a run differ in length, the line through their own peaks;
- else a line through the origin: measured to hold if all logits are held at once, as these are most of what grows;
- if the loss is computed in chunks of the logits and layers are recomputed, the slope follows from the model's shape,
  and the rest is fixed (dequantised weights, buffers, chunks of fixed size);
- a peak in the optimizer's step says nothing about activations: it is a floor, and the slope follows from the model's
  shape.

Each has bounds, too. docs/projection.md lists the measured peaks that these were compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpuprof.calibration import memory as calibrated
from gpuprof.units import Assumed, Convention, Ratio, Share

SCORE_BYTES: Convention[Ratio] = 6.0
"""Bytes per attention score that is written to memory: the softmax in single precision and its copy in half."""
OPTIMIZER_PEAK: Assumed[Ratio] = 1.1
"""A peak (above what stays) of at most this many times the optimizer's temporary copy of the parameters is that
copy."""
LEAST_ABOVE_GRADIENTS: Assumed[Share] = 0.1
"""Share of the gradients' size: a peak that is less than this above them is where the last gradient is made, not where
activations are."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How the head and the loss process the logits."""

    vocabulary: int
    share: float
    """Share of a pass's rows whose logits exist at the same time: 1 all of them, 0 never a whole row."""
    fixed_rows: int | None = None
    """Rows of a chunk if its size is fixed; None if chunks are a share of the pass."""

    @property
    def whole(self) -> bool:
        return self.share > 0.5 and self.fixed_rows is None

    def per_token(self, each: float) -> float:
        """Bytes per token of a pass with `each` bytes a logit."""
        return 0.0 if self.fixed_rows is not None else each * self.vocabulary * self.share


@dataclass(frozen=True, slots=True)
class RecordedPeak:
    """One recorded peak and what is known about it."""

    above_bytes: float
    """The peak minus what is allocated between steps."""
    tokens: float
    """Tokens of the forward pass that made it, padding included."""
    line_fixed_bytes: float | None = None
    """The part of the run's own peaks that does not depend on a pass's tokens; None if they do not show it."""
    checkpointing: bool = False
    layers: int = 0
    hidden: int = 0
    kept_bytes: float = 0.0
    """What each layer keeps on the GPU per token for its recomputation: its input, or nothing if that is offloaded."""
    loss: Loss | None = None
    """None where the vocabulary is not known."""
    gradient_bytes: float = 0.0
    """Gradients among what is allocated between steps that do not exist yet during a forward pass."""
    temporary_bytes: float = 0.0
    """Temporary memory of the optimizer's step: none if it is fused."""
    score_bytes: float = 0.0
    """The part of `above_bytes` for attention scores that are written to memory: tokens times the length of a
    sample."""
    layer_bytes: float | None = None
    """What all layers keep per token for the backward pass if nothing is recomputed, counted op by op; None if that is
    not known."""


@dataclass(frozen=True, slots=True)
class LinearBytes:
    """Bytes above what stays, by tokens of a pass."""

    fixed_bytes: float
    per_token: float
    floor_bytes: float = 0.0
    layer_per_token: float = 0.0
    """Slope at a later moment, the recomputation of one layer, which may become the peak."""

    def at(self, tokens: float) -> float:
        return max(self.floor_bytes, self.fixed_bytes + self.per_token * tokens, self.layer_per_token * tokens, 0.0)

    def most_tokens(self, room_bytes: float) -> float:
        """The longest pass that takes no more; infinite where nothing grows."""
        if self.floor_bytes > room_bytes:
            return 0.0
        left = room_bytes - self.fixed_bytes
        if left <= 0:
            return 0.0
        by_layer = room_bytes / self.layer_per_token if self.layer_per_token > 0 else math.inf
        return min(left / self.per_token if self.per_token > 0 else math.inf, by_layer)


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """The likely line, and its bounds."""

    least: LinearBytes
    likely: LinearBytes
    most: LinearBytes
    basis: Literal["measured", "grows", "shape", "optimizer"] = "grows"
    """What the likely line follows from: peaks of the run's passes; one peak through the origin; the model's shape with
    a fixed rest; the model's shape below a peak of the optimizer."""

    def at(self, tokens: float) -> tuple[float, float, float]:
        """(at least, likely, at most) bytes with that many tokens. For passes shorter than the recorded one the
        flattest line is the highest."""
        found = sorted(line.at(tokens) for line in (self.least, self.likely, self.most))
        return found[0], self.likely.at(tokens), found[-1]


def activations(
    recorded: RecordedPeak, deeper: float = 1.0, more_layers: int = 0, longer: float = 1.0
) -> ActivationBytes:
    """The lines of the model with `deeper` times the layers, which are `more_layers` more, and samples `longer` times
    as long."""
    found = _recorded(recorded)
    lines = zip((found.least, found.likely, found.most), calibrated.ONE_LAYER.rising, strict=True)
    least, likely, most = (_changed(line, recorded, deeper, more_layers, longer, one) for line, one in lines)
    return ActivationBytes(least, likely, most, found.basis)


def _recorded(recorded: RecordedPeak) -> ActivationBytes:
    above, tokens, early = recorded.above_bytes, max(recorded.tokens, 1.0), recorded.gradient_bytes
    slopes = _by_shape(recorded)
    # At a peak in the loss there are no gradients yet: one small model's batch of 8 came within 0.2 % so, and 3 % below
    # if they are taken to be there.
    whole = LinearBytes(-early, (above + early) / tokens)
    if _of_optimizer(recorded):
        # Whatever activations took, it was at most this peak.
        lines = [
            LinearBytes(-early, min(slope, whole.per_token), above) for slope in slopes or (0.0, *[whole.per_token] * 2)
        ]
        return ActivationBytes(*lines, basis="optimizer")
    if recorded.line_fixed_bytes is not None:
        slope = max(above - recorded.line_fixed_bytes, 0.0) / tokens
        steepest = min(slope * calibrated.LINE_MAY.value, above / tokens)
        ends = (_through(recorded, slope) for slope in (slope / calibrated.LINE_MAY.value, slope, steepest))
        return ActivationBytes(*ends, basis="measured")
    if recorded.checkpointing and slopes and recorded.loss is not None and not recorded.loss.whole:
        # Chunks may be made smaller if memory is short.
        least = slopes[0] - recorded.loss.per_token(calibrated.LOGIT_BYTES.rising[0])
        basis = "shape" if slopes[1] < above / tokens else "grows"
        return ActivationBytes(_through(recorded, least), _through(recorded, slopes[1]), whole, basis)
    least, most = calibrated.ALL_GROWS_LEAST.value, calibrated.ALL_GROWS_MOST.value
    steeper = LinearBytes(whole.fixed_bytes, whole.per_token * most)
    return ActivationBytes(_through(recorded, least * above / tokens), whole, steeper)


def _through(recorded: RecordedPeak, slope: float) -> LinearBytes:
    """The line of that slope, or of one through the origin where that is less, through the recorded peak."""
    slope = min(slope, recorded.above_bytes / max(recorded.tokens, 1.0))
    return LinearBytes(recorded.above_bytes - slope * recorded.tokens, slope)


def _of_optimizer(recorded: RecordedPeak) -> bool:
    above, copy = recorded.above_bytes, recorded.temporary_bytes
    return (
        copy / OPTIMIZER_PEAK <= above <= OPTIMIZER_PEAK * copy
        or above < LEAST_ABOVE_GRADIENTS * recorded.gradient_bytes
    )


def _by_shape(recorded: RecordedPeak) -> tuple[float, float, float] | None:
    """Bytes per token of one pass by the model's shape alone: at least, usually, at most. None: not known."""
    if not (recorded.hidden and recorded.layers and recorded.loss):
        return None
    found = []
    for logit, layer, one, may in zip(
        calibrated.LOGIT_BYTES.rising,
        calibrated.LAYER_BYTES.rising,
        calibrated.ONE_LAYER.rising,
        calibrated.KEPT_MAY.rising,
        strict=True,
    ):
        if recorded.checkpointing:
            kept = recorded.kept_bytes * recorded.layers + one * recorded.hidden
        elif recorded.layer_bytes is not None:
            kept = may * recorded.layer_bytes
        else:
            kept = layer * recorded.hidden * recorded.layers
        found.append(recorded.loss.per_token(logit) + kept)
    return found[0], found[1], found[2]


def _changed(
    line: LinearBytes, recorded: RecordedPeak, deeper: float, more_layers: int, longer: float, one_layer: float
) -> LinearBytes:
    """The line of a deeper model, and of longer samples; `one_layer`: bytes a token and hidden element
    that one recomputed layer keeps."""
    slope, by_layer = line.per_token, 0.0
    scores = min(recorded.score_bytes / max(recorded.tokens, 1.0), slope)
    if recorded.checkpointing:
        # The peak is that of one layer or of the head; each further layer adds what it keeps for its recomputation.
        kept = max(more_layers, 0) * recorded.kept_bytes
        slope += kept
        if longer > 1 and scores:
            by_layer = recorded.layers * recorded.kept_bytes + kept + one_layer * recorded.hidden + scores * longer
    else:
        slope += scores * (longer - 1)
        once = min(recorded.loss.per_token(calibrated.LOGIT_BYTES.rising[1]), slope) if recorded.loss else 0.0
        slope = once + (slope - once) * deeper
    grows = deeper if line.floor_bytes or line.fixed_bytes < 0 else 1.0
    return LinearBytes(line.fixed_bytes * grows, slope, line.floor_bytes * grows, by_layer)

"""A training's memory at its peak, in the parts that changes act on: what stays, and what each token of a pass takes.

`footprint` splits what was recorded, `memory_changes` has the effect of each change of the training on the parts, and
`Footprint.usage` puts them together again. Parts that are not measured have both bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.calibration import memory as calibrated
from gpuprof.projection.memory.activations import ActivationBytes, LinearBytes, RecordedPeak
from gpuprof.projection.memory.recorded_memory import Usage


@dataclass(frozen=True, slots=True)
class FootprintParts:
    """Bytes above what stays between steps; those without another unit are per token of a forward pass.

    The peak is in the loss, with all layers' activations and the logits, or in the backward pass of the last layer,
    with `backward` instead of the logits, or in the optimizer's step.
    """

    fixed_bytes: float
    """In all, independent of the tokens."""
    layers: float
    scores: float
    """Attention scores that are written to memory, in all layers that keep them."""
    logits: float
    backward: float = 0.0
    """What the backward pass of one layer takes in addition to `layers` and `scores`; 0: less than the logits."""
    floor_bytes: float = 0.0
    """In all: the optimizer's step."""

    def line(self) -> LinearBytes:
        """The bytes as a function of the tokens of a pass."""
        kept = self.layers + self.scores
        return LinearBytes(self.fixed_bytes, kept + max(self.logits, self.backward), self.floor_bytes)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a training holds."""

    static_bytes: float
    """Allocated between steps, for any batch."""
    static_spread: float
    """Uncertainty of `static_bytes`, as a share of it."""
    low: FootprintParts
    likely: FootprintParts
    high: FootprintParts
    activations: ActivationBytes
    """Before any change; they say what the numbers follow from."""

    @property
    def ends(self) -> tuple[FootprintParts, FootprintParts, FootprintParts]:
        return self.low, self.likely, self.high

    def usage(self) -> Usage:
        """In the form that projections use."""
        lines = [parts.line() for parts in self.ends]
        return Usage(self.static_bytes, ActivationBytes(*lines, basis=self.activations.basis), self.static_spread)

    def peak_bytes(self, tokens: float) -> tuple[float, float, float]:
        """The peak with a pass of that many tokens: at least, likely, at most."""
        low, likely, high = self.usage().activations.at(tokens)
        away = self.static_bytes * self.static_spread
        return self.static_bytes - away + low, self.static_bytes + likely, self.static_bytes + away + high


def footprint(recorded: RecordedPeak, use: Usage) -> Footprint:
    """The parts of what was recorded; `use` is for the requested model and lengths.

    All bounds go through the recorded peak: if more of it is logits, less is layers.
    """
    found = use.activations
    lines = (found.least, found.likely, found.most)
    parts = [_parts(recorded, line, end) for end, line in enumerate(lines)]
    return Footprint(use.static_bytes, use.static_spread, *parts, activations=found)


def _parts(recorded: RecordedPeak, line: LinearBytes, end: int) -> FootprintParts:
    scores = min(recorded.score_bytes / max(recorded.tokens, 1.0), line.per_token)
    logits = recorded.loss.per_token(calibrated.LOGIT_BYTES.rising[end]) if recorded.loss else 0.0
    if recorded.checkpointing:
        # Scores exist only for the layer that is being recomputed, and not during the loss.
        inputs = min(recorded.layers * recorded.kept_bytes, line.per_token)
        rest = line.per_token - inputs
        if recorded.loss and recorded.loss.whole:
            logits = min(logits, rest)
            again = min(_again(recorded, end), logits)
            return FootprintParts(line.fixed_bytes, inputs + rest - logits, 0.0, logits, again, line.floor_bytes)
        return FootprintParts(line.fixed_bytes, inputs, 0.0, min(logits, rest), rest, line.floor_bytes)
    backward = score_backward(scores, recorded.layers, end)
    logits, backward = min(logits, line.per_token - scores), min(backward, line.per_token - scores)
    layers = line.per_token - scores - max(logits, backward)
    return FootprintParts(line.fixed_bytes, layers, scores, logits, backward, line.floor_bytes)


def _again(recorded: RecordedPeak, end: int) -> float:
    """Bytes per token of the one layer that is being recomputed for its backward pass."""
    if recorded.layer_bytes is None or not recorded.layers:
        return calibrated.ONE_LAYER.rising[end] * recorded.hidden
    return recorded.layer_bytes / recorded.layers + calibrated.BACKWARD_BYTES.rising[end] * recorded.hidden


def score_backward(scores: float, layers: int, end: int) -> float:
    """Bytes per token that the backward pass of one of the layers takes on its scores, in addition to those kept."""
    return calibrated.SCORE_BACKWARD.rising[end] * scores / layers if layers else 0.0

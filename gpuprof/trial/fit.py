"""Finds which batch and length fit: runs a few steps of the program as it is and with other batches, and fits a model
to their memory peaks.

The peak is `fixed + (per_token + per_token_and_length · length) · batch · length`: a line through two batches, and a
quadratic term in the length if that could be changed. docs/fit.md lists the limits of this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from gpuprof import documents
from gpuprof.bounds import Items, OneOf, Positive, Words
from gpuprof.calibration import memory as calibrated
from gpuprof.errors import GpuprofError
from gpuprof.record.patches import PROBE
from gpuprof.trial.starter import Outcome, Starter
from gpuprof.trial.trial import TriedFix
from gpuprof.units import Assumed, Seconds, Steps

SCHEMA = "gpuprof.fit/1"
DOCUMENT = documents.Kind(SCHEMA)
SETTLING_STEPS: Assumed[Steps] = 2
TIMED_STEPS: Assumed[Steps] = 2
FITTING_LIMIT_S: Assumed[Seconds] = 600.0


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of one process."""

    batch: Positive[int]
    """Samples of the largest forward pass."""
    length: Positive[int]
    """Tokens per sample; 1 if samples are not tokens."""
    peak_bytes: Positive[int]
    step_ns: int | None
    """The mean of its few timed steps, a rough figure."""


@dataclass(frozen=True, slots=True)
class Model:
    """Peak memory as a function of batch and length."""

    fixed_bytes: float
    per_token: float
    per_token_and_length: float
    length: int
    """The measured length."""
    length_known: bool
    """Whether another length was measured, too."""
    spread: float
    """Relative uncertainty of the growing part."""

    def peak(self, batch: float, length: float) -> tuple[float, float, float]:
        """(low, expected, high) bytes."""
        tokens = batch * length
        grows = (self.per_token + self.per_token_and_length * length) * tokens
        ratio = 1.0 if self.length_known else length / self.length
        less, more = (
            calibrated.FIT_UNSEEN_LENGTH.value * max(1 - ratio, 0.0),
            calibrated.FIT_UNSEEN_LENGTH.value * max(ratio - 1, 0.0),
        )
        low, high = grows * (1 - self.spread - less), grows * (1 + self.spread + more)
        return self.fixed_bytes + low, self.fixed_bytes + grows, self.fixed_bytes + high

    def largest_batch(self, room_bytes: float, length: float) -> tuple[int, int, int]:
        """The largest batch that fits: (surely, likely, at most)."""
        ends = []
        for end in (2, 1, 0):
            one = self.peak(1, length)[end] - self.fixed_bytes
            ends.append(max(int((room_bytes - self.fixed_bytes) / one), 0) if one > 0 else 0)
        return ends[0], ends[1], ends[2]


@dataclass(frozen=True, slots=True)
class FitCell:
    """One batch at one length."""

    batch: Positive[int]
    length: Positive[int]
    low_bytes: int
    peak_bytes: int
    """Expected peak, bytes."""
    high_bytes: int


@dataclass(frozen=True, slots=True)
class FitOnGpu:
    """What fits on one GPU."""

    gpu: str
    """Its name in gpuprof's table."""
    usable_bytes: Positive[int]
    """Bytes of its memory that tensors may use."""
    largest: tuple[tuple[int, int, int, int], ...]
    """One for each length of the cells."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """The result of `gpuprof fit`."""

    command: tuple[str, ...]
    """What was run, secrets masked."""
    measured: Annotated[tuple[Point, ...], Items(2, 3)]
    """The program as it is, then with another batch, then, where that was possible, with another length."""
    of: Annotated[str, OneOf(("gpu", "tensors"))]
    """What the peaks are. gpu: peak of the allocator on the GPU; tensors: bytes of live tensors, without a GPU."""
    changed: dict[Words, Words]
    """What was changed (batch, length) → where it was changed from outside."""
    tokens: bool
    """Whether samples are tokens; if not, every length is 1."""
    cells: tuple[FitCell, ...]
    """Predicted peaks, by length and then by batch."""
    gpus: tuple[FitOnGpu, ...]
    """This machine's GPU, if known, and the requested ones."""
    unknown: tuple[str, ...]
    """What the measurement cannot determine, a sentence each."""
    fake: bool = False
    """Whether tensors had a shape and no data: a few steps of a model that need not fit this machine."""


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """The results of the probes."""

    points: list[Point]
    """The program as it is, another batch, and another length where that was possible."""
    changed: dict[str, str]
    of: str
    tokens: bool
    gpu: dict[str, Any] | None
    """The GPU as described by the process."""
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Probed:
    point: Point
    facts: dict[str, Any]
    rank: dict[str, Any]


Tell = Callable[[str], None]


def measure(starter: Starter, tell: Tell, fake: bool = False) -> MeasuredPeaks:
    """Runs the probes; fake: with tensors that have no data. Raises GpuprofError, one line, if the program does not
    run, or its batch cannot be changed from outside."""
    tell("a few steps of the program as it is")
    one = _probe(starter, "1x1", fake)
    if one is None:
        raise GpuprofError("the program as it is did not reach its fourth step: its own output says why")
    first, by = one.point, dict(one.facts.get("by") or {})
    tokens = bool(one.facts.get("shape"))
    points, notes = [first], []
    tell("and with another batch")
    for factor in ("2x1", "0.5x1") if "batch" in by else ():
        second = _probe(starter, factor, fake)
        if second is not None and second.point.batch != first.batch:
            points.append(second.point)
            break
    if len(points) < 2:
        raise GpuprofError(
            "the batch of this program cannot be changed from outside: other values of its flags, trainer's arguments "
            "or DataLoader made no pass larger; run it with two batches under gpuprof trace, and use gpuprof memory"
        )
    if tokens and "length" in by:
        tell("and with another length")
        for factor in ("1x2", "1x0.5"):
            third = _probe(starter, factor, fake)
            if third is not None and third.point.length != first.length:
                points.append(third.point)
                break
        else:
            notes.append("another length changed no pass: the samples that were seen are shorter than the limit")
    return MeasuredPeaks(points, by, _of(one.rank), tokens, one.rank.get("gpu"), notes)


def probed(starter: Starter, factor: float) -> Point | None:
    """A few steps with `factor` times the program's batch; None if they do not run."""
    found = _probe(starter, f"{factor!r}x1")
    return None if found is None else found.point


def _of(rank: dict[str, Any]) -> str:
    return "gpu" if rank.get("peak_of") == "gpu" else "tensors"


def _probe(starter: Starter, value: str, fake: bool = False) -> _Probed | None:
    """One process; None if it runs out of memory or ends before it was measured. Raises GpuprofError if the unchanged
    program fails."""
    outcome = starter.run(
        (TriedFix(PROBE, f"{value} fake" if fake else value),),
        SETTLING_STEPS,
        TIMED_STEPS,
        1.0,
        FITTING_LIMIT_S,
        brief=True,
    )
    facts, error = _facts(outcome), outcome.process.error
    if error is not None or facts is None:
        if value == "1x1" and error is not None:
            hint = _hint(error) if fake else ""
            raise GpuprofError(f"the program as it is did not reach its fourth step: {error}{hint}")
        return None
    rank = outcome.ranks[0]
    peak = rank.get("peak_bytes") if _of(rank) == "gpu" else facts.get("tensors")
    shape = facts.get("shape")
    batch, length = shape if shape else (round(rank.get("samples") or 0), 1)
    if not peak or not batch:
        raise GpuprofError("neither embeddings nor a DataLoader showed how many samples a pass of this program has")
    return _Probed(Point(batch, length, int(peak), None if fake else outcome.process.step_ns), facts, rank)


def _hint(error: str) -> str:
    """A hint for a program that may have failed because its tensors had no data; empty otherwise."""
    if "cuda" in error.lower():
        return " (with --fake it has to run on the CPU: let it use the GPU only if there is one)"
    return " (it ran without data: gpuprof fit without --fake may get further)"


def _facts(outcome: Outcome) -> dict[str, Any] | None:
    for rank in outcome.ranks:
        for patch in rank.get("patches") or ():
            if patch.get("name") == PROBE:
                try:
                    return json.loads(patch.get("text") or "")
                except ValueError:
                    return None
    return None


def model_of(points: Sequence[Point]) -> Model:
    """Fits the peaks as a function of batch and length. Raises GpuprofError if they do not grow with the batch."""
    first, second = points[0], points[1]
    tokens = first.batch * first.length, second.batch * second.length
    slope = (second.peak_bytes - first.peak_bytes) / (tokens[1] - tokens[0])
    if slope <= 0:
        raise GpuprofError("the peak did not grow with the batch: the pass is not what holds most; see gpuprof memory")
    fixed = first.peak_bytes - slope * tokens[0]
    third = next((one for one in points[2:] if one.length != first.length), None)
    if third is None:
        return Model(fixed, slope, 0.0, first.length, False, calibrated.FIT_SPREAD.value)
    then = (third.peak_bytes - fixed) / (third.batch * third.length)
    curvature = max((then - slope) / (third.length - first.length), 0.0)
    return Model(fixed, slope - curvature * first.length, curvature, first.length, True, calibrated.FIT_SPREAD.value)


def table(model: Model, points: Sequence[Point], batches: Sequence[int], lengths: Sequence[int]) -> tuple[FitCell, ...]:
    """The peaks of every batch at every length; by default halves and doubles of what was measured."""
    first = points[0]
    batches = batches or sorted({max(round(first.batch * factor), 1) for factor in (0.5, 1, 2, 4, 8)})
    lengths = lengths or ([first.length] if first.length == 1 else
                          sorted({max(round(first.length * factor), 1) for factor in (0.5, 1, 2, 4)}))  # fmt: skip
    return tuple(
        FitCell(batch, length, *(round(end) for end in model.peak(batch, length)))
        for length in lengths for batch in batches
    )  # fmt: skip

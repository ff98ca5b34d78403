"""Whether the step time of a running training has reached a new level, or drifts: a fold over its steps.

Steps have long tails, and patterns: a save now and then, a loader whose every fourth batch is late. So the medians of
blocks of steps are compared. Nearly all pairs of one of the last RECENT_BLOCKS blocks and one of the REFERENCE_BLOCKS
blocks must point the same way (the U statistic of Mann and Whitney 1947), and the levels must differ by
`watch.LEAST_CHANGE` of the calibration. The mean must have moved in the same direction: another order of the same steps
moves only the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from gpuprof.calibration import watch as calibrated
from gpuprof.units import Assumed, Blocks, Entries, Steps

BLOCK_STEPS: Assumed[Steps] = 16
"""Steps in a block."""
REFERENCE_BLOCKS: Assumed[Blocks] = 8
"""Blocks that are the usual level: the first ones after SETTLING_STEPS steps."""
RECENT_BLOCKS: Assumed[Blocks] = 8
"""Blocks that are compared with it. A change is detected once it has lasted for this number of blocks, no earlier."""
SETTLING_STEPS: Assumed[Steps] = 32
"""Steps that are ignored at first, and after a recording: clocks, caches and the loader's queue settle."""
MOST_BLOCKS: Assumed[Blocks] = 128
"""Blocks after the reference that are remembered, to distinguish a drift from a new level."""
MOST_LEVELS: Assumed[Entries] = 32
"""Levels that are remembered."""


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Some steps in a row, in ns."""

    median_ns: float
    mean_ns: float
    """Mean of the steps, each counted as `watch.LONGEST_STEP` medians at most."""


@dataclass(frozen=True, slots=True)
class StepTimeChange:
    """The step time has changed. steps: about how many steps before the one at which it was seen."""

    kind: Literal["level", "drift"]
    before_ns: float
    after_ns: float
    steps: int
    cause: Literal["new", "known", "same"] = "new"
    """known: the level has occurred before. same: it is the rest of the last change, or of a drift."""

    @property
    def is_new(self) -> bool:
        """Whether the level has not occurred before."""
        return self.cause == "new"

    @property
    def ratio(self) -> float:
        """The step time afterwards, divided by that before."""
        return self.after_ns / self.before_ns


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known after some steps. The defaults are those of a watch that begins."""

    skip: int = SETTLING_STEPS
    part: tuple[float, ...] = ()
    """Steps of the current block."""
    reference: tuple[StepBlock, ...] = ()
    since: tuple[StepBlock, ...] = ()
    """Blocks after the reference, the last ones."""
    known_ns: tuple[float, ...] = ()
    """Levels that have occurred, the oldest first."""
    drifts: int = 0
    """Direction of a drift that has been reported: 1 slower, -1 faster, 0 none."""
    moving: int = 0
    """Direction of the last change."""

    @property
    def is_ready(self) -> bool:
        """Whether the usual level is known."""
        return len(self.reference) == REFERENCE_BLOCKS

    @property
    def level_ns(self) -> float | None:
        """The usual step time; None before it is known."""
        return median(block.median_ns for block in self.reference) if self.is_ready else None

    def after_recording(self) -> Watch:
        """The same watch, which ignores the steps that follow a recording."""
        return replace(self, skip=SETTLING_STEPS, part=())


def advance(watch: Watch, step_ns: float) -> tuple[Watch, StepTimeChange | None]:
    """What is known after one more step of `step_ns`, and the change that it shows, if it does.

    After a change, the level that follows it is the usual one. Steps without a time (0, negative, not finite) are
    ignored.
    """
    if not (0 < step_ns < math.inf):
        return watch, None
    if watch.skip:
        return replace(watch, skip=watch.skip - 1), None
    part = (*watch.part, step_ns)
    if len(part) < BLOCK_STEPS:
        return replace(watch, part=part), None
    block = _block(part)
    watch = replace(watch, part=())
    if not watch.is_ready:
        watch = replace(watch, reference=(*watch.reference, block))
        level = watch.level_ns
        if level is not None and not watch.known_ns:
            watch = replace(watch, known_ns=(level,))
        return watch, None
    watch = replace(watch, since=(*watch.since, block)[-MOST_BLOCKS:])
    direction = shifted(watch.reference, watch.since[-RECENT_BLOCKS:])
    if not direction:
        return watch, None
    return _changed(watch, direction)


def _block(part: Sequence[float]) -> StepBlock:
    middle = median(part)
    return StepBlock(middle, fmean(min(ns, calibrated.LONGEST_STEP.value * middle) for ns in part))


def shifted(reference: tuple[StepBlock, ...], recent: tuple[StepBlock, ...]) -> int:
    """1 if the recent blocks are slower than the reference by `watch.LEAST_CHANGE` or more, -1 if faster, else 0."""
    if len(recent) < RECENT_BLOCKS:
        return 0
    before, after = ([block.median_ns for block in blocks] for blocks in (reference, recent))
    moved = math.log(median(after) / median(before))
    mean_moved = math.log(fmean(one.mean_ns for one in recent) / fmean(one.mean_ns for one in reference))
    for direction in (1, -1):
        pairs = sum(direction * (b - a) > 0 for a in before for b in after)
        far = (
            direction * moved >= math.log1p(calibrated.LEAST_CHANGE.value)
            and direction * mean_moved >= math.log1p(calibrated.LEAST_CHANGE.value) / 2
        )
        if far and pairs >= calibrated.AGREEING_PAIRS.value * len(before) * len(after):
            return direction
    return 0


def _changed(watch: Watch, direction: int) -> tuple[Watch, StepTimeChange]:
    blocks = (*watch.reference, *watch.since)
    began, is_drift = _beginning([block.median_ns for block in blocks])
    changed = blocks[-RECENT_BLOCKS:] if is_drift else blocks[began:]
    before = median(block.median_ns for block in watch.reference)
    after = median(block.median_ns for block in changed)
    lasted = len(blocks) - began
    known = any(abs(math.log(after / level)) < math.log1p(calibrated.SAME_LEVEL.value) for level in watch.known_ns)
    # A change in the same direction within a few blocks is the rest of the last one.
    drifting = is_drift or watch.drifts == direction
    follows = watch.moving == direction and len(watch.since) <= calibrated.FOLLOWING_BLOCKS.value * (1 + drifting)
    goes_on = follows or (is_drift and watch.drifts == direction)
    cause = "known" if known else "same" if goes_on else "new"
    change = StepTimeChange("drift" if is_drift else "level", before, after, lasted * BLOCK_STEPS, cause)
    levels = watch.known_ns if known else (watch.known_ns[0], *watch.known_ns[1:][1 - MOST_LEVELS :], after)
    drifts = direction if is_drift or goes_on else 0 if known else watch.drifts
    # The usual level is learnt again, from the blocks after the change; a drift has none yet.
    usual = () if is_drift else changed[-REFERENCE_BLOCKS:]
    return replace(watch, reference=usual, since=(), known_ns=levels, drifts=drifts, moving=direction), change


def _beginning(blocks_ns: Sequence[float]) -> tuple[int, bool]:
    """(block at which a change began, whether it is a drift): the better fit of a step from one level to another and a
    straight rise from one level to the end, by the sum of the absolute errors of the blocks' logarithms."""
    logs = [math.log(ns) for ns in blocks_ns]
    places = range(1, len(logs) - 1)
    stepped = min((_error(logs[:i], median(logs[:i])) + _error(logs[i:], median(logs[i:])), i) for i in places)
    rising = min((_rise(logs, i), i) for i in places)
    is_drift = rising[0] < stepped[0]
    return (rising if is_drift else stepped)[1], is_drift


def _error(values: Sequence[float], level: float) -> float:
    return sum(abs(one - level) for one in values)


def _rise(logs: Sequence[float], begin: int) -> float:
    """The error of a constant level until `begin` and a straight line from there."""
    level = median(logs[:begin])
    slope = median((one - level) / (i + 1) for i, one in enumerate(logs[begin:]))
    return _error(logs[:begin], level) + sum(abs(one - level - slope * (i + 1)) for i, one in enumerate(logs[begin:]))

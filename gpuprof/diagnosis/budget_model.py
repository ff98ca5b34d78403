"""The budget of the mean step, as a diagnosis has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Signed
from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.units import Assumed, Ratio, Share

NAMES = {
    "input": "waiting for batches",
    "save": "saving",
    "evaluation": "evaluation",
    "logging": "logging",
    "garbage_collection": "garbage collection",
    "allocator": "memory allocation",
    "compile": "compilation",
    "new_shapes": "planning for new shapes",
    "warm_up": "warming up",
    "periodic": "something periodic (saving, evaluation, logging?)",
}
"""Causes of what the mean step takes beyond the usual one, in words."""
LONG_STEP: Assumed[Ratio] = 1.5
"""Times the median step, from which on a step is long; steps that do the same differ by 20 %."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What a cause adds to the mean step."""

    cause: str
    """input | save | evaluation | logging | garbage_collection | allocator."""
    mean_ns: int | None
    """Added to the mean step; None: on the schedule, but not measured."""
    steps: int
    """Timed steps that had it."""
    every: Positive[int] | None = None
    """Steps from one such event to the next, where the program's settings say it."""
    recorded: int | None = None
    """Steps of the recording that had it, too; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Once:
    """A cost that comes once (compiling, the first step with a new shape) and is not part of the mean step."""

    cause: str
    ns: int
    """In the timed steps, summed."""
    steps: int
    """Timed steps that had it."""
    per_step_ns: int | None
    """Spread over all steps of the training; None where it does not say how many these are."""
    ahead_ns: int | None = None
    """What the steps still to come are expected to spend on it: new lengths, by the distribution of those seen."""


USUAL_DIFFERS: Assumed[Share] = 0.05
"""Share of the mean step by which the usual one differs, from which on a screen says both."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The mean step: `mean_ns` = `usual_ns` + sum of `excess[].mean_ns` + `residual_ns`, exactly."""

    mean_ns: int
    low: int
    """Ends of the 80 % interval of the mean, ns."""
    high: int
    """Ends of the 80 % interval of this process's mean, ns."""
    usual_ns: int
    """The median step at the work of the recorded ones."""
    excess: tuple[Excess, ...]
    once: tuple[Once, ...]
    residual_ns: Signed[int]
    """What no cause explains: variation, of either sign."""
    steps: Positive[int]
    """Steps that the mean is of."""
    source: Annotated[str, OneOf(("free", "recorded"))]
    """free: timed without a profiler. recorded: the recorded steps, the profiler's cost removed."""
    paused_ns: int = 0
    """The part of residual_ns that is due to steps which take more than twice their usual time for no measured
    cause."""
    pauses: int = 0
    """How many of the steps these are."""
    process_noise: float = PROCESS_NOISE
    """How much the mean step differs from one process to the next: half an 80 % interval, as a share of it. More where
    the CPU limits the step."""

    @property
    def lumps_ns(self) -> dict[str, float]:
        """Cause → what it adds to the mean step, of all that some steps do and others do not; no waits for batches."""
        found = {one.cause: float(one.mean_ns or 0) for one in self.excess if one.cause != "input"}
        return found | ({"pauses": float(self.paused_ns)} if self.paused_ns else {})

    @property
    def lumps_every(self) -> dict[str, float]:
        """Cause → steps from one of these to the next, where any was seen or the program says it."""
        every = {one.cause: one.every or self.steps / one.steps for one in self.excess if one.every or one.steps}
        return every | ({"pauses": self.steps / self.pauses} if self.pauses else {})

    @property
    def left_out(self) -> tuple[Once, ...]:
        """Costs that are not in the mean: one that still recurs is, and becomes rarer in the steps to come."""
        recurring = {one.cause for one in self.excess}
        return tuple(one for one in self.once if one.cause not in recurring)

    @property
    def has_usual_step(self) -> bool:
        """Whether the mean step is so far from the usual one that both are worth a number."""
        return abs(self.mean_ns - self.usual_ns) >= USUAL_DIFFERS * self.mean_ns

    @property
    def usual_in_mean_ns(self) -> int:
        """What the usual step is of the mean one, ns: less than `usual_ns` where steps are shorter on average."""
        return self.usual_ns + min(self.residual_ns - self.paused_ns, 0)

    @property
    def of_processes(self) -> tuple[int, int]:
        """Ends of the 80 % interval of the mean step that processes of this program have on this machine, ns: this
        process's interval and the noise from one process to the next, added as squares of logarithms."""
        if self.mean_ns <= 0:
            return self.low, self.high
        noise = math.log1p(self.process_noise)
        low = math.hypot(math.log(self.mean_ns / max(self.low, 1)), noise)
        high = math.hypot(math.log(self.high / self.mean_ns), noise)
        return round(self.mean_ns * math.exp(-low)), round(self.mean_ns * math.exp(high))

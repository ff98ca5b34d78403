"""The budget of the mean step, as a diagnosis has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from gpuprof.bounds import OneOf, Positive, Signed
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.replay.mean_step import PAUSES
from gpuprof.units import Assumed, Ratio, Share

NAMES = {
    "input": "waiting for batches",
    "worker_starts": "starting input workers",
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
"""Causes of the mean step's excess over the usual step, in words."""
LONG_STEP: Assumed[Ratio] = 1.5
"""A step is long from this multiple of the median on; steps with equal work differ by 20 %."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Time that a cause adds to the mean step."""

    cause: str
    """input | worker_starts | save | evaluation | logging | garbage_collection | allocator | compile | new_shapes |
    periodic."""
    mean_ns: int | None
    """Added to the mean step; None: scheduled, but not measured."""
    steps: int
    """Timed steps that had it."""
    every: Positive[int] | None = None
    """Steps from one such event to the next, if the program's settings say so or all unprofiled steps show it."""
    recorded: int | None = None
    """Recorded steps that had it; None if unknown."""


@dataclass(frozen=True, slots=True)
class Once:
    """A one-off cost (compiling, the first step with a new shape), which is not part of the mean step."""

    cause: str
    ns: int
    """Sum over the timed steps."""
    steps: int
    """Timed steps that had it."""
    per_step_ns: int | None
    """Spread over all steps of the training; None if their number is unknown."""
    ahead_ns: int | None = None
    """Expected cost in all remaining steps: new lengths, by the distribution of those seen."""


USUAL_DIFFERS: Assumed[Share] = 0.05
"""If mean and usual step differ by at least this share of the mean, a screen shows both."""


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
    """Variation that no cause explains, of either sign."""
    steps: Positive[int]
    """Number of steps in the mean."""
    source: Annotated[str, OneOf(("free", "recorded"))]
    """free: timed without a profiler. recorded: the recorded steps, the profiler's cost removed."""
    paused_ns: int = 0
    """The part of residual_ns from steps that take more than twice their usual time without a measured cause."""
    pauses: int = 0
    """Number of these steps."""
    process_noise: float = noise_calibrated.PROCESS.value
    """How much the mean step differs between processes: half an 80 % interval, as a share of the mean. Larger for
    steps that the CPU limits."""

    @property
    def lumps_ns(self) -> dict[str, float]:
        """Cause → time that it adds to the mean step, for all that only some steps do, except waits for batches."""
        found = {one.cause: float(one.mean_ns or 0) for one in self.excess if one.cause != "input"}
        return found | ({PAUSES: float(self.paused_ns)} if self.paused_ns else {})

    @property
    def lumps_every(self) -> dict[str, float]:
        """Cause → steps from one event to the next, if any was measured or the program's settings say so."""
        every = {one.cause: one.every or self.steps / one.steps for one in self.excess if one.every or one.steps}
        return every | ({PAUSES: self.steps / self.pauses} if self.pauses else {})

    @property
    def left_out(self) -> tuple[Once, ...]:
        """One-off costs that are not in the mean; those that still recur are part of it."""
        recurring = {one.cause for one in self.excess}
        return tuple(one for one in self.once if one.cause not in recurring)

    @property
    def has_usual_step(self) -> bool:
        """Whether mean and usual step differ enough to show both."""
        return abs(self.mean_ns - self.usual_ns) >= USUAL_DIFFERS * self.mean_ns

    @property
    def usual_in_mean_ns(self) -> int:
        """The usual step's part of the mean step, ns: less than `usual_ns` if steps are shorter on average."""
        return self.usual_ns + min(self.residual_ns - self.paused_ns, 0)

    @property
    def of_processes(self) -> tuple[int, int]:
        """Ends of the 80 % interval of the mean step over processes of this program on this machine, ns: this process's
        interval and the noise between processes, combined as the root of the sum of squared logarithms."""
        if self.mean_ns <= 0:
            return self.low, self.high
        noise = math.log1p(self.process_noise)
        low = math.hypot(math.log(self.mean_ns / max(self.low, 1)), noise)
        high = math.hypot(math.log(self.high / self.mean_ns), noise)
        return round(self.mean_ns * math.exp(-low)), round(self.mean_ns * math.exp(high))

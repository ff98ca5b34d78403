"""The first steps of a run: when they are over, and what plan follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..base.journal import Journal
from ..base.options import planned
from ..job_nodes.nodes import NodeExchange
from ..model.training import Training
from ..steps.regular_steps import FEW_HOOKS_S
from ..steps.schedule import (
    LONG_ITERATION_S,
    LONG_SETTLE,
    LONGEST_SETTLE,
    SETTLE_S,
    WATCHED,
    Plan,
    kept_steps,
    of_iterations,
    plan,
)
from ..steps.step_meter import StepMeter
from ..windows.capture import why_no_capture
from ..windows.window import why_no_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, Steps


DRAIN_S: Assumed[Seconds] = 20.0
"""Settling waits at most this long for the batches that the loader's workers have prefetched to be used up."""
LAST_STEPS: Assumed[Steps] = 3
"""The fastest of this many last settling steps gives the duration of a step."""


class Settling:
    """The settling steps of one process."""

    def __init__(self, options: dict[str, Any], training: Training, meter: StepMeter, world_size: int) -> None:
        self._options, self._training, self._meter, self._world_size = options, training, meter, world_size
        self._step_ns: list[int] = []
        self.kept = kept_steps(options["settle"])

    @property
    def first_steps(self) -> int:
        """Steps until the training is known, as planned."""
        return plan(**planned(self._options)).settle - self.kept

    def add(self, ns: int) -> None:
        """Another step has ended."""
        self._step_ns.append(ns)

    # -- whether they are over

    def further_steps(self, step: int, left: int, planned_steps: int) -> int:
        """Settling steps that are still to come, of `left` planned ones. step: how many have ended; planned_steps:
        steps of the stages after."""
        if left > 0:
            return 0 if self._long_iterations_settled(step) else left
        return 0 if self._has_settled(step, planned_steps) else 1

    def _has_settled(self, step: int, planned_steps: int) -> bool:
        """Whether enough steps have passed. Several ranks must agree on the step, so there clocks do not count."""
        if self._training.known or self._options["settle"] is not None:
            return True
        is_watched = self._world_size > 1 or self._is_short(self.step_s(None))
        if step >= LONGEST_SETTLE - (WATCHED if is_watched else 0):
            return self._is_drained(step, planned_steps)
        total = self._training.total
        if total is not None and total <= LONGEST_SETTLE + plan(**planned(self._options)).needs():
            return True
        return self._world_size == 1 and sum(self._step_ns) > SETTLE_S * 1e9

    def _long_iterations_settled(self, step: int) -> bool:
        """Whether iterations are so long that few of them are enough; all ranks use the same number."""
        if self._training.known or self._options["settle"] is not None or self._world_size > 1:
            return False
        return self._iteration_s() > LONG_ITERATION_S and step >= LONG_SETTLE * self._meter.phases.iteration_steps

    def _is_drained(self, step: int, planned_steps: int) -> bool:
        """Whether the batches that workers prefetched during the slow first steps are used up."""
        if self._world_size > 1 or (self._training.total is not None and self.room(step, planned_steps) <= 0):
            return True
        return step >= self._training.batches_ahead or sum(self._step_ns) > DRAIN_S * 1e9

    def _iteration_s(self) -> float:
        """Seconds of the last RL iteration; 0 if there was none."""
        return sum(self._step_ns[-self._meter.phases.iteration_steps :]) / 1e9 if self._iterates() else 0.0

    def _iterates(self) -> bool:
        return self._meter.phases.iteration_steps > 0

    def room(self, step: int, planned_steps: int) -> int:
        """Steps that the training has beyond those planned. If its length is unknown: the rest of the epoch, or none if
        that is unknown too, so that a short training still gets its window."""
        total = self._training.total
        if total is None:
            batches = self._training.epoch
            if batches is None:
                return 0
            # Assumes that the current epoch is the last.
            total = step - step % max(batches // max(self._meter.last_micro_steps, 1), 1)
            total += batches // max(self._meter.last_micro_steps, 1)
        return total - 1 - step - (planned_steps or plan(**planned(self._options)).needs())

    # -- what follows

    def step_s(self, nodes: NodeExchange | None) -> float:
        """Seconds per step; the ranks of several nodes agree on one value."""
        own = min(self._step_ns[-LAST_STEPS:], default=0) / 1e9
        return own if nodes is None else nodes.agree(own)

    def _is_short(self, step_s: float) -> bool:
        """Whether steps are so short that the time of all hooks would be noticeable."""
        return 0 < step_s < FEW_HOOKS_S

    def watches(self, step_s: float) -> bool:
        """Whether the last settling steps are watched, so that the timed ones need hardly any hook."""
        return self._is_short(step_s) and not self._iterates()

    def last_steps(self, step_s: float, room: int | None) -> int:
        """Settling steps that follow once the training is known: in all no more than the user requested. room: steps
        that no stage needs; None: not known. Several ranks, each with its own clock, settle for the same steps, watched
        or not. Work before the steps took longer on some ranks; the others wait for them in the next step."""
        several = self._world_size > 1
        if self._options["settle"] is not None:
            return self.kept or int(several and (room is None or room > 0))
        if not (several or self.watches(step_s)):
            return 0
        return WATCHED if room is None or room >= WATCHED else int(several and room > 0)

    def plan(self, step_s: float, left: int | None) -> Plan:
        """The plan of a run with this step time. left: steps of the training that are to come."""
        left = None if left is None else left - self.kept
        found = plan(**planned(self._options, settle=0), step_s=step_s, total=left)
        if self._iterates() and self._options["baseline"] is None:
            whole = plan(**planned(self._options, settle=0), step_s=step_s)
            return of_iterations(whole, self._iteration_s(), self._meter.phases.iteration_steps, left)
        return found


def as_possible(wanted: Plan, under_tool: bool, nsys: bool, nsys_is_deaf: bool, journal: Journal) -> Plan:
    """The plan without what cannot be recorded in this process; the journal gets a note on each omission."""
    found = wanted
    if under_tool:
        found = replace(found, sample=0, trace=0, stacks=0, memory=0)
        journal.note("an NVTX tool records this process: gpuprof marks its steps, and leaves the recording to it")
    if nsys and found.trace and (why := why_no_capture(nsys_is_deaf)):
        found = replace(found, trace=0)
        journal.note(f"nothing is recorded: {why}")
    if found.stacks and (unsafe := why_no_stacks()):
        found = replace(found, stacks=0)
        journal.note(f"stacks are left out: {unsafe}")
    return found

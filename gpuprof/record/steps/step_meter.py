"""The current step: when it began, what it has fetched and computed so far, and its line in steps.jsonl."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ..base.timing import MemoryMeter
from ..model.batch import WorkMeter
from ..model.lumps import Lumps
from ..model.samples import StepSamples
from ..phases.phase_clock import PhaseClock
from .enough_steps import ops_counter


class Ended(NamedTuple):
    """What is read when a step ends."""

    ns: int
    """On the monotonic clock."""
    unix_ns: int
    ops: int
    """Ops that autograd has recorded so far."""
    lumps: dict[str, int]
    memory: dict[str, int | None]


class StepMeter:
    """Measures one step after the other."""

    def __init__(self) -> None:
        self.begun_ns = 0
        """On the monotonic clock; 0 if the current step is not timed."""
        self.fetch_ns = 0
        """Waiting for the DataLoader."""
        self.micro_steps = self.last_micro_steps = 0
        """Backward passes of the current step, and of the last one that has ended."""
        self.lumps = Lumps()
        self.phases = PhaseClock()
        self._trained_ns = 0
        """When the current step last did training work, or its beginning."""
        self._last_fetch_ns = 0
        self._evaluating = False
        self._is_counted = False
        """Whether a line has taken what there was of the step that has ended."""
        self.ops_followed = ops_counter()
        self._ops_before = self._ops_after = 0
        self.work = WorkMeter()
        self.samples = StepSamples()
        self.memory = MemoryMeter()

    def begin(self, now: int) -> None:
        """A step begins; 0 for one that is not timed."""
        self.begun_ns = self._trained_ns = now
        self.fetch_ns = self.micro_steps = self._last_fetch_ns = 0
        self._evaluating = False
        if self._is_counted:
            self._is_counted = False
            self._ops_before = self._ops_after
        else:
            self._ops_before = self.ops_followed() if now else 0
            self.work.take()
            self.samples.take(passes=1)
            self.lumps.take()
        self.phases.begin(now)

    def backward(self, now: int) -> None:
        """A backward pass begins."""
        self.micro_steps += 1
        if self._evaluating:
            self.trained(now)
        self._trained_ns = now
        self.samples.backward()

    def fetched(self, ns: int) -> None:
        """A batch has arrived after a wait of `ns`."""
        self.fetch_ns += ns
        self._last_fetch_ns = ns

    def trained(self, now: int) -> None:
        """The model is called to train, or a backward pass has begun: an evaluation before that is over.
        Everything since the last training work was the evaluation's, including its batches, except the last batch,
        which is trained on.
        """
        if self._evaluating:
            self._evaluating = False
            self.lumps.add("evaluation", now - self._trained_ns - self._last_fetch_ns)
            self.fetch_ns = self._last_fetch_ns
            self.samples.evaluated()
        self._trained_ns = now

    def evaluated(self) -> None:
        """The model is called without training it."""
        self._evaluating = True

    def end(self, now: int) -> Ended:
        """The step ends at this moment."""
        if self._evaluating:
            self._last_fetch_ns = 0
            self.trained(now)
        return Ended(now, time.time_ns(), self.ops_followed(), self.lumps.take(), self.memory.read(now))

    def ops(self, ended: Ended) -> int:
        """Ops that autograd has recorded in the step that has ended."""
        return ended.ops - self._ops_before

    def line(self, rank: int, number: int, stage: str, profiled: bool, ended: Ended) -> dict[str, Any]:
        """The step that has just ended, as steps.jsonl has it."""
        new_shapes, work = self.work.new_shapes, self.work.take()
        self._is_counted, self._ops_after = True, ended.ops
        self.last_micro_steps = self.micro_steps
        now, lumps = ended.ns, ended.lumps
        phases = self.phases.take(now)
        line = {
            "rank": rank,
            "step": number,
            "stage": stage,
            "unix_ns": ended.unix_ns,
            "ns": now - self.begun_ns,
            "device_ns": None,
            "data_ns": self.fetch_ns,
            "micro_steps": self.micro_steps or None,
            "samples": self.samples.take(self.micro_steps),
            "tokens": work.tokens,
            "real_tokens": work.real_tokens,
            "pairs": work.pairs,
            "useful_pairs": work.useful_pairs,
            "labelled_tokens": work.labelled_tokens,
            "new_shapes": new_shapes,
            "profiled": profiled,
            **ended.memory,
        }
        if lumps:
            line.update({f"{kind}_ns": ns for kind, ns in lumps.items() if ns})
        if phases:
            line.update(phases)
        return line

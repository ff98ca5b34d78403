"""The current step: when it began, what it has fetched and computed so far, and its line in steps.jsonl."""

from __future__ import annotations

import time
from typing import Any

from .batch import WorkMeter
from .enough_steps import ops_counter
from .lumps import Lumps
from .phase_clock import PhaseClock
from .samples import StepSamples
from .timing import MemoryMeter


class StepMeter:
    """Measures one step after the other."""

    def __init__(self) -> None:
        self.begun_ns = 0
        """On the monotonic clock; 0 if the current step is not timed."""
        self.fetch_ns = 0
        """Waiting for the DataLoader."""
        self.micro_steps = 0
        self.lumps = Lumps()
        self.phases = PhaseClock()
        self._trained_ns = 0
        """When the current step last did training work, or its beginning."""
        self._last_fetch_ns = 0
        self._evaluating = False
        self._is_counted = False
        """Whether a line has taken what there was of the step that has ended."""
        self._ops_followed = ops_counter()
        self._ops_before = self._ops_after = 0
        self.work = WorkMeter()
        self.samples = StepSamples()
        self._memory = MemoryMeter()

    def begin(self, now: int, recorded: bool = False) -> None:
        """A step begins; 0 for one that is not timed. recorded: a window is open."""
        self.begun_ns = self._trained_ns = now
        self.fetch_ns = self.micro_steps = self._last_fetch_ns = 0
        self._evaluating = False
        if self._is_counted:
            self._is_counted = False
            self._ops_before = self._ops_after
        else:
            self._ops_before = self._ops_followed() if now else 0
            self.work.take()
            self.samples.take(passes=1)
        self.work.begin(now, every=recorded)
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

    def ops(self) -> int:
        """Ops that autograd has recorded in the step that ends now; read before its `line`."""
        self._ops_after = self._ops_followed()
        return self._ops_after - self._ops_before

    def line(self, rank: int, number: int, stage: str, now: int, profiled: bool) -> dict[str, Any]:
        """The step that has just ended, as steps.jsonl has it."""
        new_shapes, work = self.work.new_shapes, self.work.take()
        self._is_counted = True
        if self._evaluating:
            self._last_fetch_ns = 0
            self.trained(now)
        lumps, phases, memory = self.lumps.take(), self.phases.take(now), self._memory.read(now)
        line = {
            "rank": rank,
            "step": number,
            "stage": stage,
            "unix_ns": time.time_ns(),
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
            **memory,
        }
        if lumps:
            line.update({f"{kind}_ns": ns for kind, ns in lumps.items() if ns})
        if phases:
            line.update(phases)
        return line

"""The step at hand: when it began, what it has fetched and computed so far, and its line in steps.jsonl."""

from __future__ import annotations

import time
from typing import Any

from .batch import WorkMeter
from .timing import MemoryMeter


class StepMeter:
    """Measures one step after the other."""

    def __init__(self) -> None:
        self.begun_ns = 0
        """On the monotonic clock; 0 where the step at hand is not timed."""
        self.fetch_ns = 0
        """Waiting for the DataLoader."""
        self.micro_steps = 0
        self.work = WorkMeter()
        self._memory = MemoryMeter()

    def begin(self, now: int) -> None:
        """A step begins; 0 for one that is not timed."""
        self.begun_ns = now
        self.fetch_ns = self.micro_steps = 0
        self.work.take()

    def line(self, rank: int, number: int, stage: str, now: int, profiled: bool) -> dict[str, Any]:
        """The step that has just ended, as steps.jsonl has it."""
        work = self.work.take()
        return {
            "rank": rank,
            "step": number,
            "stage": stage,
            "unix_ns": time.time_ns(),
            "ns": now - self.begun_ns,
            "device_ns": None,
            "data_ns": self.fetch_ns,
            "micro_steps": self.micro_steps or None,
            "samples": work.samples,
            "tokens": work.tokens,
            "real_tokens": work.real_tokens,
            **self._memory.read(now),
            "profiled": profiled,
        }

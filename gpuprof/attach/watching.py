"""Watches the step time of a running training, and opens a recording when it changes, once for each cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpuprof.attach.changes import StepTimeChange, Watch, advance
from gpuprof.attach.jobs import ArmedProcess
from gpuprof.errors import GpuprofError
from gpuprof.units import Assumed, Calls, Seconds

LOOK_S: Assumed[Seconds] = 1.0
AGAIN_S: Assumed[Seconds] = 30.0
"""Seconds before a recording that could not be opened is tried again."""
MOST_TRIES: Assumed[Calls] = 3
SILENT_S: Assumed[Seconds] = 20.0
"""A process that does not answer for this many seconds is given up on, even if it still exists."""


class RecordingOpener(Protocol):
    """Opens recordings. Both methods raise GpuprofError if recording fails."""

    def record_usual(self, step: int) -> None:
        """Records the usual step."""
        ...

    def record_change(self, change: StepTimeChange, step: int) -> None:
        """Records after a change of the step time."""
        ...


@dataclass(slots=True)
class StepReader:
    """The steps of a process as they end."""

    job: ArmedProcess
    after: int
    """Steps that have been read."""

    def read(self) -> list[int]:
        """Durations in ns of the steps since the last call, without those of recordings. Raises OSError."""
        found: list[int] = []
        while True:
            said = self.job.ask(do="steps", after=self.after)
            first, each = said.get("first"), said.get("ns")
            if not isinstance(first, int) or not isinstance(each, list):
                raise OSError("the training's answer is not understood")
            recorded = [(a, b) for a, b in said.get("recorded", ()) if isinstance(a, int) and isinstance(b, int)]
            for number, ns in enumerate(each, first):
                if isinstance(ns, int) and not any(a <= number and (b < 0 or number <= b) for a, b in recorded):
                    found.append(ns)
            self.after = first + len(each) - 1
            if not each:
                return found


@dataclass(slots=True)
class Watcher:
    """A watch over one process. say: a line for the user."""

    job: ArmedProcess
    recorder: RecordingOpener
    say: Callable[[str], None]
    watch: Watch = field(default_factory=Watch)
    steps: int = 0
    changes: int = 0
    _has_usual: bool = False
    _waiting: StepTimeChange | None = None
    """A change whose recording could not be opened yet."""
    _tries: int = 0
    _due_s: float = 0.0

    def run(self) -> None:
        """Watches until the process has ended."""
        reader = StepReader(self.job, self.job.step)
        heard_s = time.monotonic()
        while True:
            try:
                each = reader.read()
                heard_s = time.monotonic()
            except OSError:
                if not self.job.is_alive or time.monotonic() - heard_s > SILENT_S:
                    return
                each = []
            for ns in each:
                self._step(ns, reader.after)
            self._open(reader)
            time.sleep(LOOK_S)

    def _step(self, ns: float, number: int) -> None:
        self.steps += 1
        self.watch, change = advance(self.watch, ns)
        if change is None:
            return
        self.changes += 1
        if change.is_new:
            self._waiting, self._tries, self._due_s = change, 0, 0.0
        else:
            known = "this level was seen before" if change.cause == "known" else "the last change continues"
            self.say(f"step {number:,}: {words(change)}; {known}: nothing is recorded")

    def _open(self, reader: StepReader) -> None:
        """Opens a recording if one is due."""
        wants_usual = self.watch.is_ready and not self._has_usual
        if not (wants_usual or self._waiting is not None) or time.monotonic() < self._due_s:
            return
        try:
            if wants_usual:
                self.recorder.record_usual(reader.after)
                self._has_usual = True
            elif self._waiting is not None:
                self.recorder.record_change(self._waiting, reader.after)
                self._waiting = None
            self._tries = 0
        except GpuprofError as error:
            self._tries += 1
            self._due_s = time.monotonic() + AGAIN_S
            again = f"; tried again in {AGAIN_S:.0f} s" if self._tries < MOST_TRIES and self.job.is_alive else ""
            self.say(f"{error}{again}")
            if self._tries >= MOST_TRIES:
                self._waiting, self._has_usual = None, True
        self.watch = self.watch.after_recording()


def words(change: StepTimeChange) -> str:
    """A change as a clause: `100 ms → 130 ms a step (1.30×), a new level for 128 steps`."""
    kind = "a drift" if change.kind == "drift" else "a new level"
    before, after = change.before_ns / 1e6, change.after_ns / 1e6
    return f"{before:,.1f} → {after:,.1f} ms a step ({change.ratio:.2f}×), {kind} for about {change.steps:,} steps"

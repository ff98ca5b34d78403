"""Steps of a recorded training in which events only have to be noted: what then replaces the hooks that evaluate them,
and when."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from ..base.optimizer_hooks import NOTHING
from ..steps.bare_marks import BareMarks
from ..steps.bare_steps import BareSteps
from ..steps.regular_steps import StepWatch
from ..steps.step_clock import OPTIMIZER
from ..steps.tape import Tape
from .session_windows import BASELINES
from .step_events import StepEvents


class NotedSteps(StepEvents):
    """The part of a session that only notes the steps of its baseline."""

    def _follow_stage(self, now: int, took_ns: int) -> None:
        raise NotImplementedError

    def _next_stage(self) -> None:
        raise NotImplementedError

    def _begin_step(self, now: int) -> None:
        raise NotImplementedError

    def _keep_line(self, stage: str, number: int, ended: Any) -> None:
        raise NotImplementedError

    def on_optimizer_end(self, optimizer: Any) -> None:
        raise NotImplementedError

    def _begin_tape(self) -> None:
        """The step that has just begun is only noted, if nothing else has to be done in the baseline's steps."""
        is_sampled = self._stage == "sampling" and self._sampling is not None
        is_plain = (is_sampled or self._stage in BASELINES) and not (self._may_be_profiled or self._under_tool)
        if not is_plain or self._attached.ranges.listening or self._meter.phases.marked:
            return
        if not self._meter.work.knows_calls or self._begin_bare() or is_sampled:
            return
        tape = Tape(
            self, self._meter, self._clock, self._free.stretch, self._left, bool(self._devices),
            self._devices if self._stage == "baseline_sync" else [], partial(self._keep_line, self._stage),
            self._tape_is_full,
        )  # fmt: skip
        if self._clock.source != OPTIMIZER:
            self.counter = NOTHING
        else:
            self.counter = self._clock.counter(tape.end_step, self.on_optimizer_end, tape.backwards)
        if self.counter is not None:
            self.tape = tape

    def _begin_bare(self) -> bool:
        """The step that has just begun is timed with next to no hooks, if steps are short and alike; true also if
        that will be known after a few more steps."""
        stretch, watch = self._free.stretch, self._watch
        if stretch is None or watch is None:
            return False
        if self._regular is None:
            if watch.wants_more:
                return True
            self._regular = watch.found()
        if self._regular is not None:
            bare = BareSteps(
                self, self._regular, self._meter, self._clock, stretch, self._attached, self._left,
                bool(self._devices), partial(self._keep_line, self._stage), self._tape_is_full,
                None if self._sampling is None or self._stage in BASELINES
                else BareMarks(self._sampling, self._clock.thread),
            )  # fmt: skip
            if bare.begin():
                self._was_bare = True
                self.bare, self.counter = bare, bare.counter or NOTHING
                self.exchange(self, self.counter, bare.before)
                return True
        self._watch = None
        return False

    def end_bare_steps(self) -> None:
        """A step does something else than those before it."""
        self._end_tape()
        self._regular, self._watch = None, StepWatch(whole=False)

    def _tape_is_full(self) -> None:
        tape, stretch = self.tape or self.bare, self._free.stretch
        assert tape is not None
        self._left = tape.left
        self._follow_stage(0, 0)
        tape.left = self._left
        if self._left <= 0 and stretch is not None:
            stretch.finish()  # before the steps are worked out, which is not part of their time
        self._count_by_clock()
        if self._left <= 0:
            self._next_stage()
        self._begin_step(0 if self._over else time.perf_counter_ns())
        self._begin_tape()

    def _end_tape(self) -> None:
        """The events of steps are worked out as they happen again."""
        if self.tape is not None or self.bare is not None:
            self._count_by_clock()

    def _count_by_clock(self) -> None:
        """From now on each step is examined again."""
        self.counter = self._late = None
        tape, bare = self.tape, self.bare
        self.tape = self.bare = None
        if tape is not None:
            self._left = tape.left
            tape.work_out()
        if bare is not None:
            self._left = bare.left
            bare.work_out()
            self._regular = bare.regular
        self._clock.without_counter()

"""What happens within a step of a recorded training: what its hooks call. What they call is guarded (see `session`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from ..base.guard import guarded
from ..model.samples import sampled
from ..phases.phase_names import DATA
from .session_state import SessionState


class StepEvents(SessionState):
    """A session, as the hooks within a step see it."""

    def _close_window(self) -> None:
        raise NotImplementedError

    def _end_tape(self) -> None:
        raise NotImplementedError

    @guarded
    def on_backward(self, root: Any = None) -> Callable[[], None] | None:
        """A backward pass begins; the returned function is called at its end."""
        if not self._clock.is_here():
            return None
        if self._windows.asked_to_close is not None:
            self._close_if_asked()
        self._clock.backward_begins()
        self._meter.backward(time.perf_counter_ns())
        if self._sampling is not None:
            self._sampling.mark("backward")
        phases, ranges = self._meter.phases, self._attached.ranges
        depth = phases.backward() if phases.marked else 0
        if not ranges.listening:
            return partial(self._backward_ended, depth)
        close = ranges.open("backward")
        self._training.backward(root)

        def ended() -> None:
            if close is not None:
                close()
            self._backward_ended(depth)

        return ended

    @guarded
    def _backward_ended(self, depth: int) -> None:
        """depth: what the phase's beginning has returned; 0 where no phases are marked."""
        if depth:
            self._meter.phases.backward_ended(depth)
        if self._sampling is not None:
            self._sampling.mark("backward_end")
        self._clock.backward_ends()

    @guarded
    def on_fetch(self, batches: Any) -> Callable[[Any], None] | None:
        """A batch is requested; the returned function is called with it. batches: the DataLoader's iterator."""
        if not self._clock.is_here():
            return None
        if self._windows.asked_to_close is not None:
            self._close_if_asked()
        if not self._training.known:
            self._training.meet(batches=batches)
        begun = time.perf_counter_ns()
        if self._sampling is not None:
            self._sampling.mark("data")
        phases, ranges = self._meter.phases, self._attached.ranges
        depth = 0
        if phases.marked:
            phases.fetching()
            depth = phases.enter(DATA)
        if not ranges.listening:
            return partial(self._fetched, begun, depth, batches)
        close = ranges.open("data")

        def fetched(batch: Any) -> None:
            if close is not None:
                close()
            self._fetched(begun, depth, batches, batch)

        return fetched

    @guarded
    def _fetched(self, begun: int, depth: int, batches: Any, batch: Any) -> None:
        """begun: when the batch was requested; depth: as for `_backward_ended`."""
        if depth:
            self._meter.phases.leave(depth)
        if self._sampling is not None:
            self._sampling.mark("data_end")
        self._meter.fetched(time.perf_counter_ns() - begun)
        samples = None
        if batch is not None:
            samples = sampled.of_batch(batches)
            self._meter.work.fetched(batch)
            self._meter.samples.fetched(samples)
        if self._watch is not None:
            self._watch.fetched(batches, batch, samples)

    def batch_arrived(self, begun: int, batches: Any, batch: Any) -> None:
        """A batch has arrived that bare steps do not take, or none; begun: when it was requested."""
        self._fetched(begun, 0, batches, batch)

    @guarded
    def on_call(self, arguments: Any) -> None:
        """The model is called."""
        if not self._clock.is_here():
            return
        if self._training.is_in_training_mode:
            self._meter.trained(time.perf_counter_ns())
            if self._meter.phases.marked:
                self._meter.phases.trained()
            if self._sampling is not None:
                self._sampling.mark("forward")
            work, new = self._meter.work.of_call(arguments)
            self._meter.work.add_call(work, new)
            if self._watch is not None:
                self._watch.called(work, arguments)
        else:
            self._evaluated()

    def _evaluated(self) -> None:
        self._end_tape()
        self._meter.evaluated()
        if self._watch is not None:
            self._watch.evaluated()

    @guarded
    def on_evaluation(self) -> None:
        """The source of the steps says that the model is evaluated."""
        if self._clock.is_here():
            self._evaluated()

    @guarded
    def on_profiler_begin(self) -> None:
        """A profiler is about to begin; if it is not ours, ours stops for it."""
        if self._clock.thread == get_ident():
            self._end_tape()
        elif (noted := self.tape or self.bare) is not None:
            noted.end_soon()
        self._may_be_profiled = True
        if self._windows.must_close_for_another():
            self._make_room()

    def _make_room(self) -> None:
        self._windows.make_room()
        self._left = 0
        self._close_window()

    def _close_if_asked(self) -> None:
        """A profiler of another thread waits for ours to end."""
        if self._windows.open is not None:
            self._make_room()
        self._windows.room_made()

    def optimizer_range(self) -> Callable[[], None] | None:
        """Opens the range of an optimizer's step, where a tool listens."""
        if self.ended or not (self._attached.ranges.listening or self._sampling) or not self._clock.is_here():
            return None
        if self._sampling is not None:
            self._sampling.mark("optimizer")
        return self._attached.ranges.open("optimizer")

    def follow_phases(self) -> None:
        """A phase is marked: steps are not only noted any more."""
        self._end_tape()

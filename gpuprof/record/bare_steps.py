"""Times steps with next to no hooks: how long each waited for its batches, the shape of one tensor of each, and its
end.

A step of the baseline must take as long as without us. Code that runs once in a step is cold: a call that takes 0.1 µs
in a loop takes some microseconds there. Where steps are short and known to be alike (`regular_steps`), the hooks of the
model, of the backward pass, of the sampler and of the fetcher are removed while they are timed; what those would
have noted follows from what the watched steps did. Anything irregular puts them back at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from .attached import Attached
from .batch import BatchWork
from .guard import came_from_signal_handler, failed
from .regular_steps import Regular, Shape
from .step_clock import OPTIMIZER, StepClock
from .step_meter import Ended, StepMeter
from .stretch import RESERVE, Stretch
from .tape import KEPT_NS, MOST_EVENTS
from .timing import NO_TASK, NOT_READ, capturing_check, graph_task

Batch = tuple[int, Shape, BatchWork | None]
Used = tuple[Shape, BatchWork | None]
"""A batch that the model has not been called with yet."""


class BareSteps:
    """Consecutive steps, from the beginning of one; used in place of a `Tape`.

    owner: the session. regular: what each step does. left: steps until it is full. uses_gpu: lines are not made before
    it is full. add_line, full: as for `Tape`.
    """

    def __init__(
        self, owner: Any, regular: Regular, meter: StepMeter, clock: StepClock, stretch: Stretch, attached: Attached,
        left: int, uses_gpu: bool, add_line: Callable[[int, Ended], None], full: Callable[[], None],
    ) -> None:  # fmt: skip
        self._owner, self.regular, self._meter, self._clock, self._stretch = owner, regular, meter, clock, stretch
        self._attached, self._add_line, self._full = attached, add_line, full
        self.thread, self.left = clock.thread, left
        self._until_ns = 0 if uses_gpu else perf_counter_ns() + KEPT_NS
        self._batches: list[Batch] = []
        """(ns that it was waited for, shape, what its values say if they were read) of each batch."""
        self._ends: list[tuple[Any, ...]] = []
        self._of_step: list[int] = []
        """Not empty if the current step has fetched a batch."""
        self._optimizer: int | None = None
        """Id of the optimizer that ends steps; None where a trainer or Recorder ends them."""
        self._is_over = False
        self.ended: Callable[[Any], bool] = lambda _: False
        """Called at the end of a step, with the optimizer that has done its step if that ends it. False where it is not
        one of these steps."""

    def begin(self) -> bool:
        """Removes the hooks; returns whether that was possible."""
        if self._clock.source == OPTIMIZER:
            self._optimizer = self._clock.begin_bare(self._of_step)
            if self._optimizer is None:
                return False
        if not self._attached.rest(self._fetching):
            self._clock.without_counter()
            return False
        self._meter.work.reads = False
        self._meter.work.knows(self.regular.usual)
        self.ended = self._ending()
        return True

    # -- what happens in a step

    def _fetching(self, fetch: Any, usual: Any) -> Any:
        """A function in place of a loader's `__next__`, which is `fetch`; usual: the one that does everything."""
        now, identity, thread = perf_counter_ns, get_ident, self.thread
        known, key, most = self.regular.iterator, self.regular.key, self.regular.fetches
        batches, of_step = self._batches, self._of_step
        ration, read = self._meter.work.ration, self._meter.work.rationed

        def wrapper(iterator: Any) -> Any:
            if identity() != thread:
                return fetch(iterator)
            if self._is_over:  # other code has wrapped this function
                return usual(iterator)
            if known() is not iterator or len(of_step) >= most:
                self._owner.end_bare_steps()
                return usual(iterator)
            begun = now()
            batch = None
            try:
                batch = fetch(iterator)
                ended = now()
                shape = (batch if key is None else batch[key]).shape
                batches.append((ended - begun, shape, read(batch, ended) if ended >= ration.next_ns else None))
                of_step.append(ended)
            except Exception as error:
                if batch is None:  # the loader's own: it has no more
                    self._odd(begun, iterator, None)
                    raise
                if came_from_signal_handler(error):
                    self._owner.close()
                    raise
                self._odd(begun, iterator, batch)
            return batch

        return wrapper

    def _odd(self, begun_ns: int, iterator: Any, batch: Any) -> None:
        """A batch unlike the others has arrived, or none."""
        self._owner.end_bare_steps()
        self._owner.batch_arrived(begun_ns, iterator, batch)

    def _ending(self) -> Callable[[Any], bool]:
        """The function at the end of a step. Everything is in one function, as each further call takes microseconds."""
        clock, meter, stretch, of_step, ends = self._clock, self._meter, self._stretch, self._of_step, self._ends
        only, thread, identity, now, task = self._optimizer, self.thread, get_ident, perf_counter_ns, graph_task()
        captures, capturing, ops = clock.captures(), capturing_check(), meter.ops_followed
        memory, lumps, batches = meter.memory.ration, meter.lumps, self._batches
        on_gpu, made, marks, current, record = (
            stretch.on_gpu, stretch.made, stretch.marks, stretch.stream, stretch.record,
        )  # fmt: skip
        device, stream_of = current.readers()

        def ended(optimizer: Any) -> bool:
            if only is not None and (
                id(optimizer) != only or identity() != thread or task() != NO_TASK or (captures and capturing())
            ):
                return False
            if not of_step:
                self._owner.end_bare_steps()
                return False
            try:
                at = now()
                clock.step += 1
                if on_gpu:
                    if len(made) > RESERVE and stream_of(device()) == current.known:
                        event = made.pop()
                        record(event, current.stream)
                        marks.append(event)
                    else:
                        stretch.mark()
                stretch.step_ns.append(at - stretch.step_begun_ns)
                self.left -= 1
                of_step.clear()
                begun = stretch.step_begun_ns = now()
                ends.append((
                    clock.step, at, ops(), len(batches), lumps.take() if lumps.ns else None,
                    meter.memory.read(at) if on_gpu and at >= memory.next_ns else None, begun,
                ))  # fmt: skip
                if self.left <= 0 or len(ends) > MOST_EVENTS or 0 < self._until_ns < at:
                    self._full()
            except Exception as error:
                failed(self._owner, error)
            return True

        return ended

    # -- afterwards

    def drop(self) -> None:
        """In a forked child: nothing is noted any more."""
        self._is_over = True

    def end_soon(self) -> None:
        """It is full at the end of this step. May be called on any thread."""
        self._until_ns = 1

    def work_out(self) -> None:
        """Puts the hooks back, hands what was noted to the meter, and makes the steps' lines."""
        self._is_over = True
        self._attached.resume()
        offset_ns = time.time_ns() - perf_counter_ns()
        pending = deque[Used]((shape, None) for shape in self.regular.ahead)
        given = 0
        for number, at, ops, until, lumps, memory, begun in self._ends:
            self._give(self._batches[given:until], pending, used=until - given)
            given = until
            self._add_line(number, Ended(at, at + offset_ns, ops, lumps or {}, memory or NOT_READ))
            self._meter.begin(begun)
        rest = self._batches[given:]
        # Whatever ended these steps, mostly an unlike batch, came after the passes of the batches before it.
        self._give(rest, pending, len(rest) if self.regular.alternates or len(rest) >= self.regular.fetches else 0)
        self.regular = replace(self.regular, ahead=tuple(shape for shape, _ in pending))

    def _give(self, batches: list[Batch], pending: deque[Used], used: int) -> None:
        """Hands one step's batches to the meter, and its calls and backward passes. used: how many batches of the step
        the model was trained on."""
        meter, regular = self._meter, self.regular
        for waited_ns, shape, counted in batches:
            meter.fetched(waited_ns)
            meter.work.add_batch(None if regular.sees_calls else counted or regular.work_of(shape))
            meter.samples.fetched(regular.samples_of(shape))
            pending.append((shape, counted))
        at = meter.begun_ns
        if used and regular.sees_calls:
            for work, shape in self._calls(pending, used):
                meter.work.add_bare_call(work, shape)
        for _ in range(regular.passes * used // regular.fetches):
            meter.backward(at)

    def _calls(self, pending: deque[Used], used: int) -> list[tuple[Any, Shape]]:
        """The work and shape of each call with this many batches."""
        regular = self.regular
        batches = [pending.popleft() for _ in range(min(used, len(pending)))]
        if regular.calls is None:
            return [(counted or regular.work_of(shape), shape) for shape, counted in batches]
        shapes = [shape for shape, _ in batches]
        is_usual = all(shape in regular.usual for shape in shapes)
        return [(work if is_usual else None, shapes[0] if shapes else ()) for work in regular.calls]

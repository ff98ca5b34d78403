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

from ..base.guard import came_from_signal_handler, failed
from ..base.optimizer_hooks import NOTHING, Counter
from ..base.timing import NO_TASK, NOT_READ, Ration, capturing_check, graph_task
from ..model.batch import BatchWork
from .attached import Attached
from .bare_marks import BareMarks
from .regular_steps import Regular, Shape
from .step_clock import OPTIMIZER, StepClock
from .step_meter import Ended, StepMeter
from .stretch import RESERVE, Stretch
from .tape import MOST_EVENTS, WORKED_OUT_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Share, WholeNs


Batch = tuple[int, Shape, BatchWork | None]
Used = tuple[Shape, BatchWork | None]
"""A batch that the model has not been called with yet."""
READING_SHARE: Assumed[Share] = 0.001
"""Largest share of the time that is spent reading values of batches: a third of what other timed steps may."""
NEVER_NS: Convention[WholeNs] = 1 << 62


class BareSteps:
    """Consecutive steps, from the beginning of one; used in place of a `Tape`.

    owner: the session. regular: what each step does. left: steps until it is full. uses_gpu: lines are not made before
    it is full. add_line, full: as for `Tape`.
    """

    def __init__(
        self, owner: Any, regular: Regular, meter: StepMeter, clock: StepClock, stretch: Stretch, attached: Attached,
        left: int, uses_gpu: bool, add_line: Callable[[int, Ended], None], full: Callable[[], None],
        marks: BareMarks | None = None,
    ) -> None:  # fmt: skip
        self._marks = marks
        self._owner, self.regular, self._meter, self._clock, self._stretch = owner, regular, meter, clock, stretch
        self._attached, self._add_line, self._full = attached, add_line, full
        self.thread, self._planned = clock.thread, min(left, MOST_EVENTS)
        self._left = left
        self._until_ns = NEVER_NS if uses_gpu else perf_counter_ns() + WORKED_OUT_NS
        self._first, self._ops = clock.step, meter.ops_followed()
        self._batches: list[Batch] = []
        """(ns that it was waited for, shape, what its values say if they were read) of each batch."""
        self._most: list[int] = [regular.fetches]
        """The largest number of batches by the end of the current step."""
        self._ends: list[tuple[int, int, dict[str, int] | None, int]] = []
        """Of each step: its end, the batches so far, what else was done, and the beginning of the next step."""
        self._handed = 0
        """Steps whose durations were handed to the stretch."""
        self._begun: list[int] = []
        """Not empty if the current step has begun its work; used only once the steps are over."""
        self._optimizer: int | None = None
        """Id of the optimizer that ends steps; None where a trainer or Recorder ends them."""
        self._is_over = False
        self.ended: Callable[..., bool] = lambda *_: False
        """Called at the end of a step, with the optimizer whose step ends it, if one does. False if it is not one of
        these steps."""

    def begin(self) -> bool:
        """Removes the hooks; returns whether that was possible."""
        if self._clock.source == OPTIMIZER:
            self._optimizer = self._clock.begin_bare(self._ends, self._begun)
            if self._optimizer is None:
                return False
        passing = None if self._marks is None else self._marks.passing
        if not self._attached.rest(self._fetching, self._calling(), passing):
            self._clock.without_counter()
            return False
        if self._optimizer is None:
            self._clock.note_steps(self._ends)
        self._meter.work.reads = False
        self._meter.work.knows(self.regular.usual)
        self.ended = self._ending()
        return True

    @property
    def counter(self) -> Counter | None:
        """The function called after an optimizer's step, if that ends steps."""
        return None if self._optimizer is None else self.ended

    @property
    def before(self) -> Counter:
        """The function called before an optimizer's step."""
        return NOTHING if self._marks is None else self._marks.before_optimizer()

    @property
    def left(self) -> int:
        """Steps that are still to come."""
        return self._left - len(self._ends)

    @left.setter
    def left(self, left: int) -> None:
        self._left = left + len(self._ends)

    # -- what happens in a step

    def _fetching(self, fetch: Any, usual: Any) -> Any:
        """A replacement for a loader's `__next__`, which is `fetch`; usual: the one that does everything."""
        now, known, key, batches, most = (
            perf_counter_ns,
            self.regular.iterator,
            self.regular.key,
            self._batches,
            self._most,
        )
        ration, marks = Ration(READING_SHARE), None if self._marks is None else self._marks.noted

        def wrapper(iterator: Any) -> Any:
            if known() is not iterator or len(batches) >= most[0]:
                return self._fetch_otherwise(iterator, fetch, usual)
            begun = now()
            batch = None
            try:
                batch = fetch(iterator)
                ended = now()
                if marks is not None:
                    marks.extend((("data", begun), ("data_end", ended)))
                shape = (batch if key is None else batch[key]).shape
                batches.append(
                    (ended - begun, shape, self._read(batch, ended, ration) if ended >= ration.next_ns else None)
                )
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

    def _fetch_otherwise(self, iterator: Any, fetch: Any, usual: Any) -> Any:
        """A batch is requested from another loader, or one more than usual."""
        if get_ident() != self.thread:
            return fetch(iterator)
        if not self._is_over:  # else other code has wrapped this function
            self._owner.end_bare_steps()
        return usual(iterator)

    def _calling(self) -> Callable[[Any, Any, Any], None] | None:
        """The function called before each call of the model if there is no DataLoader, or the call is marked; None if
        calls are not seen, or need not be."""
        key, batches, most, identity, thread = self.regular.key, self._batches, self._most, get_ident, self.thread
        marks, has_loader = None if self._marks is None else self._marks.noted, self.regular.has_loader
        if not self.regular.sees_calls or (has_loader and marks is None):
            return None
        is_named, now = isinstance(key, str), perf_counter_ns

        def note(model: Any, arguments: Any, keywords: Any) -> None:
            try:
                if model.training and identity() == thread and (has_loader or len(batches) < most[0]):
                    if not has_loader:
                        shape = () if key is None else (keywords if is_named else arguments)[key].shape
                        batches.append((0, shape, None))
                    if marks is not None:
                        marks.append(("forward", now()))
                    return
            except Exception:
                pass  # it is called differently than before
            self._call_otherwise(arguments, keywords)

        return note

    def _call_otherwise(self, arguments: Any, keywords: Any) -> None:
        if get_ident() == self.thread:
            self._owner.end_bare_steps()
            self._owner.on_call((keywords, arguments))

    def _read(self, batch: Any, now_ns: int, ration: Ration) -> BatchWork | None:
        """What the values of a batch say. If they say nothing, later batches are not read."""
        work = self._meter.work.rationed(batch, now_ns, ration)
        if work is None:
            ration.next_ns = NEVER_NS
        return work

    def _odd(self, begun_ns: int, iterator: Any, batch: Any) -> None:
        """A batch unlike the others has arrived, or none."""
        if self._marks is not None:
            self._marks.noted.append(("data", begun_ns))
        self._owner.end_bare_steps()
        self._owner.batch_arrived(begun_ns, iterator, batch)

    def _ending(self) -> Callable[..., bool]:
        """The function at the end of a step. Everything is in one function, as each further call takes microseconds."""
        only, task, now, batches, most, ends = (
            self._optimizer, graph_task(), perf_counter_ns, self._batches, self._most, self._ends,
        )  # fmt: skip
        each, lumps, otherwise, stretch = self.regular.fetches, self._meter.lumps, self._not_noted, self._stretch
        on_gpu, made, marks, current, record = (
            stretch.on_gpu, stretch.made, stretch.marks, stretch.stream, stretch.record,
        )  # fmt: skip
        device_of, stream_of = current.readers()
        device, thread, identity = device_of() if on_gpu else None, self.thread, get_ident

        def ended(optimizer: Any = None, _: Any = None, __: Any = None) -> bool:
            if identity() != thread if only is None else (id(optimizer) != only or task() != NO_TASK):
                return otherwise(optimizer)
            until = len(batches)
            if most[0] < until or (each and until + each == most[0]):
                return self._without_batch(optimizer)
            try:
                at = now()
                if on_gpu:
                    # While the default stream is current, no CUDA graph is being captured.
                    if len(made) > RESERVE and current.is_default and stream_of(device) == current.known:
                        event = made.pop()
                        record(event, current.stream)
                        marks.append(event)
                    elif not self._mark():
                        return otherwise(optimizer)
                most[0] = until + each
                ends.append((at, until, lumps.take() if lumps.ns else None, now()))
                if at > self._until_ns or len(ends) >= self._planned:
                    self._fill()
            except Exception as error:
                failed(self._owner, error)
            return True

        return ended

    def _not_noted(self, optimizer: Any) -> bool:
        if optimizer is not None:
            self._owner.on_optimizer_end(optimizer)
        return False

    def _without_batch(self, optimizer: Any) -> bool:
        """A step ends that fetched no batch, or did not call the model."""
        if not self._is_over and get_ident() == self.thread:
            self._owner.end_bare_steps()
        return self._not_noted(optimizer)

    def _mark(self) -> bool:
        """Marks the end of a step if that takes more than usual; returns whether that is possible."""
        if self._clock.captures() and capturing_check()():
            return False
        self._stretch.mark()
        return True

    def _fill(self) -> None:
        if get_ident() == self.thread:
            self._hand_durations()
            self._full()

    def _hand_durations(self) -> None:
        """Hands the durations of the steps to the stretch, and their marks to the sampling."""
        stretch = self._stretch
        new = self._ends[self._handed :]
        for at, _, _, begun in new:
            stretch.step_ns.append(at - stretch.step_begun_ns)
            stretch.step_begun_ns = begun
        self._handed = len(self._ends)
        if self._marks is not None:
            self._marks.hand_over([at for at, *_ in new])

    # -- afterwards

    def drop(self) -> None:
        """In a forked child: nothing is noted any more."""
        self._is_over = True
        self._most[0] = -1

    def end_soon(self) -> None:
        """It is full at the end of this step. May be called on any thread."""
        self._until_ns = 0

    def work_out(self) -> None:
        """Puts the hooks back, hands what was noted to the meter, and makes the steps' lines."""
        self.drop()
        self._attached.resume()
        self._hand_durations()
        offset_ns = time.time_ns() - perf_counter_ns()
        pending = deque[Used]((shape, None) for shape in self.regular.ahead)
        given, last = 0, len(self._ends) - 1
        # Steps are alike, so the function that counts ops need not be called in each.
        ops = max(self._meter.ops_followed() - self._ops, 0) if get_ident() == self.thread else 0
        for i, (at, until, lumps, begun) in enumerate(self._ends):
            self._give(self._batches[given:until], pending, used=until - given)
            given = until
            so_far = self._ops + ops * (i + 1) // (last + 1)
            memory = self._meter.memory.read(perf_counter_ns()) if i == last and self._stretch.on_gpu else NOT_READ
            self._add_line(self._first + 1 + i, Ended(at, at + offset_ns, so_far, lumps or {}, memory))
            self._meter.begin(begun)
        rest = self._batches[given:]
        if rest or not self.regular.fetches:
            self._begun.append(1)
        # Whatever ended these steps, mostly an unlike batch, came after the passes of the batches before it.
        self._give(rest, pending, len(rest) if self.regular.alternates or len(rest) >= self.regular.fetches else 0)
        self.regular = replace(self.regular, ahead=tuple(shape for shape, _ in pending))

    def _give(self, batches: list[Batch], pending: deque[Used], used: int) -> None:
        """Hands one step's batches to the meter, and its calls and backward passes. used: how many batches of the step
        the model was trained on."""
        meter, regular = self._meter, self.regular
        for waited_ns, shape, counted in batches:
            if regular.has_loader:
                meter.fetched(waited_ns)
                meter.work.add_batch(None if regular.sees_calls else counted or regular.work_of(shape))
                meter.samples.fetched(regular.samples_of(shape))
            pending.append((shape, counted))
        at = meter.begun_ns
        if used and regular.sees_calls:
            for work, shape in self._calls(pending, used):
                meter.work.add_bare_call(work, shape)
        for _ in range(regular.passes * used // regular.fetches if regular.fetches else regular.passes):
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

"""Notes what happens in timed steps, in the fewest calls, and works it out once they are over.

A step of the baseline must take as long as without us. Code that runs once in a step is cold: a call that takes 0.1 µs
in a loop takes some microseconds there. So the events are noted as tuples; the steps' lines are made from them after
the stage, by what follows the steps of the other stages as they happen.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Any

from ..base.guard import failed
from ..base.timing import NOT_READ, synchronise
from ..model.samples import sampled
from .step_clock import StepClock
from .step_meter import Ended, StepMeter
from .stretch import Stretch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Entries, WholeNs

FETCHED, CALLED, BACKWARD, ENDED = range(4)
MOST_EVENTS: Convention[Entries] = 50_000
MOST_OF_STEP: Convention[Entries] = 200_000
"""A step with more events, such as one that reads the whole dataset, hands them over before it ends: they take about
300 bytes each."""
WORKED_OUT_NS: Assumed[WholeNs] = 1_000_000_000
"""Without a GPU, events are worked out this often: a killed process loses no more than this. With one, the lines of a
stage are written at its end, as they need times of the GPU."""


class Tape:
    """The events of consecutive steps, from the beginning of one. `work_out` is called once, when it is `full` or the
    session has something else to do in a step.

    owner: the session, which `failed` ends. left: steps until it is full. synchronised: GPUs that each step waits for
    at its end. add_line: called with the number of each step and its end. full: called at the end of a step, in place
    of the beginning of the next.
    """

    def __init__(
        self, owner: Any, meter: StepMeter, clock: StepClock, stretch: Stretch | None, left: int, uses_gpu: bool,
        synchronised: list[int], add_line: Callable[[int, Ended], None], full: Callable[[], None],
    ) -> None:  # fmt: skip
        self._owner, self._meter, self._clock, self._stretch = owner, meter, clock, stretch
        self.thread, self.left = clock.thread, left
        self._synchronised, self._add_line, self._full = synchronised, add_line, full
        self._events: list[tuple[Any, ...]] = []
        self._until_ns = 0 if uses_gpu else perf_counter_ns() + WORKED_OUT_NS
        self._is_over = False
        self.backwards: list[int] = []
        """Beginnings of the backward passes of this step."""

    # -- what happens in a step

    def fetched(self, begun_ns: int, batches: Any, batch: Any) -> None:
        """A batch has arrived, which was requested at `begun_ns`; None: there are no more."""
        try:
            waited_ns = perf_counter_ns() - begun_ns
            if batch is None:
                self._events.append((FETCHED, waited_ns, False, None, None))
            else:
                work = self._meter.work.of_batch(batch)
                self._events.append((FETCHED, waited_ns, True, work, sampled.of_batch(batches)))
            if self._is_over or len(self._events) > MOST_OF_STEP:
                self._hand_over()
        except Exception as error:
            failed(self._owner, error)

    def called(self, arguments: Any) -> None:
        """The model is called to train."""
        try:
            self._events.append((CALLED, perf_counter_ns(), *self._meter.work.of_call(arguments)))
            if len(self._events) > MOST_OF_STEP:
                self._hand_over()
        except Exception as error:
            failed(self._owner, error)

    def backward(self) -> None:
        """A backward pass begins in the training's thread."""
        now = perf_counter_ns()
        self.backwards.append(now)
        self._events.append((BACKWARD, now))

    def end_step(self, now: int) -> None:
        """A step, which the clock has counted, ends now, and the next begins."""
        try:
            if self._synchronised:
                synchronise(self._synchronised)
                now = perf_counter_ns()
            events, meter, stretch = self._events, self._meter, self._stretch
            self.backwards.clear()
            lumps = meter.lumps.take() if meter.lumps.ns else None
            memory = meter.memory.read(now) if now >= meter.memory.ration.next_ns else None
            unix_ns, ops = time_ns(), meter.ops_followed()
            if stretch is not None:
                stretch.end_step(now)
            self.left -= 1
            is_full = self.left <= 0 or len(events) > MOST_EVENTS or 0 < self._until_ns < now
            work, begun = meter.work, perf_counter_ns()
            if work.reading_ns or begun >= work.ration.next_ns:
                work.begin(begun, every=False)
                begun = perf_counter_ns()
            else:
                work.reads = False
            if stretch is not None:
                stretch.step_begun_ns = begun
            events.append((ENDED, self._clock.step, now, unix_ns, ops, lumps, memory, begun))
            if is_full:
                self._full()
        except Exception as error:
            failed(self._owner, error)

    # -- afterwards

    def end_soon(self) -> None:
        """It is full at the end of this step. May be called on any thread."""
        self._until_ns = 1

    def work_out(self) -> None:
        """Hands the events to the meter, and makes the steps' lines. Nothing is noted from now on."""
        self._is_over = True
        self._hand_over()

    def _hand_over(self) -> None:
        events, self._events = self._events, []
        meter = self._meter
        for event in events:
            kind = event[0]
            if kind == FETCHED:
                _, waited_ns, is_there, work, samples = event
                meter.fetched(waited_ns)
                if is_there:
                    meter.work.add_batch(work)
                    meter.samples.fetched(samples)
            elif kind == CALLED:
                meter.trained(event[1])
                meter.work.add_call(event[2], event[3])
            elif kind == BACKWARD:
                meter.backward(event[1])
            else:
                _, number, now, unix_ns, ops, lumps, memory, begun = event
                self._add_line(number, Ended(now, unix_ns, ops, lumps or {}, memory or NOT_READ))
                meter.begin(begun)

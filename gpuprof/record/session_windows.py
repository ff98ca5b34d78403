"""The windows of a session: the steps that torch.profiler or Nsight Systems records."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

from ..runfile import NSYS
from . import forks
from .attached import Attached
from .capture import Capture
from .enough_steps import EnoughSteps
from .journal import Journal
from .memory import gpu_bytes_to_spare
from .nodes import NodeExchange
from .observer import observer
from .other_profilers import profiler_is_alive
from .schedule import STEPS_AFTER
from .step_clock import StepClock
from .timing import synchronise
from .window import SHAPES_GPU_BYTES, Window, room_for_window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, Steps


PATIENCE_STEPS: Assumed[Steps] = 100
"""Steps that a window waits for the program's own profiler to end before it gives up."""
HANDOVER_S: Assumed[Seconds] = 30.0
"""How long a profiler of another thread waits for ours to end, which takes until the end of a step."""

BASELINES = ("baseline_free", "baseline_sync")
Stage = tuple[str, int]
"""Its name, and its steps."""


class Windows:
    """The windows of one process, of which one at most is open. shapes: whether to record those of tensors."""

    def __init__(
        self, folder: Path, rank: int, clock: StepClock, journal: Journal, attached: Attached, shapes: bool
    ) -> None:
        self._folder, self._rank, self._clock, self._journal = folder, rank, clock, journal
        self._attached, self._shapes = attached, shapes
        self.open: Window | Capture | None = None
        self.recorded = False
        """Whether a profiler of ours has run in this process."""
        self.enough = EnoughSteps()
        self._waited = 0
        self._asked_to_close: threading.Event | None = None

    # -- beginning

    def begin(self, queue: list[Stage], warm_up: int, devices: list[int]) -> Stage:
        """Opens the window that is first in the queue, or not yet, or not at all; the stage to enter in place of its
        warm-up."""
        name, steps = queue[0]
        if profiler_is_alive():
            self._waited += 1
            if self._waited > PATIENCE_STEPS:
                return self._skip(queue, "the program's own profiler did not end: gpuprof recorded nothing")
            if self._waited == 1:
                self._journal.note("the program's own profiler is active: gpuprof waits for it to end")
            queue.insert(0, ("warmup", warm_up))
            return "settle", 1
        why = room_for_window(self._folder)
        if why:
            return self._skip(queue, f"nothing is recorded: {why}")
        queue.pop(0)
        first, ranges = self._clock.step + 1, self._attached.ranges
        if name == NSYS:
            # The ranges are hung up in its warm-up.
            self.open = Capture(first, warm_up, steps, ranges, devices)
            self._attached.hook_model(ranges=True)
            self.open.start()
            self._tell(steps, "Nsight Systems", first=True)
        else:
            shapes = name == "trace" and self._has_room_for_shapes()
            self.open = Window(self._folder, self._rank, name, first, warm_up, steps, ranges, shapes=shapes)
            forks.prepare()
            self.recorded = True
            ranges.record(True)
            self._attached.hook_model(ranges=True)
            names = {"gpuprof_run": self._folder.name, "gpuprof_rank": self._rank}
            self.open.start({key: json.dumps(value) for key, value in names.items()})
            kinds = {"trace": "shapes" if shapes else "no shapes", "stacks": "Python stacks", "memory": "memory"}
            self._tell(steps, kinds[name], name == "trace")
        # Warm-up and window are one stage to count, and two in the lines.
        return "warmup", warm_up + steps

    def _has_room_for_shapes(self) -> bool:
        spare = gpu_bytes_to_spare()
        if self._shapes and spare is not None and spare < SHAPES_GPU_BYTES:
            self._journal.note(f"shapes are left out: only {spare / 1e9:.1f} GB of GPU memory are free")
            return False
        return self._shapes

    def _tell(self, steps: int, kind: str, first: bool) -> None:
        ns = self._journal.baseline_ns() if first else None
        known = "" if ns is None else f"; unprofiled {ns / 1e6:,.1f} ms a step"
        self._journal.tell(f"step {self._clock.step + 1}: recording {steps} steps with {kind}{known}")

    def _skip(self, queue: list[Stage], why: str) -> Stage:
        self._journal.note(why)
        queue.clear()
        return "after", STEPS_AFTER

    def add_step(self, stage: str, tokens: int | None, ops: int) -> None:
        """A step has ended, of this stage."""
        if stage in BASELINES:
            self.enough.timed(tokens, ops)
        elif stage == "trace":
            self.enough.recorded(tokens, ops)

    def step(self, window: Window | Capture, may_be_short: bool) -> bool:
        """A step of the window has ended; whether the window is closed now. may_be_short: of steps with many ops it may
        close before its planned end."""
        if not isinstance(window, Window):
            return window.step(self._clock.step)
        planned = window.steps
        usual_ns = self._journal.baseline_ns() or 0.0
        enough = may_be_short and window.name == "trace" and self.enough.are_enough(planned, usual_ns)
        closed = window.step(self._clock.step, enough)
        if closed and enough and window.steps < planned:
            self._journal.log(f"{window.steps} of {planned} steps are recorded: each has many ops, and they are alike")
        return closed

    # -- pausing

    def pausable(self) -> Window | None:
        """The window at hand, if it can leave something out."""
        return self.open if isinstance(self.open, Window) and self.open.can_pause() else None

    def pause(self, window: Window, forwards: int | None, devices: list[int]) -> None:
        """Lets the window leave out what follows; or record again, after this number of forward passes of generation.
        The device has nothing to do then, so that no kernel is recorded without its launch."""
        synchronise(devices)
        if forwards is None:
            window.pause()
        else:
            window.resume(self._clock.step + 1, forwards)

    # -- the program's own profilers

    def must_close_for_another(self) -> bool:
        """A profiler is about to begin; whether it is not ours, and ours has to end now. In another thread it waits
        until ours has: a profiler can only be ended by the thread that began it."""
        here = threading.get_ident() == self._clock.thread
        if self.open is None or (self.open.busy and here):
            return False
        if not here:
            self._asked_to_close = asked = self._asked_to_close or threading.Event()
            asked.wait(HANDOVER_S)
        return here

    @property
    def asked_to_close(self) -> bool:
        """Whether a profiler of another thread waits for ours to end."""
        return self._asked_to_close is not None

    def make_room(self) -> None:
        """Notes that the window closes for a profiler of the program's own."""
        self._journal.note(
            "the program started a profiler of its own while gpuprof recorded: gpuprof's window was closed"
        )

    def room_made(self) -> None:
        """Whoever waited may go on."""
        asked, self._asked_to_close = self._asked_to_close, None
        if asked is not None:
            asked.set()

    # -- the end

    def close(self, nodes: NodeExchange | None, is_last: bool) -> bool:
        """Closes the window; whether there was one that this thread may close. is_last: the training may go on
        unprofiled."""
        if self.open is None or threading.get_ident() != self._clock.thread:
            return False
        window = self.open
        try:
            window.stop(self._clock.step)
            result = window.result
        finally:
            self.open = None
            self._attached.ranges.record(False)
        for note in window.notes:
            self._journal.note(note)
        if window.name == "memory":
            observer.end()
        if result is not None:
            self._journal.windows.append(result)
            self.tell_recorded(result, is_last)
        if nodes is not None and window.name == "trace":
            nodes.begin(None if result is not None and result["steps"] else "its window holds no step")
        gc.collect()
        return True

    def tell_recorded(self, result: dict[str, Any], is_last: bool) -> None:
        """One line of what a window holds, and how long the training stalled for it."""
        count, step = result["steps"], self._clock.step
        if not count:
            self._journal.tell(f"step {step + 1}: the recording ended within its first step")
            return
        after = "; the training continues unprofiled" if is_last else ""
        size = "" if result["bytes"] is None else f" ({result['bytes'] / 1e6:,.0f} MB)"
        stalled = f"; the training stalled {result['stop_ns'] / 1e9:.1f} s while the profiler stopped"
        self._journal.tell(f"step {step}: {count} step{'s' * (count != 1)} recorded{size}{stalled}{after}")

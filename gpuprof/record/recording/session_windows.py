"""The windows of a session: the steps that torch.profiler or Nsight Systems records."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

from ...runfile import COUNTED_VARIABLE, NSYS
from ..base.journal import Journal
from ..base.other_profilers import profiler_is_alive
from ..base.timing import synchronise
from ..job_nodes.nodes import NodeExchange
from ..steps import forks
from ..steps.attached import Attached
from ..steps.enough_steps import EnoughSteps
from ..steps.schedule import STEPS_AFTER
from ..steps.step_clock import StepClock
from ..windows.capture import Capture
from ..windows.memory import gpu_bytes_to_spare
from ..windows.observer import observer
from ..windows.window import SHAPES_GPU_BYTES, Window, room_for_window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, Steps


PATIENCE_STEPS: Assumed[Steps] = 100
"""Steps that a window waits for the program's own profiler to end before it gives up."""
HANDOVER_S: Assumed[Seconds] = 30.0
"""Seconds that another thread's profiler waits for ours, which ends at the end of a step."""

BASELINES = ("baseline_free", "baseline_sync")
Stage = tuple[str, int]
"""(name, number of steps)."""


class Windows:
    """The windows of one session; at most one is open. shapes: whether to record tensor shapes."""

    any_recorded = False
    """Whether a profiler of ours has run in this process, for this session or an earlier one."""

    def __init__(
        self, folder: Path, rank: int, clock: StepClock, journal: Journal, attached: Attached, shapes: bool
    ) -> None:
        self._folder, self._rank, self._clock, self._journal = folder, rank, clock, journal
        self._attached, self._shapes = attached, shapes
        self.open: Window | Capture | None = None
        self.recorded_before = Windows.any_recorded
        self.enough = EnoughSteps()
        self._waited = 0
        self.asked_to_close: threading.Event | None = None
        """What a profiler of another thread waits for, until ours has ended."""

    # -- beginning

    def begin(self, queue: list[Stage], warm_up: int, devices: list[int]) -> Stage:
        """Opens the first window of the queue, or delays or skips it. Returns the stage to enter: the window's warm-up,
        or another in place of it."""
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
            # The warm-up installs the ranges.
            self.open = Capture(first, warm_up, steps, ranges, devices)
            self._attached.hook_model(ranges=True)
            self.open.start()
            self._tell(steps, "Nsight Compute" if COUNTED_VARIABLE in os.environ else "Nsight Systems", first=True)
        else:
            shapes = name == "trace" and self._has_room_for_shapes()
            self.open = Window(self._folder, self._rank, name, first, warm_up, steps, ranges, shapes=shapes)
            forks.prepare()
            Windows.any_recorded = True
            ranges.record(True)
            self._attached.hook_model(ranges=True)
            names = {"gpuprof_run": self._folder.name, "gpuprof_rank": self._rank}
            self.open.start({key: json.dumps(value) for key, value in names.items()})
            kinds = {"trace": "shapes" if shapes else "no shapes", "stacks": "Python stacks", "memory": "memory"}
            self._tell(steps, kinds[name], name == "trace")
        # Warm-up and window are counted as one stage, and are two stages in steps.jsonl.
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
        """A step of the window has ended; returns whether the window is closed now. may_be_short: it may close before
        its planned end if its steps have many ops."""
        if not isinstance(window, Window):
            return window.step(self._clock.step)
        planned = window.steps
        usual_ns = self._journal.baseline_ns() or 0.0
        enough = may_be_short and window.name == "trace" and self.enough.are_enough(planned, usual_ns)
        closed = window.step(self._clock.step, enough)
        if closed and enough and window.steps < planned:
            self._journal.log(
                f"{window.steps} of {planned} steps are recorded: each has many ops, and they are similar"
            )
        return closed

    # -- pausing

    def pausable(self) -> Window | None:
        """The current window, if it can be paused."""
        return self.open if isinstance(self.open, Window) and self.open.can_pause() else None

    def pause(self, window: Window, forwards: int | None, devices: list[int]) -> None:
        """Pauses the window, or resumes it after `forwards` forward passes of generation that were left out. The device
        is idle at that moment, so that no kernel is recorded without its launch."""
        synchronise(devices)
        if forwards is None:
            window.pause()
        else:
            window.resume(self._clock.step + 1, forwards)

    # -- the program's own profilers

    def must_close_for_another(self) -> bool:
        """A profiler is about to begin; returns whether it is the program's, so that ours must end now. In another
        thread this waits until ours has ended: a profiler can only be stopped by the thread that started it."""
        here = threading.get_ident() == self._clock.thread
        if self.open is None or (self.open.busy and here):
            return False
        if not here:
            self.asked_to_close = asked = self.asked_to_close or threading.Event()
            asked.wait(HANDOVER_S)
        return here

    def make_room(self) -> None:
        """Notes that the window closes because the program starts its own profiler."""
        self._journal.note("the program started its own profiler while gpuprof recorded: gpuprof's window was closed")

    def room_made(self) -> None:
        """Lets the waiting profiler start."""
        asked, self.asked_to_close = self.asked_to_close, None
        if asked is not None:
            asked.set()

    # -- the end

    def close(self, nodes: NodeExchange | None, is_last: bool) -> bool:
        """Closes the window; returns whether there was one that this thread may close. is_last: the training continues
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
        """Prints one line: what the window holds, and how long the training stalled for it."""
        count, step = result["steps"], self._clock.step
        if not count:
            self._journal.tell(f"step {step + 1}: the recording ended within its first step")
            return
        after = "; the training continues unprofiled" if is_last else ""
        size = "" if result["bytes"] is None else f" ({result['bytes'] / 1e6:,.0f} MB)"
        stalled = f"; the training stalled {result['stop_ns'] / 1e9:.1f} s while the profiler stopped"
        self._journal.tell(f"step {step}: {count} step{'s' * (count != 1)} recorded{size}{stalled}{after}")

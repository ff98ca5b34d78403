"""What the session of a process holds, and what follows from that alone: where it is in its plan, and what it may do
next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.environment import place_among_ranks
from ..base.journal import Journal
from ..base.optimizer_hooks import NOTHING, Counter
from ..base.ranges import tool_is_listening
from ..job_nodes.nodes import NodeExchange
from ..model.training import Training
from ..phases.phase_meter import PhaseMeter
from ..stacks.sampling import Sampling
from ..steps.attached import Attached
from ..steps.bare_steps import BareSteps
from ..steps.free_timing import FreeTiming
from ..steps.regular_steps import Regular, StepWatch
from ..steps.step_clock import StepClock
from ..steps.step_meter import StepMeter
from ..steps.tape import Tape
from ..windows.window import Window
from .session_windows import Windows
from .settling import Settling
from .stall import StallWatch


class SessionState:
    """The state of the recording of one process.

    options: as `options_of` reads them. source: what says where steps end (recorder, trainer or optimizer).
    """

    def __init__(self, folder: Path, options: dict[str, Any], source: str) -> None:
        self.folder, self.options = folder, options
        self._clock = StepClock(source, self._end_step, self._meet_optimizer)
        self.rank, self.local_rank, self.world_size = place_among_ranks()
        self.ended = False
        self._journal = Journal(folder, self.rank, self._leads())
        # What the session follows.
        self._nsys = bool(self.options["nsys"])
        """Whether Nsight Systems, which was started around us, is to record."""
        listening = tool_is_listening()
        self._nsys_is_deaf = self._nsys and not listening
        # Under our own nsys, a step that is not captured counts as unprofiled: launch-bound ones take 1.08 times as
        # long as without nsys (20 pairs of processes on H200s, standard error 0.04), in the capture 1.2 to 1.5 times.
        self._under_tool = listening and not self._nsys
        self._training = Training()
        self._devices: list[int] = []
        self._meter = StepMeter()
        """The current step."""
        self._fetched_ns = self._timed_ns = 0
        """Getting batches, in the steps that are timed without a profiler; and these steps."""
        self.phases = PhaseMeter(self, self._meter.phases)
        levels = self.options["modules"]
        self._attached = Attached(self._training, self.phases, self._meter.lumps, self, levels)
        # Where in the plan we are.
        self._settling = Settling(self.options, self._training, self._meter, self.world_size)
        self._queue: list[tuple[str, int]] = [("settle", self._settling.first_steps)]
        self._stage, self._left = "", 0
        self._free = FreeTiming(self.options, self._training, self._meter, self.world_size)
        shapes = self.options["shapes"]
        self._windows = Windows(folder, self.rank, self._clock, self._journal, self._attached, shapes)
        self._planned_end: int | None = None
        self._sampling: Sampling | None = None
        self._over = False
        self._counter: Counter | None = None
        self.exchange: Callable[[Any, Counter | None, Counter], None] = _ignore
        """Called with this session when its counter changes; the last: what is called before the step of an optimizer
        while there is one."""
        self._late: Callable[[int], None] | None = None
        """Once the plan is done: called at the end of each step that a trainer or Recorder has reported; None where a
        step has to be looked at."""
        self._line_due_ns = 0
        self.tape: Tape | None = None
        """Notes the events of the baseline's steps, while nothing else has to be done with them."""
        self.bare: BareSteps | None = None
        """Times steps with next to no hooks, instead of the tape."""
        self._watch: StepWatch | None = None
        """Finds out whether that is possible; None if steps are not short, or not alike."""
        self._regular: Regular | None = None
        """What `_watch` has found."""
        self._was_bare = False
        """Whether steps were timed in this way, so that those that are sampled may be, too."""
        self._may_be_profiled = True
        """Whether a profiler may run, so that this is checked at each step: from when one begins to the next stage."""
        self._stall = StallWatch(folder, self.rank, self.world_size, lambda: self._clock.step, self._journal.tell)
        self._nodes: NodeExchange | None = None

    # -- what the session does at the end of a step, and with a call of the model

    def _end_step(self) -> None:
        raise NotImplementedError

    def on_call(self, arguments: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError

    def follow_phases(self) -> None:
        raise NotImplementedError

    @property
    def counter(self) -> Counter | None:
        """While steps are only counted: called after an optimizer's step instead of `on_optimizer_end`, which it calls
        for what it does not count. None if each step has to be looked at."""
        return self._counter

    @counter.setter
    def counter(self, counter: Counter | None) -> None:
        self._counter = counter
        self.exchange(self, counter, NOTHING)

    # -- phases of an iteration

    def is_here(self) -> bool:
        """Whether the caller is the training's thread, while steps are timed."""
        return not self._over and self._clock.is_here()

    def open_range(self, name: str) -> Callable[[], None] | None:
        """Opens a range for the tools that listen."""
        return self._attached.ranges.open(name)

    def pausable_window(self) -> Window | None:
        """The current window, if it can be paused."""
        return self._windows.pausable()

    def pause_window(self, window: Window, forwards: int | None) -> None:
        """Pauses the window; with `forwards` it records again after this number of forward passes of the generation."""
        self._windows.pause(window, forwards, self._devices)

    # -- recordings on demand

    def _leads(self) -> bool:
        """Whether this process prints for the run."""
        wanted = self.options["ranks"]
        return self.rank == min(wanted) if isinstance(wanted, list) and wanted else self.local_rank == 0

    @property
    def _step(self) -> int:
        """Number of steps that have ended."""
        return self._clock.step

    def be_quiet(self) -> None:
        """Prints nothing on stderr from now on: whoever asked for the recording reads its files."""
        self._journal.be_quiet()

    def add_note(self, text: str) -> None:
        """Adds something that the reader of the recording must know."""
        self._journal.note(text)

    @property
    def is_over(self) -> bool:
        """Whether the plan is done, so that steps are only counted."""
        return self._over

    def progress(self) -> dict[str, Any]:
        """The session's place in the plan: the stage, steps that have ended, and closed windows."""
        return {"stage": self._stage, "step": self._step, "windows": len(self._journal.windows)}

    # -- what may be done next

    def _meet_optimizer(self, optimizer: Any) -> None:
        self._training.meet(optimizer=optimizer)

    @property
    def _planned_steps(self) -> int:
        """Steps of the remaining stages; 0 while these are not known."""
        return sum(steps for _, steps in self._queue)

    def _room(self) -> int:
        """Steps of the training beyond those that are planned."""
        return self._settling.room(self._step, self._planned_steps)

    def _samples_on(self) -> bool:
        """Whether sampling may take longer than planned: it must not prevent a window."""
        return self.world_size == 1 and (not self._more_windows() or self._room() > 0)

    def _may_be_short(self) -> bool:
        """Whether the window may close early. Several ranks keep to the plan, because a rank that closes its window
        earlier stalls, and the others would wait for it in their recorded steps; iterations are recorded whole."""
        return self.options["steps"] is None and self.world_size == 1 and not self._meter.phases.iteration_steps

    def _may_stop(self) -> bool:
        """Whether everything is recorded, including unprofiled steps that continue after the windows. Several ranks end
        at the planned step, whatever happened to their windows: if one ended earlier, the others would wait for it."""
        if self.world_size > 1:
            return self._step >= (self._planned_end or 0)
        return self._stage == "after" and (self._free.after is None or self._under_tool)

    def _continues_free(self) -> bool:
        """Whether there were too few unprofiled steps, so that they continue after the windows, measured as before."""
        return self._free.is_short and any(stage == "after" for stage, _ in self._queue)

    def _more_windows(self) -> bool:
        return any(stage == "warmup" for stage, _ in self._queue)

    def _follows_steps(self) -> bool:
        """Whether a later stage looks at what a step does."""
        return self._more_windows() or self._continues_free() or any(stage == "sampling" for stage, _ in self._queue)


def _ignore(*_: Any) -> None:
    pass

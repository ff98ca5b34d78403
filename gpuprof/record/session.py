"""One process's recording: follows the steps of its training, and does at each step's end what the plan says.

Everything that the training calls (`on_…`, `step_ended`) is guarded: an error in gpuprof is noted in the run's log,
the recording ends, and the training continues.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runfile import NSYS, log, rank_file
from . import compiler, forks
from .capture import Capture, cuda_runtime
from .environment import describe_process, place_among_ranks
from .flags import flags
from .free_run_length import AfterWindows, more_steps
from .guard import guarded
from .hooks import Patch, patch_backward, patch_loader
from .import_time import imported
from .journal import Journal
from .loader_meter import Made
from .loader_meter import meter as loader_meter
from .memory import gpu_bytes_to_spare
from .nodes import NodeExchange, exchange_of
from .observer import observer
from .options import options_of, planned
from .other_profilers import patch_profilers, profiler_is_active, profiler_is_alive
from .performance_warnings import warned
from .phase_meter import PhaseMeter
from .phase_names import DATA
from .ranges import Ranges, find_nvtx, tool_is_listening
from .samples import sampled
from .sampling import NotSampled, Sampling
from .schedule import AFTER, LONG_ITERATION_S, LONG_SETTLE, LONGEST_SETTLE, SETTLE_S, of_iterations, plan
from .stall import StallWatch
from .step_clock import StepClock
from .step_meter import StepMeter
from .tell import tell
from .timing import FreeRunning, devices_in_use, synchronise
from .training import Training
from .window import SHAPES_GPU_BYTES, Window, room_for_window, why_no_stacks

THINNED_NS = 1_000_000_000
"""After the windows, one step in so long gets a line in steps.jsonl."""
DRAIN_S = 20.0
"""Settling goes on for so long at most until what the loader's workers have made ahead is used up."""
PATIENCE = 100
"""Steps that a window waits for the program's own profiler to end before it gives up."""
HANDOVER_S = 30.0
"""How long a profiler of another thread waits for ours to end, which takes until the end of a step."""


class Session:
    """The recording of one process.

    options: as `options_of` reads them. source: who says where steps end (recorder, trainer or optimizer).
    """

    def __init__(self, folder: Path, options: dict[str, Any], source: str) -> None:
        self.folder, self.options = folder, options
        self._clock = StepClock(source, self._end_step, self._meet_optimizer)
        self.rank, self.local_rank, self.world_size = place_among_ranks()
        self.ended = False
        self._journal = Journal(folder, self.rank, self._leads())
        # What is followed.
        self._patches: list[Patch] = []
        self._backward_patch: Patch | None = None
        self._ranges = Ranges()
        self._nsys = bool(self.options["nsys"])
        """Whether Nsight Systems is to record, which was started around us for that."""
        listening = tool_is_listening()
        self._nsys_is_deaf = self._nsys and not listening
        # Under our own nsys a step that is not captured counts as unprofiled: launch-bound ones take 1.08 times as long
        # as bare ones (20 pairs of processes on H200s, standard error 0.04), in the capture 1.2 to 1.5 times.
        self._under_tool = listening and not self._nsys
        self._training = Training()
        self._devices: list[int] = []
        # Where in the plan we are.
        self._queue: list[tuple[str, int]] = [("settle", plan(**planned(self.options)).settle)]
        self._stage, self._left = "", 0
        self._free: FreeRunning | None = None
        self._free_ns: list[int] = []
        """Host time of the steps of the free stretch at hand."""
        self._free_is_short = False
        """Whether that had to end before its mean was known well enough."""
        self._after: AfterWindows | None = None
        self._made = Made()
        """What the loader had made when that began."""
        self._window: Window | Capture | None = None
        self._waited = 0
        self._planned_end: int | None = None
        self._asked_to_close: threading.Event | None = None
        self._sampling: Sampling | None = None
        self._settling: list[int] = []
        self._over = False
        self._recorded = False
        """Whether a profiler of ours has run in this process."""
        self._line_due_ns = 0
        # The step at hand.
        self._meter = StepMeter()
        self.phases = PhaseMeter(self, self._meter.phases)
        self._stall = StallWatch(folder, self.rank, self.world_size, self._journal.tell)
        self._nodes: NodeExchange | None = None

    # -- beginning

    @classmethod
    def begin(cls, folder: Path, source: str) -> Session | None:
        """The session of this process, or None if this rank is not to be recorded, or is being recorded already."""
        session = cls(folder, options_of(folder), source)
        wanted = session.options["ranks"]
        if isinstance(wanted, list) and session.rank not in wanted:
            log(folder, f"rank {session.rank} is not recorded: --ranks names others")
            return None
        try:
            os.close(os.open(folder / rank_file(session.rank), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            log(folder, f"rank {session.rank} is recorded by another process; this one ({os.getpid()}) is not")
            return None
        try:
            session._open()
        except BaseException:
            session.close()
            raise
        return session

    def _leads(self) -> bool:
        """Whether this process speaks for the run."""
        wanted = self.options["ranks"]
        return self.rank == min(wanted) if isinstance(wanted, list) and wanted else self.local_rank == 0

    def _open(self) -> None:
        self._journal.facts |= describe_process()
        self._journal.facts["imported"] = imported.unix_ns
        if self._under_tool or self.options["nvtx"]:
            self._ranges = Ranges(find_nvtx())
        warned.listen()
        self.phases.watch()
        self._backward_patch = patch_backward(self)
        self._patches = [patch_loader(self), *patch_profilers(self)]
        sampled.watch(sys.modules["torch.utils.data.dataloader"])
        wanted = self.options["ranks"]
        ranks = wanted if isinstance(wanted, list) else None
        self._nodes = None if self._nsys else exchange_of(self.folder, self.rank, self.world_size, ranks, tell)
        if self._nodes is not None:
            atexit.register(self._nodes.finish)  # before `close`, so that it comes after it
        atexit.register(self.close)
        forks.tell_in_child(self)
        self._next_stage()
        self._meter.begin(time.perf_counter_ns())
        self._stall.start()
        self._write()

    def forked(self) -> None:
        """We are in a child now: the recording is its parent's."""
        self.ended = True
        if self._sampling is not None:
            self._sampling.leave()
        self._ranges = Ranges()
        if self._recorded:
            forks.in_child(recording=self._window is not None)

    @property
    def _step(self) -> int:
        """Steps that have ended."""
        return self._clock.step

    # -- recordings on demand

    def be_quiet(self) -> None:
        """Says nothing on stderr from now on: who asked for the recording reads what it writes."""
        self._journal.be_quiet()

    def add_note(self, text: str) -> None:
        """Something that the reader of the recording must know."""
        self._journal.note(text)

    @property
    def is_over(self) -> bool:
        """Whether the plan is done, and steps are only counted."""
        return self._over

    def progress(self) -> dict[str, Any]:
        """Where in the plan it is: the stage, steps that have ended, and windows that are closed."""
        return {"stage": self._stage, "step": self._step, "windows": len(self._journal.windows)}

    # -- what happens in the training

    @guarded
    def on_optimizer_end(self, optimizer: Any) -> None:
        """An optimizer has done its step, here or in a hook of a backward pass, on a thread of autograd."""
        self._clock.optimizer_ended(optimizer)

    def _meet_optimizer(self, optimizer: Any) -> None:
        if not self._training.known:
            self._training.meet(optimizer=optimizer)

    @guarded
    def on_training(self, source: str, left: int | None, model: Any, optimizer: Any) -> None:
        """Someone who knows begins to count steps. left: how many there will be."""
        if not self._clock.is_here():
            return
        self._clock.counted_by(source, left)
        self.phases.watch()
        self._training.total = self._clock.total
        self._training.meet(model, optimizer)
        if not self._step:
            self._left = plan(**planned(self.options), total=left).settle
        self._meter.begin(time.perf_counter_ns())

    @guarded
    def on_intervals(self, read: Callable[[], dict[str, int]]) -> None:
        """Who counts the steps knows how often it saves, evaluates and logs."""
        if self._clock.is_here():
            self._training.intervals = read()

    @guarded
    def on_arguments(self, args: Any) -> None:
        """Who counts the steps is a trainer with these arguments."""
        if self._clock.is_here():
            self._training.program.meet_trainer(args)

    @guarded
    def on_training_end(self) -> None:
        """Who counted the steps is done; what follows (an evaluation, another training) is none of its steps."""
        if not self._clock.is_here():
            return
        self._clock.left_alone()
        self._training.total = None
        if self._window is not None:
            self._close_window()
            self._next_stage()
        if not self._training.known:
            self._training.forget()
        self._journal.flush()

    @guarded
    def step_ended(self) -> None:
        """Who counts the steps says that one has ended."""
        self._clock.counted()

    @guarded
    def on_backward(self, root: Any = None) -> Callable[[], None] | None:
        """A backward pass begins; what is returned is called at its end."""
        if not self._clock.is_here():
            return None
        self._close_if_asked()
        self._clock.backward_begins()
        self._meter.backward(time.perf_counter_ns())
        self._mark("backward")
        depth = self._meter.phases.backward()
        close = self._ranges.open("backward")
        if self._ranges.listening:
            self._training.backward(root)

        def ended() -> None:
            self._meter.phases.backward_ended(depth)
            if close is not None:
                close()
            self._mark("backward_end")
            self._backward_ended()

        return ended

    @guarded
    def _backward_ended(self) -> None:
        self._clock.backward_ends()

    @guarded
    def on_fetch(self, batches: Any) -> Callable[[Any], None] | None:
        """A batch is asked for; what is returned is called with it. batches: the DataLoader's iterator."""
        if not self._clock.is_here():
            return None
        self._close_if_asked()
        self._training.meet(batches=batches)
        begun = time.perf_counter_ns()
        self._mark("data")
        self._meter.phases.fetching()
        depth = self._meter.phases.enter(DATA)
        close = self._ranges.open("data")

        def fetched(batch: Any) -> None:
            self._meter.phases.leave(depth)
            if close is not None:
                close()
            self._mark("data_end")
            self._meter.fetched(time.perf_counter_ns() - begun)
            self._count(batch, batches)

        return fetched

    def _mark(self, what: str) -> None:
        """Where in the step the samples of this moment belong, while there are any."""
        if self._sampling is not None:
            self._sampling.mark(what)

    @guarded
    def _count(self, batch: Any, batches: Any) -> None:
        if batch is not None:
            self._meter.work.fetched(batch)
            self._meter.samples.fetched(sampled.of_batch(batches))

    @guarded
    def on_call(self, arguments: Any) -> None:
        """The model is called."""
        if not self._clock.is_here():
            return
        if self._training.is_in_training_mode:
            self._meter.trained(time.perf_counter_ns())
            self._meter.phases.trained()
            self._mark("forward")
            self._meter.work.called(arguments)
        else:
            self._meter.evaluated()

    @guarded
    def on_evaluation(self) -> None:
        """Who counts the steps says that the model is evaluated."""
        if self._clock.is_here():
            self._meter.evaluated()

    @guarded
    def on_profiler_begin(self) -> None:
        """A profiler is about to begin; if it is not ours, ours makes room for it."""
        window = self._window
        here = threading.get_ident() == self._clock.thread
        if window is None or (window.busy and here):
            return
        if here:
            self._make_room()
        else:  # a profiler can only be ended by the thread that began it
            self._asked_to_close = asked = self._asked_to_close or threading.Event()
            asked.wait(HANDOVER_S)

    def _make_room(self) -> None:
        self._journal.note(
            "the program started a profiler of its own while gpuprof recorded: gpuprof's window was closed"
        )
        self._left = 0
        self._close_window()

    def _close_if_asked(self) -> None:
        if self._asked_to_close is not None:
            asked, self._asked_to_close = self._asked_to_close, None
            if self._window is not None:
                self._make_room()
            asked.set()

    def optimizer_range(self) -> Callable[[], None] | None:
        """The range of an optimizer's step, where someone listens."""
        if self.ended or not (self._ranges.listening or self._sampling) or not self._clock.is_here():
            return None
        self._mark("optimizer")
        return self._ranges.open("optimizer")

    # -- phases of an iteration

    def is_here(self) -> bool:
        """Whether the caller is the thread that trains, while steps are timed."""
        return not self._over and self._clock.is_here()

    def open_range(self, name: str) -> Callable[[], None] | None:
        """A range for whoever listens."""
        return self._ranges.open(name)

    def pausable_window(self) -> Window | None:
        """The window at hand, if it can leave something out."""
        window = self._window
        return window if isinstance(window, Window) and window.can_pause() else None

    def pause_window(self, window: Window, forwards: int | None) -> None:
        """Lets the window leave out what follows; or record again, after this number of forward passes of generation.
        The device has nothing to do then, so that no kernel is recorded without its launch."""
        synchronise(self._devices)
        if forwards is None:
            window.pause()
        else:
            window.resume(self._step + 1, forwards)

    # -- the end of a step

    def _end_step(self) -> None:
        self._stall.step_ended()
        if self._over:
            self._end_late_step()
            return
        if self._stage == "baseline_sync":
            synchronise(self._devices)
        now = time.perf_counter_ns()
        if self._stage == "settle":
            self._settling.append(now - self._meter.begun_ns)
        self._add_line(self._stage, now)
        self._left -= 1
        if self._stage == "settle" and self._left > 0 and self._long_iterations_settled():
            self._left = 0
        elif self._left <= 0 and self._stage == "settle" and not self._has_settled():
            self._left = 1
        elif self._stage == "baseline_free":
            self._free_ns.append(now - self._meter.begun_ns)
            if self._left <= 0:
                self._left = self._further_steps()
                self._free_is_short = not self._left and self._is_imprecise()
        elif self._stage == "sampling":
            self._step_sampling()
        elif self._after is not None:
            self._after.add(now, now - self._meter.begun_ns)
            if self._left <= 0 and self._after.wants_more():
                self._left = 1
        self._close_if_asked()
        if self._window is not None:
            self._step_window()
        elif self._free is not None:
            self._free.mark()
        if self._left <= 0:
            self._next_stage()
        if self._may_stop():
            self._stop_training()
        self._ranges.step(self._step + 1)
        self._meter.begin(0 if self._over else time.perf_counter_ns())

    def _has_settled(self) -> bool:
        """Whether enough steps have passed: of several ranks at the same step in each, whatever their clocks say."""
        if self._training.known or self.options["settle"] is not None:
            return True
        if self._step >= LONGEST_SETTLE:
            return self._is_drained()
        total = self._training.total
        if total is not None and total <= LONGEST_SETTLE + plan(**planned(self.options)).needs():
            return True
        return self.world_size == 1 and sum(self._settling) > SETTLE_S * 1e9

    def _iteration_s(self) -> float:
        """Seconds of the last iteration that generated what it trains on; 0 where none has."""
        return sum(self._settling[-self._meter.phases.iteration_steps :]) / 1e9 if self._iterates() else 0.0

    def _iterates(self) -> bool:
        return self._meter.phases.iteration_steps > 0

    def _long_iterations_settled(self) -> bool:
        """Whether iterations are so long that few of them are enough. Several ranks keep to the same number."""
        if self._training.known or self.options["settle"] is not None or self.world_size > 1:
            return False
        return self._iteration_s() > LONG_ITERATION_S and self._step >= LONG_SETTLE * self._meter.phases.iteration_steps

    def _is_drained(self) -> bool:
        """Whether the batches are used up that workers had made ahead while the first steps took their time."""
        if self.world_size > 1 or (self._training.total is not None and self._room() <= 0):
            return True
        return self._step >= self._training.batches_ahead or sum(self._settling) > DRAIN_S * 1e9

    def _room(self) -> int:
        """Steps that the training can spare beyond what is planned. Where it does not say how long it is: what is left
        of an epoch, and none where that is not known either, so that a short one still gets its window."""
        total = self._training.total
        if total is None:
            batches = self._training.epoch
            if batches is None:
                return 0
            # Of a later epoch as much may be left as of the first.
            total = self._step - self._step % max(batches // max(self._meter.micro_steps, 1), 1)
            total += batches // max(self._meter.micro_steps, 1)
        needed = sum(steps for _, steps in self._queue) or plan(**planned(self.options)).needs()
        return total - 1 - self._step - needed

    def _further_steps(self) -> int:
        """Steps by which the free stretch goes on, so that its mean is known well enough.

        Several ranks have to choose alike, each from its own clock, and keep to the plan; so does who asked for a
        number of steps.
        """
        if self.world_size > 1 or not self._is_imprecise():
            return 0
        each = max(self._meter.phases.iteration_steps, 1)
        wanted = -(-more_steps(self._free_ns, self._training.workers) // each) * each
        return max(min(wanted, self._room()), 0)

    def _is_imprecise(self) -> bool:
        """Whether more steps are wanted for the mean; not by someone who asked for a number of them."""
        return self.options["baseline"] is None and more_steps(self._free_ns, self._training.workers) > 0

    def _step_sampling(self) -> None:
        """Several ranks have to choose alike, and keep to the plan."""
        if self._sampling is None:
            self._left = 0
            return
        self._sampling.step()
        if self._left <= 0 and self._samples_on() and self._sampling.wants_more():
            self._left = 1

    def _samples_on(self) -> bool:
        """Whether sampling may go on for longer than planned: it must not keep a window from being recorded."""
        return self.world_size == 1 and (not self._more_windows() or self._room() > 0)

    def _step_window(self) -> None:
        assert self._window is not None
        warming = not self._window.active
        self._training.new_step()
        if self._window.step(self._step):
            self._left = 0
            self._close_window()
        elif warming and self._window.active:
            self._stage = self._window.name
            self._journal.begin_stage(self._stage, self._step + 1)

    def _may_stop(self) -> bool:
        """Whether all is recorded, a free stretch that continues after the windows included. Several ranks end at the
        step that was planned, whatever became of their windows: one that left earlier would leave the others waiting
        for it."""
        if self._planned_end is None:
            return False
        if self.world_size > 1:
            return self._step >= self._planned_end
        return self._stage == "after" and (self._after is None or self._under_tool)

    def _end_late_step(self) -> None:
        """After the windows a step costs us next to nothing: a look at the clock, and now and then a line.

        Once a line is due, the step that follows is timed: not the one in which the time ran out, which would be
        a long one more often than not.
        """
        now = time.perf_counter_ns()
        if self._meter.begun_ns:
            self._add_line("after", now)
            self._meter.begin(0)
            self._line_due_ns = now + THINNED_NS
        elif now > self._line_due_ns:
            self._meter.begin(now)
        if self._ranges.listening:
            self._ranges.step(self._step + 1)
        if self._may_stop():
            self._stop_training()

    def _add_line(self, stage: str, now: int) -> None:
        profiled = self._window is not None or self._under_tool or profiler_is_active()
        line = self._meter.line(self.rank, self._step, stage, now, profiled)
        self._journal.add_step(line, hold=self._free is not None and bool(self._devices))

    # -- stages

    def _next_stage(self) -> None:
        """Ends the stage at hand and begins the next one of the plan."""
        self._end_stage()
        if self._stage == "settle" and not self._training.known:
            self._know()
        if not self._queue:
            self._finish()
            return
        self._stage, self._left = self._queue.pop(0)
        if self._stage == "warmup":
            self._stage, self._left = self._open_window(self._left)
        if self._stage in ("baseline_free", "sampling", "after"):
            self._free = FreeRunning(self._devices)
        if self._stage == "baseline_free":
            self._free_ns, self._made = [], loader_meter.read(self._training.workers > 0)
        elif self._stage == "after" and self._free_is_short:
            ahead = self._training.batches_ahead
            self._after = AfterWindows(self._free_ns, self._training.workers, ahead, time.perf_counter_ns())
        elif self._stage == "baseline_sync":
            synchronise(self._devices)
        elif self._stage == "sampling" and self._sampling is not None:
            self._sampling.begin(self._left, extends=self._samples_on())
        self._journal.begin_stage(self._stage, self._step + 1)
        if self._stage == "after":
            self._write()  # what reads the recording waits for the samples of a training of unknown length
        if self._stage == "baseline_free":
            self._journal.tell(f"step {self._step + 1}: timing {self._left} + {self._left} unprofiled steps")

    def _end_stage(self) -> None:
        """Settles the times of the stage at hand."""
        if not self._stage or self._over:
            return
        self._journal.count_stage(self._step)
        if self._free is not None:
            free, self._free = self._free, None
            whole_ns, device_ns = free.finish()
            self._journal.time_stage(whole_ns)
            if device_ns:
                self._journal.time_steps(device_ns)
            if self._stage == "baseline_free":
                made = loader_meter.read(self._training.workers > 0).since(self._made)
                self._journal.describe_batches(made.facts())
        if self._stage == "sampling" and self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            sampling.end(self._journal.first_step())
            if not self._follows_steps():
                self._let_go()
        self._after = None
        self._journal.flush()
        self._write()

    def _finish(self) -> None:
        """The plan is done: from now on steps are only counted."""
        self._over, self._clock.may_capture = True, False
        self._leave_sampling()
        self._let_go()
        if self._backward_patch is not None and not self._clock.needs_backwards:
            self._backward_patch.undo()
            self._clock.without_backwards()
        self._line_due_ns = time.perf_counter_ns() + THINNED_NS
        self._training.forget()
        self._write()

    def _know(self) -> None:
        """Once the run has settled: what it trains, how long a step takes, and so what the plan is."""
        self._devices = devices_in_use()
        self._training.describe(self._journal)
        if self.options["memory"]:
            observer.watch(self.folder)
            for note in observer.notes:
                self._journal.note(note)
        total = self._training.total
        left = None if total is None else total - self._step
        step_s = min(self._settling[-3:], default=0) / 1e9
        if self._nodes is not None:
            step_s = self._nodes.agree(step_s)
        found = plan(**planned(self.options, settle=0), step_s=step_s, total=left)
        if self._iterates() and self.options["baseline"] is None:
            whole = plan(**planned(self.options, settle=0), step_s=step_s)
            found = of_iterations(whole, self._iteration_s(), self._meter.phases.iteration_steps, left)
        if self._under_tool:
            found = replace(found, sample=0, trace=0, stacks=0, memory=0)
            self._journal.note(
                "an NVTX tool records this process: gpuprof marks its steps, and leaves the recording to it"
            )
        if self._nsys and found.trace and (why := self._why_no_capture()):
            found = replace(found, trace=0)
            self._journal.note(f"nothing is recorded: {why}")
        unsafe = why_no_stacks() if found.stacks else None
        if unsafe:
            found = replace(found, stacks=0)
            self._journal.note(f"stacks are left out: {unsafe}")
        if found.sample:
            self._prepare_sampling(step_s)
        self._queue = found.stages(NSYS if self._nsys else "trace")
        if self.world_size > 1 and (left is None or left > found.needs()):
            # What each rank has just looked at took some ranks longer than others, which wait in the next step.
            self._queue.insert(0, ("settle", 1))
        if self.options["stop"]:
            if self.world_size > 1 and self.options["ranks"] is not None:
                self._journal.note("--stop is left out: with --ranks the other ranks would wait for those that end")
            else:
                self._planned_end = self._step + sum(steps for stage, steps in self._queue if stage != "after")
        self._meter.work.begin_calls()
        self._meter.lumps.watch()
        self._hook_model(ranges=self._ranges.listening)  # NVTX ranges are wanted all along

    def _prepare_sampling(self, step_s: float) -> None:
        """Where that is not possible, the steps pass all the same: of several ranks each has to come to the same
        number."""
        if self.options["sample_workers"] and (why := self._training.why_no_worker_samples()):
            self._journal.note(f"the DataLoader's workers are not sampled: {why}")
        try:
            self._sampling = Sampling(self.folder, self.rank, step_s, self.options["sample_workers"])
        except (NotSampled, OSError) as error:
            self._journal.note(f"the CPU's functions are not sampled: {error}")

    # -- windows

    def _why_no_capture(self) -> str | None:
        """Why Nsight Systems cannot record this process, in words; None if it can."""
        if self._nsys_is_deaf:
            return "Nsight Systems does not listen in this process (was its environment taken away?)"
        return None if cuda_runtime() is not None else "this process has no work on a GPU for Nsight to capture"

    def _open_window(self, warm_up: int) -> tuple[str, int]:
        """The stage to enter in place of a window's warm-up: that, or waiting, or going on without."""
        name, steps = self._queue[0]
        if profiler_is_alive():
            self._waited += 1
            if self._waited > PATIENCE:
                return self._skip_windows("the program's own profiler did not end: gpuprof recorded nothing")
            if self._waited == 1:
                self._journal.note("the program's own profiler is active: gpuprof waits for it to end")
            self._queue.insert(0, ("warmup", warm_up))
            return "settle", 1
        why = room_for_window(self.folder)
        if why:
            return self._skip_windows(f"nothing is recorded: {why}")
        if name == NSYS:
            return self._open_capture(warm_up, steps)
        shapes = name == "trace" and self.options["shapes"]
        spare = gpu_bytes_to_spare()
        if shapes and spare is not None and spare < SHAPES_GPU_BYTES:
            shapes = False
            self._journal.note(f"shapes are left out: only {spare / 1e9:.1f} GB of GPU memory are free")
        self._queue.pop(0)
        self._window = Window(self.folder, self.rank, name, self._step + 1, warm_up, steps, self._ranges, shapes=shapes)
        forks.prepare()
        self._recorded = True
        self._ranges.record(True)
        self._hook_model(ranges=True)
        names = {"gpuprof_run": self.folder.name, "gpuprof_rank": self.rank}
        self._window.start({key: json.dumps(value) for key, value in names.items()})
        kinds = {"trace": "shapes" if shapes else "no shapes", "stacks": "Python stacks", "memory": "memory"}
        self._tell_window(steps, kinds[name], name == "trace")
        # Warm-up and window are one stage to count, and two in the lines.
        return "warmup", warm_up + steps

    def _open_capture(self, warm_up: int, steps: int) -> tuple[str, int]:
        """The stage to enter when Nsight Systems is to record; the ranges are hung up in its warm-up."""
        self._queue.pop(0)
        self._window = Capture(self._step + 1, warm_up, steps, self._ranges, self._devices)
        self._hook_model(ranges=True)
        self._window.start()
        self._tell_window(steps, "Nsight Systems", first=True)
        return "warmup", warm_up + steps

    def _tell_window(self, steps: int, kind: str, first: bool) -> None:
        ns = self._journal.baseline_ns() if first else None
        known = "" if ns is None else f"; unprofiled {ns / 1e6:,.1f} ms a step"
        self._journal.tell(f"step {self._step + 1}: recording {steps} steps with {kind}{known}")

    def _skip_windows(self, why: str) -> tuple[str, int]:
        self._journal.note(why)
        self._queue.clear()
        return "after", AFTER

    def _continues_free(self) -> bool:
        """Whether the free stretch was too short and continues after the windows, measured as before."""
        return self._free_is_short and any(stage == "after" for stage, _ in self._queue)

    def _more_windows(self) -> bool:
        return any(stage == "warmup" for stage, _ in self._queue)

    def _follows_steps(self) -> bool:
        """Whether a stage is to come that looks at what a step does."""
        return self._more_windows() or self._continues_free() or any(stage == "sampling" for stage, _ in self._queue)

    def _close_window(self) -> None:
        if self._window is None or threading.get_ident() != self._clock.thread:
            return
        window = self._window
        try:
            window.stop(self._step)
            result = window.result
        finally:
            self._window = None
            self._ranges.record(False)
        for note in window.notes:
            self._journal.note(note)
        if window.name == "memory":
            observer.end()
        if result is not None:
            self._journal.windows.append(result)
            self._tell_recorded(result)
        if self._nodes is not None and window.name == "trace":
            self._nodes.begin(None if result is not None and result["steps"] else "its window holds no step")
        gc.collect()
        if self._follows_steps():
            self._hook_model(ranges=self._ranges.listening)
        else:
            self._let_go()
        self._write()

    def _tell_recorded(self, result: dict[str, Any]) -> None:
        count = result["steps"]
        if not count:
            self._journal.tell(f"step {self._step + 1}: the recording ended within its first step")
            return
        after = "" if self.ended or self._more_windows() else "; the training continues unprofiled"
        size = "" if result["bytes"] is None else f" ({result['bytes'] / 1e6:,.0f} MB)"
        stalled = f"; the training stalled {result['stop_ns'] / 1e9:.1f} s while the profiler stopped"
        self._journal.tell(f"step {self._step}: {count} step{'s' * (count != 1)} recorded{size}{stalled}{after}")

    def _stop_training(self) -> None:
        """`--stop`: ends the program as sys.exit(0) would, with its own clean-up."""
        self._journal.tell("the training ends here, as --stop says")
        self.close()
        raise Stop(0)

    # -- hooks

    def _hook_model(self, ranges: bool) -> None:
        levels = self.options["modules"] if ranges else None
        self._training.hook(self.on_call, self._ranges.open, levels)

    def _let_go(self) -> None:
        """Leaves torch as it was found, but for what counts the steps, and what an NVTX tool listens to."""
        if self._ranges.listening:
            return
        self._training.unhook()
        flags.stop()
        warned.stop()
        self._meter.lumps.leave()
        loader_meter.stop()
        sampled.stop()
        self.phases.leave()
        for patch in self._patches:
            patch.undo()
        self._patches.clear()

    # -- the end

    def _write(self) -> None:
        place = {"rank": self.rank, "local_rank": self.local_rank, "world_size": self.world_size}
        self._journal.facts["program"] = self._training.program.facts()
        self._journal.facts["compiler"] = compiler.facts()
        self._journal.write(place | {"step_source": self._clock.source, "steps_seen": self._step})

    def close(self) -> None:
        """Ends the recording, keeping what there is; the training may go on. Never raises."""
        if self.ended or os.getpid() != self._clock.pid:
            return
        self.ended = True
        self._queue.clear()
        # What is in the training's way comes first, and nothing that fails keeps the rest from being done.
        last = (self._end_stage, self._leave_sampling, self._journal.flush, self._write)
        ending = (self._stall.close, self._withdraw, self._close_window, self._without_window, observer.end)
        for part in (*ending, *last):
            try:
                part()
            except Exception as error:
                self._journal.log(f"the recording ended with {error!r}")
        self._training.forget()

    def _without_window(self) -> None:
        """Lets rank 0 know that nothing will come of this rank."""
        if self._nodes is not None and self.rank != 0:
            self._nodes.begin("no window was recorded")

    def _leave_sampling(self) -> None:
        if self._sampling is not None:
            self._sampling.leave()
            self._sampling = None

    def _withdraw(self) -> None:
        self._ranges = Ranges()
        self._let_go()
        if self._backward_patch is not None:
            self._backward_patch.undo()
        if self._asked_to_close is not None:
            self._asked_to_close.set()
        atexit.unregister(self.close)

    def fail(self, error: Exception) -> None:
        """An error of gpuprof's own: the recording ends, the training does not notice."""
        import traceback

        self._journal.log(" | ".join(traceback.format_exception(error)))
        self._journal.note(f"recording failed ({type(error).__name__}: {error}); the training continues without it")
        self.close()


class Stop(SystemExit):
    """Ends the program for `--stop`: passes through `except Exception`, and leaves by the program's own clean-up."""

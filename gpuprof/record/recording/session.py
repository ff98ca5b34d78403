"""The recording of one process: follows the steps of its training, and does what the plan says at the end of each.

Everything that the training calls (`on_…`, `step_ended`) is guarded: an error in gpuprof is noted in the run's log,
the recording ends, and the training continues.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

from ...runfile import NSYS, log, rank_file
from ..base.environment import describe_process
from ..base.guard import guarded
from ..base.import_time import imported
from ..base.optimizer_hooks import NOTHING, Counter
from ..base.options import options_of, planned
from ..base.other_profilers import profiler_is_active
from ..base.timing import devices_in_use, is_in_backward, synchronise
from ..job_nodes.nodes import exchange_of
from ..launcher.tell import tell
from ..model import compiler
from ..stacks.sampling import NotSampled, Sampling
from ..steps import forks
from ..steps.regular_steps import StepWatch
from ..steps.schedule import WATCHED, plan
from ..steps.step_clock import OPTIMIZER
from ..steps.step_meter import Ended
from ..windows.observer import observer
from .noted_steps import NotedSteps
from .settling import as_possible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Share, WholeNs


WATCHED_STAGES = ("settle", "baseline_free")
"""Stages before and while steps are timed with next to no hooks."""
WAITING_SHARE: Assumed[Share] = 0.05
"""Smallest share of the timed steps in getting batches for which the loader's workers are sampled."""
THINNED_NS: Assumed[WholeNs] = 1_000_000_000
"""After the windows, steps.jsonl gets a line for one step in each interval of this length."""


class Session(NotedSteps):
    """The recording of one process.

    options: as `options_of` reads them. source: what says where steps end (recorder, trainer or optimizer).
    """

    # -- beginning

    @classmethod
    def begin(cls, folder: Path, source: str) -> Session | None:
        """The session of this process, or None if this rank is not to be recorded, or is already being recorded."""
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

    def _open(self) -> None:
        self._journal.facts |= describe_process()
        self._journal.facts["imported"] = imported.unix_ns
        self._attached.attach(self, listening=self._under_tool or self.options["nvtx"])
        wanted = self.options["ranks"]
        ranks = wanted if isinstance(wanted, list) else None
        self._nodes = None if self._nsys else exchange_of(self.folder, self.rank, self.world_size, ranks, tell)
        if self._nodes is not None:
            atexit.register(self._nodes.finish)  # registered before `close`, so that it runs after it
        atexit.register(self.close)
        forks.tell_in_child(self)
        self._next_stage()
        self._meter.begin(time.perf_counter_ns())
        self._stall.start()
        self._write()

    def forked(self) -> None:
        """Called in a forked child: the recording is its parent's."""
        self.ended, self.counter, self.tape = True, None, None
        if self.bare is not None:
            self.bare.drop()
        if self._sampling is not None:
            self._sampling.leave()
        self._attached.forked()
        if self._windows.any_recorded and self._windows.open is not None:
            forks.stop_recording()

    # -- what happens in the training

    @guarded
    def on_optimizer_end(self, optimizer: Any) -> None:
        """An optimizer has done its step, here or in a hook of the backward pass, on a thread of autograd."""
        if self.counter is not None and (self._clock.thread == get_ident() or is_in_backward()):
            self._count_by_clock()
        if not self._training.known:
            self._training.updates(optimizer)
        self._clock.optimizer_ended(optimizer)

    @guarded
    def on_training(self, source: str, left: int | None, model: Any, optimizer: Any) -> None:
        """A source that knows where steps end begins to count them. left: how many there will be."""
        if not self._clock.is_here():
            return
        self._count_by_clock()
        self._clock.counted_by(source, left)
        self.phases.watch()
        self._training.total = self._clock.total
        self._training.meet(model, optimizer)
        if not self._step:
            self._left = plan(**planned(self.options), total=left).settle - self._settling.kept
        self._begin_step(time.perf_counter_ns())

    @guarded
    def on_intervals(self, read: Callable[[], dict[str, int]]) -> None:
        """The source of the steps knows how often it saves, evaluates and logs."""
        if self._clock.is_here():
            self._training.intervals = read()

    @guarded
    def on_arguments(self, args: Any) -> None:
        """The source of the steps is a trainer with these arguments."""
        if self._clock.is_here():
            self._training.program.meet_trainer(args)

    @guarded
    def on_training_end(self) -> None:
        """The source of the steps is done; what follows (an evaluation, another training) is not one of its steps."""
        if not self._clock.is_here():
            return
        self._count_by_clock()
        self._clock.left_alone()
        self._training.total = None
        if self._windows.open is not None:
            self._close_window()
            self._next_stage()
        if not self._training.known:
            self._training.forget()
        self._journal.flush()

    @guarded
    def step_ended(self) -> None:
        """The source of the steps says that one has ended."""
        if self.bare is not None and self._clock.is_here() and self.bare.ended():
            return
        ended = self._late if self.tape is None else self.tape.end_step
        if ended is None:
            self._clock.counted()
        elif self._clock.is_here():
            self._clock.counted_steps += 1
            ended(time.perf_counter_ns())

    # -- the end of a step

    def _end_step(self) -> None:
        if self._over:
            self._end_late_step()
            return
        if self._stage == "baseline_sync":
            synchronise(self._devices)
        now = time.perf_counter_ns()
        took_ns = now - self._meter.begun_ns
        self._add_line(self._stage, now)
        if self._watch is not None:
            self._watch.end_step(self._meter.last_micro_steps)
        if self._free.stretch is not None:
            self._free.stretch.end_step(now)
        self._left -= 1
        self._follow_stage(now, took_ns)
        if self._windows.asked_to_close is not None:
            self._close_if_asked()
        if self._windows.open is not None:
            self._step_window()
        if self._left <= 0:
            self._next_stage()
        if self._planned_end is not None and self._may_stop():
            self._stop_training()
        if self._attached.ranges.listening:
            self._attached.ranges.step(self._clock.step + 1)
        self._begin_step(0 if self._over else time.perf_counter_ns())
        self._begin_tape()

    def _begin_step(self, now: int) -> None:
        """A step begins; now: 0 for one that is not timed."""
        self._meter.begin(now)
        is_watched = self._stage == "settle" and self._watch is not None
        self._meter.work.begin(now, every=is_watched or self._windows.open is not None)
        if self._free.stretch is not None:
            self._free.stretch.step_begun_ns = now

    def _follow_stage(self, now: int, took_ns: int) -> None:
        """Updates the number of steps that the current stage still has: it may end earlier or later than planned."""
        if self._stage == "settle":
            self._settling.add(took_ns)
            self._left = self._settling.further_steps(self._step, self._left, self._planned_steps)
        elif self._stage == "baseline_free":
            if self._left <= 0:
                self._left = self._free.further_steps(self._room())
        elif self._stage == "sampling":
            self._step_sampling(noted=not now)
        elif self._free.after is not None:
            self._free.after.add(now, took_ns)
            if self._left <= 0 and self._free.after.wants_more():
                self._left = 1

    def _step_sampling(self, noted: bool) -> None:
        """Several ranks must decide alike, so they keep to the plan. noted: the sampling knows of the step already."""
        if self._sampling is None:
            self._left = 0 if self.world_size == 1 else self._left
            return
        if not noted:
            self._sampling.step()
        if self._left <= 0 and self._samples_on():
            self._left = self._sampling.further_steps()

    def _step_window(self) -> None:
        window = self._windows.open
        assert window is not None
        warming = not window.active
        self._training.new_step()
        if self._windows.step(window, self._may_be_short()):
            self._left = 0
            self._close_window()
        elif warming and window.active:
            self._stage = window.name
            self._journal.begin_stage(self._stage, self._step + 1)

    def _late_counter(self) -> Counter | None:
        """A function that counts steps once the plan is done; None if each has to be examined."""
        if self._planned_end is not None or self._attached.ranges.listening or self._nsys:
            return None
        meter = self._meter

        def ended(now: int) -> None:
            if meter.begun_ns or now > self._line_due_ns:
                self._keep_late_step(now)

        if self._clock.source != OPTIMIZER:
            self._late = ended
            return NOTHING
        return self._clock.counter(ended, self.on_optimizer_end)

    def _end_late_step(self) -> None:
        self._keep_late_step(time.perf_counter_ns())
        if self._attached.ranges.listening:
            self._attached.ranges.step(self._step + 1)
        if self._planned_end is not None and self._may_stop():
            self._stop_training()

    @guarded
    def _keep_late_step(self, now: int) -> None:
        """After the windows, a step costs hardly anything: a look at the clock, and sometimes a line.

        Once a line is due, the following step is timed, not the one in which the interval ended, which would usually be
        a long one.
        """
        if self._meter.begun_ns:
            self._add_line("after", now)
            self._meter.begin(0)
            self._line_due_ns = now + THINNED_NS
        elif now > self._line_due_ns:
            self._meter.begin(now)

    def _add_line(self, stage: str, now: int) -> None:
        self._keep_line(stage, self._clock.step, self._meter.end(now))

    def _keep_line(self, stage: str, number: int, ended: Ended) -> None:
        """Adds the line of a step that has ended."""
        profiled = (
            self._windows.open is not None or self._under_tool or (self._may_be_profiled and profiler_is_active())
        )
        ops = self._meter.ops(ended)
        line = self._meter.line(self.rank, number, stage, profiled, ended)
        if stage == "baseline_free":
            self._fetched_ns, self._timed_ns = self._fetched_ns + line["data_ns"], self._timed_ns + line["ns"]
        if not self._over:
            self._windows.add_step(stage, line["tokens"], ops)
        self._journal.add_step(line, hold=self._free.stretch is not None and bool(self._devices))

    # -- stages

    def _next_stage(self) -> None:
        """Ends the current stage and begins the next one of the plan."""
        self._end_stage()
        if self._stage == "settle" and not self._training.known:
            self._make_plan()
        if not self._queue:
            self._finish()
            return
        self._stage, self._left = self._queue.pop(0)
        if self._stage == "warmup":
            self._stage, self._left = self._windows.begin(self._queue, self._left, self._devices)
        if self._stage not in WATCHED_STAGES:
            self._watch = self._regular = None
        self._may_be_profiled = not self._attached.sees_profilers or profiler_is_active()
        self._journal.begin_stage(self._stage, self._step + 1)
        if self._stage in ("sampling", "after"):
            self._write()  # the reader of the recording waits for the samples of a training of unknown length
        self._free.begin(self._stage, self._devices)
        if self._stage == "baseline_sync":
            synchronise(self._devices)
        elif self._stage == "sampling":
            self._begin_sampling()
        if self._stage == "baseline_free":
            self._journal.tell(f"step {self._step + 1}: timing {self._left} + {self._left} unprofiled steps")

    def _end_stage(self) -> None:
        """Finishes the times of the current stage."""
        if not self._stage or self._over:
            return
        self._journal.count_stage(self._step)
        self._free.end(self._stage, self._journal)
        if self._stage == "sampling":
            self._end_sampling()
            if not self._follows_steps():
                self._attached.let_go()
        self._journal.flush()
        self._write()

    def _finish(self) -> None:
        """The plan is done: from now on steps are only counted."""
        self._over, self._clock.may_capture = True, False
        self._leave_sampling()
        self._attached.let_go()
        self._attached.leave_backwards(self._clock)
        self._line_due_ns = time.perf_counter_ns() + THINNED_NS
        self._may_be_profiled = True
        self.counter = self._late_counter()
        self._training.forget()
        self._write()

    def _make_plan(self) -> None:
        """Once the run has settled: finds out what it trains and how long a step takes, and makes the plan from
        that."""
        self._devices = devices_in_use()
        self._training.describe(self._journal)
        if self._windows.recorded_before:
            self._journal.note("this process was recorded before: its unprofiled steps may be slower than without that")
        self._clock.know(uses_gpu=bool(self._devices))
        if self.options["memory"]:
            observer.watch(self.folder)
            for note in observer.notes:
                self._journal.note(note)
        total = self._training.total
        left = None if total is None else total - self._step
        step_s = self._settling.step_s(self._nodes)
        found = self._settling.plan(step_s, left)
        room = None if left is None else left - found.needs()
        if left is None and self.world_size == 1 and self._training.epoch is not None:
            room = self._settling.room(self._step, found.needs())
        last = self._settling.last_steps(step_s, room)
        if last >= WATCHED and self._settling.watches(step_s):
            self._watch = StepWatch()
            self._free.watch_batches()
        found = as_possible(found, self._under_tool, self._nsys, self._nsys_is_deaf, self._journal)
        if found.sample:
            self._prepare_sampling(step_s)
        self._queue = found.stages(NSYS if self._nsys else "trace")
        if last:
            self._queue.insert(0, ("settle", last))
        if self.options["stop"]:
            if self.world_size > 1 and self.options["ranks"] is not None:
                self._journal.note("--stop is left out: with --ranks the other ranks would wait for those that end")
            else:
                self._planned_end = self._step + sum(steps for stage, steps in self._queue if stage != "after")
        self._meter.work.begin_calls()
        self._meter.lumps.watch()
        self._attached.hook_model(ranges=self._attached.ranges.listening)  # NVTX ranges are needed all the time

    def _prepare_sampling(self, step_s: float) -> None:
        """Where sampling is not possible, the stage has the same steps: all ranks must arrive at the same number."""
        if self.options["sample_workers"] and (why := self._training.why_no_worker_samples()):
            self._journal.note(f"the DataLoader's workers are not sampled: {why}")
        try:
            self._sampling = Sampling(self.folder, self.rank, step_s)
        except (NotSampled, OSError) as error:
            self._note_not_sampled(error)

    def _begin_sampling(self) -> None:
        whole, sampling = self._meter.phases.iteration_steps, self._sampling
        if sampling is not None:
            try:
                workers = self.options["sample_workers"] or self._waits_for_workers()
                self._left = sampling.begin(self._left, self._samples_on(), iteration=whole, workers=workers)
                self._watch = StepWatch() if self._was_bare else None
            except OSError:  # all else can still be recorded
                self._leave_sampling()
                self._note_not_sampled("the process that samples has ended")

    def _waits_for_workers(self) -> bool:
        """Whether getting batches takes so much of the timed steps that it matters what the loader's workers do."""
        return self._fetched_ns >= WAITING_SHARE * max(self._timed_ns, 1) and not self._training.why_no_worker_samples()

    def _end_sampling(self) -> None:
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            try:
                sampling.end(self._journal.first_step())
            except TimeoutError:
                self._note_not_sampled("the process that samples does not answer")
            except OSError:
                self._note_not_sampled("the process that samples has ended")

    def _note_not_sampled(self, why: object) -> None:
        self._journal.note(f"the CPU's functions are not sampled: {why}")

    # -- windows

    def _close_window(self) -> None:
        if not self._windows.close(self._nodes, is_last=not self.ended and not self._more_windows()):
            return
        if self._follows_steps():
            self._attached.hook_model(ranges=self._attached.ranges.listening)
        else:
            self._attached.let_go()
        self._write()

    def _stop_training(self) -> None:
        """`--stop`: ends the program like sys.exit(0), with its own clean-up."""
        self._journal.tell("the training ends here, because of --stop")
        self.close()
        raise Stop(0)

    # -- the end

    def _write(self) -> None:
        place = {"rank": self.rank, "local_rank": self.local_rank, "world_size": self.world_size}
        self._journal.facts["program"] = self._training.program.facts()
        self._journal.facts["compiler"] = compiler.facts()
        self._journal.write(place | {"step_source": self._clock.source, "steps_seen": self._step})

    def close(self) -> None:
        """Ends the recording and keeps what there is; the training may continue. Never raises."""
        if self.ended or os.getpid() != self._clock.pid:
            return
        self.ended = True
        self._queue.clear()
        # What slows the training down is ended first, and a failure does not prevent the rest.
        last = (self._end_stage, self._leave_sampling, self._journal.flush, self._write)
        ending = (self._stall.close, self._withdraw, self._close_window, self._without_window, observer.end)
        for part in (self._count_by_clock, *ending, *last):
            try:
                part()
            except Exception as error:
                self._journal.log(f"the recording ended with {error!r}")
        self._training.forget()

    def _without_window(self) -> None:
        """Lets rank 0 know that this rank will have no window."""
        if self._nodes is not None and self.rank != 0:
            self._nodes.begin("no window was recorded")

    def _leave_sampling(self) -> None:
        if self._sampling is not None:
            self._sampling.leave()
            self._sampling = None

    def _withdraw(self) -> None:
        self._attached.withdraw()
        self._windows.room_made()
        atexit.unregister(self.close)

    def fail(self, error: Exception) -> None:
        """An error in gpuprof: the recording ends, and the training does not notice."""
        import traceback

        self._journal.log(" | ".join(traceback.format_exception(error)))
        self._journal.note(f"recording failed ({type(error).__name__}: {error}); the training continues without it")
        self.close()


class Stop(SystemExit):
    """Ends the program for `--stop`: passes `except Exception`, and runs the program's own clean-up."""

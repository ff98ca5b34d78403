"""Decides when a step of the training has ended: when a trainer or `Recorder.step` says so, else from optimizer steps.
Recordings, trials and scenarios all use it, so that a step means the same in each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from ..base.optimizer_hooks import Counter
from ..base.timing import NO_TASK, capturing_check, graph_task, has_gpu_support, is_capturing, training_thread
from . import forks
from .step_finder import INSIDE, StepFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Code, Convention


OPTIMIZER = "optimizer"
"""The source of steps where neither a trainer nor a Recorder counts them."""
_NO_THREAD: Convention[Code] = -1


class StepClock:
    """The steps of one process's training.

    source: what marks the ends of steps (recorder, trainer or optimizer). on_end: called at the end of each step, once
    it is counted. on_optimizer: called with an optimizer that has stepped, before this may end a training step.
    """

    def __init__(
        self, source: str, on_end: Callable[[], None], on_optimizer: Callable[[Any], None] | None = None
    ) -> None:
        self.source = source
        self.pid, self.thread = os.getpid(), training_thread()
        forks.tell_in_child(self)
        self.counted_steps = 0
        """Steps that have ended, as far as they were counted here."""
        self._noted: Sized = ()
        """Has an entry for each further step."""
        self.total: int | None = None
        """How many there will be, if known."""
        self.may_capture = has_gpu_support()
        """Whether a CUDA graph capture is possible, so that this has to be checked first."""
        self._is_capturing: Callable[[], bool] = is_capturing
        self._task = graph_task()
        self._on_end, self._on_optimizer = on_end, on_optimizer
        self._follows_optimizers = source == OPTIMIZER
        self._finder = StepFinder()
        self._inside: Any = None
        """An optimizer that has stepped inside the current backward pass."""
        self._steps_inside = False
        """Whether optimizers step inside backward passes, so that the ends of these must be followed."""
        self._counted_from: int | None = None
        """The first step that a counter counts."""
        self._backwards: list[Any] | None = None
        """Not empty if a backward pass has begun since the last step that a counter has counted."""

    @property
    def step(self) -> int:
        """Steps that have ended."""
        return self.counted_steps + len(self._noted)

    def is_here(self) -> bool:
        """Whether this is the training thread and no CUDA graph is being captured: anything done then would be replayed
        with the graph, or would break the capture."""
        return get_ident() == self.thread and not (self.may_capture and self._is_capturing())

    def know(self, uses_gpu: bool) -> None:
        """The training is known, and with it whether it uses a GPU: new optimizers need not be reported any more."""
        self._on_optimizer = None
        if uses_gpu:
            self._is_capturing = capturing_check()

    def forked(self) -> None:
        """Called in a forked child, in which no thread trains for this clock."""
        self.thread = _NO_THREAD

    # -- what the optimizers do

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has done its step, here or in a hook of a backward pass, on a thread of autograd.

        The training's step does not end inside a backward pass: a profiler that began there would crash the process,
        as autograd restores the state that the thread had before, without a profiler.
        """
        if self._task() != NO_TASK:
            self._inside = optimizer
        elif self.is_here():
            self._follow(optimizer, id(optimizer))

    def backward_begins(self) -> None:
        """A backward pass begins in the training's thread."""
        if self._inside is not None:
            self._follow_inside()
        self._finder.backward()

    def backward_ends(self) -> None:
        """The backward pass is over, and optimizers may have stepped inside."""
        if self._inside is not None and self.is_here():
            self._follow_inside()

    @property
    def needs_backwards(self) -> bool:
        """Whether steps can be distinguished only by backward passes."""
        return self._follows_optimizers and (self._finder.needs_backwards or self._steps_inside)

    def without_backwards(self) -> None:
        """No backward pass will be reported any more."""
        self._finder.without_backwards()

    def counter(
        self, ended_ns: Callable[[int], Any], otherwise: Callable[[Any], Any], backwards: list[Any] | None = None
    ) -> Counter | None:
        """A fast function that counts steps while nothing has to be done at their ends; None where that is not
        possible. It is called with an optimizer that has done its step, and passes the time to `ended_ns`, or the
        optimizer to `otherwise` where that has to look at it. It must not be called in a child of this process.

        backwards: where backward passes are followed, not empty if one has begun since the last step ended; `ended_ns`
        empties it. Without them, nothing but the number of steps depends on the thread that the optimizer steps in.
        """
        only = self._finder.only if backwards is None else self._finder.single
        if not self._is_countable or only is None:
            return None
        task, thread, identity, now = self._task, self.thread, get_ident, perf_counter_ns
        captures, capturing = self.captures(), capturing_check()
        self._counted_from, self._backwards = self.step, backwards

        def count(optimizer: Any, _: Any = None, __: Any = None) -> None:
            if id(optimizer) != only or task() != NO_TASK:
                otherwise(optimizer)
                return
            self.counted_steps += 1
            ended_ns(now())

        def count_here(optimizer: Any, _: Any = None, __: Any = None) -> None:
            if not backwards or identity() != thread or (captures and capturing()):
                otherwise(optimizer)
            else:
                count(optimizer)

        return count if backwards is None else count_here

    def begin_bare(self, ended: Sized, begun: list[Any]) -> int | None:
        """Steps are counted elsewhere, each an entry in `ended`, until `without_counter`. Returns the id of the
        optimizer that ends them; None where that is not possible. begun: not empty if the current step has begun its
        work, without which it cannot end."""
        only = self._finder.single
        if not self._is_countable or only is None or self.needs_backwards:
            return None
        self._counted_from, self._backwards = self.step, begun
        self._noted = ended
        return only

    def note_steps(self, ended: Sized) -> None:
        """The same where a trainer or Recorder ends them."""
        self._noted = ended

    @property
    def _is_countable(self) -> bool:
        return self._follows_optimizers and self._on_optimizer is None and not self._steps_inside

    def captures(self) -> bool:
        """Whether a CUDA graph may be captured now, so that this has to be checked at the end of a step."""
        import torch

        return self.may_capture and torch.cuda.is_initialized()

    def without_counter(self) -> None:
        """Steps are counted by `optimizer_ended` again."""
        noted, self._noted = self._noted, ()
        self.counted_steps += len(noted)
        counted_from, self._counted_from = self._counted_from, None
        backwards, self._backwards = self._backwards, None
        if counted_from is not None:
            self._finder.ended_before(self.step - counted_from, backward=bool(backwards))

    def _follow(self, optimizer: Any, key: int) -> None:
        if self._on_optimizer is not None:
            self._on_optimizer(optimizer)
        if self._follows_optimizers and self._finder.ended(key):
            self._end()

    def _follow_inside(self) -> None:
        optimizer, self._inside = self._inside, None
        if optimizer is not None:
            self._steps_inside = True
            self._follow(optimizer, INSIDE)

    # -- who counts the steps

    def counted_by(self, source: str, left: int | None) -> None:
        """A trainer or Recorder begins to count steps. left: how many there will be."""
        self.source, self._follows_optimizers = source, False
        self.total = None if left is None else self.step + left

    def counted(self) -> None:
        """The trainer or Recorder reports that a step has ended."""
        if self.is_here():
            self._end()

    def left_alone(self) -> None:
        """The trainer is done; what follows (an evaluation, another training) belongs to none of its steps."""
        self._follows_optimizers, self._finder, self.total = True, StepFinder(), None

    def _end(self) -> None:
        self.counted_steps += 1
        self._on_end()

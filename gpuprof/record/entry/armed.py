"""An armed training: counts its steps, and records some of them when `gpuprof attach` asks for it.

The thread that answers requests only stores them; the training's thread begins and ends a recording, at the end of a
step. Between recordings a step costs an addition and one entry in a ring (`StepClock.counter`), unless steps can be
recognised only by their backward passes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ...runfile import MANIFEST, read_json
from ..base.environment import place_among_ranks
from ..base.guard import guarded
from ..base.hooks import WrappedAttribute, patch_backward
from ..base.options import why_not
from ..base.say import say
from ..model.loader_meter import meter as loader_meter
from ..recording.session import Session
from ..steps.step_clock import OPTIMIZER, StepClock
from .attach import Holder, holder
from .local_channel import Message, Refused, Server
from .trainer import announce, armed_callback_class, steps_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Entries, Steps


STEPS_KEPT: Convention[Steps] = 4096
"""Steps whose times are remembered for `gpuprof attach --watch`, which asks about once a second."""
MOST_SENT: Convention[Steps] = 1000
"""Step times in one answer."""
RATED_STEPS: Assumed[Steps] = 33
"""The rate is computed from the ends of this many last steps."""
FOLLOWED_STEPS: Assumed[Steps] = 16
"""Backward passes are followed for this many steps, to see whether the ends of steps can be found without them."""
MOST_RECORDINGS: Convention[Entries] = 64
"""First and last step are remembered for this many of the latest recordings."""


class Request(NamedTuple):
    """What an attacher wants."""

    folder: Path
    """The run folder, which the attacher has made."""
    at_step: int
    """The recording begins once this many steps have ended; the same number in every rank."""
    by: int
    """The attacher's process id, as it says."""


class Armed:
    """The steps of this process, and the current recording if there is one."""

    def __init__(self, sessions: Holder) -> None:
        self._sessions = sessions
        self._clock: StepClock | None = None
        self._ends_ns: deque[int] = deque(maxlen=STEPS_KEPT)
        """Ends of the last steps, on the monotonic clock."""
        self._server: Server | None = None
        self._request: Request | None = None
        self._recording: Request | None = None
        self._session: Session | None = None
        self._wants_end = False
        self._recorded: deque[list[int]] = deque(maxlen=MOST_RECORDINGS)
        """First and last step of each recording; the last is -1 while it runs."""
        self._why = ""
        """Why the last recording could not begin."""
        self._backward: WrappedAttribute | None = None
        self.tape = None
        self._announce: Callable[[Session], None] | None = None
        """Passes on to a session what a trainer has reported about its training."""
        self._measures_loader = False
        self.on_leaving: Callable[[], None] | None = None
        """If armed for one recording only: what else has to be undone after it."""
        self._leaves = False
        self._undo: list[Callable[[], Any]] = []
        """Functions that remove the callbacks."""
        self.ended = False

    # -- arming

    def follow_optimizers(self, module: Any) -> None:
        """Follows optimizers from now on. module: torch.optim.optimizer."""
        self._sessions.attach_optimizers(module, self)
        atexit.register(self.close)

    def follow_trainers(self, module: Any) -> None:
        """Follows every Trainer that is created from now on. module: transformers.trainer."""
        self._sessions.attach_trainer(module)  # first: it must have counted a step before a recording may begin or end
        callback = armed_callback_class(module.TrainerCallback, self)
        module.DEFAULT_CALLBACKS.append(callback)
        self._undo.append(lambda: module.DEFAULT_CALLBACKS.remove(callback))

    def _begin(self, source: str) -> StepClock:
        """The clock, which is created at the first event of the training."""
        self._clock = StepClock(source, self._step_ended)
        self._measures_loader = loader_meter.is_watching
        self._follow_backwards()
        return self._clock

    def _follow_backwards(self) -> None:
        self._backward = patch_backward(self)

    def forked(self) -> None:
        """Called in a forked child, which is armed by itself once it trains."""
        self._sessions.counter = None
        if self._server is not None:
            self._server.leave()
        self._server = self._clock = self._session = self._request = self._recording = self._announce = None
        self._ends_ns.clear()
        self._recorded.clear()

    def close(self) -> None:
        """Removes the socket and ends the recording. Never raises."""
        self.ended = True
        self._sessions.counter = None
        self._announce = None
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(Exception):
            self._end_recording()
        if self._backward is not None:
            self._backward.undo()

    def _release(self) -> None:
        """Leaves the process as it was before it was armed, so that it can be joined again; not from within an
        optimizer's hooks, which torch goes through one by one at that moment."""
        global armed
        self.close()
        self._sessions.release()
        loader_meter.stop()
        atexit.unregister(self.close)
        for undo in self._undo:
            with contextlib.suppress(Exception):  # the program has removed a callback itself
                undo()
        if self.on_leaving is not None:
            self.on_leaving()
        armed = Armed(self._sessions)

    def fail(self, error: Exception) -> None:
        """gpuprof itself has failed: the process is no longer armed, and training continues."""
        say(f"recording on demand has failed ({type(error).__name__}: {error}); the training continues without it")
        self.close()

    # -- what happens in the training

    @guarded
    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has done its step."""
        self._count_by_clock()
        (self._clock or self._begin(OPTIMIZER)).optimizer_ended(optimizer)

    @guarded
    def on_backward(self, _: Any = None) -> Callable[[], None] | None:
        """A backward pass begins; the returned function is called at its end."""
        clock = self._clock
        if clock is None or not clock.is_here():
            return None
        if self._leaves:
            self._release()
            return None
        clock.backward_begins()
        return self._backward_ended

    @guarded
    def _backward_ended(self) -> None:
        if self._clock is not None:
            self._clock.backward_ends()

    @guarded
    def training_begins(self, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        """A trainer begins to count steps."""
        self._announce = partial(announce, args=args, state=state, model=_loosely(model), optimizer=_loosely(optimizer))
        self._count_by_clock()
        clock = self._clock or self._begin("trainer")
        clock.counted_by("trainer", steps_left(state))

    @guarded
    def step_ended(self) -> None:
        """The trainer says that a step has ended."""
        if self._clock is not None:
            self._clock.counted()

    @guarded
    def training_ends(self) -> None:
        """The trainer is done."""
        self._announce = None
        if self._clock is not None:
            self._count_by_clock()
            self._clock.left_alone()

    def _step_ended(self) -> None:
        self._ends_ns.append(time.perf_counter_ns())
        if self._request is not None or self._session is not None:
            self._look()
        elif self._server is None:
            self._serve()
        elif self._backward is not None:
            self._leave_backwards()
        elif self._clock is not None and not self.ended:
            self._sessions.counter = self._clock.counter(self._ends_ns.append, self.optimizer_ended)
            if self._request is not None:  # a request came meanwhile, and removed the counter first
                self._sessions.counter = None

    def _count_by_clock(self) -> None:
        """Examines steps one by one again. Called on the training's thread."""
        self._sessions.counter = None
        if self._clock is not None:
            self._clock.without_counter()

    def _serve(self) -> None:
        """Begins to answer requests, at the first step: a process that never trains has no socket."""
        self._server = Server(self._answer)
        self._server.start()

    def _leave_backwards(self) -> None:
        clock = self._clock
        if (
            clock is not None
            and clock.step >= FOLLOWED_STEPS
            and not clock.needs_backwards
            and self._backward is not None
        ):
            self._backward.undo()
            self._backward = None
            clock.without_backwards()

    # -- recordings, at the end of a step of the training

    def _look(self) -> None:
        session = self._session
        if session is not None:
            if session.ended or session.is_over or self._wants_end:
                self._end_recording()
        elif self._request is not None and self._step >= self._request.at_step:
            self._begin_recording(self._request)

    def _begin_recording(self, request: Request) -> None:
        self._request, self._wants_end = None, False
        clock = self._clock
        assert clock is not None
        say(f"step {self._step}: gpuprof attach records some steps into {request.folder}")
        loader_meter.only_workers = False
        session = self._sessions.begin(request.folder, clock.source, quiet=True)
        if session is None:
            self._why = f"the recording could not begin; {request.folder}/gpuprof.log says why"
            say(self._why)
            return
        self._session, self._recording = session, request
        session.add_note(f"recorded on demand: the job had taken {self._step:,} steps when the recording began")
        self._recorded.append([self._step + 1, -1])
        if self._announce is not None:
            self._announce(session)

    def _end_recording(self) -> None:
        session, self._session, self._request = self._session, None, None
        if session is None:
            return
        self._sessions.end()
        self._recorded[-1][1] = self._step
        self._recording = None
        loader_meter.only_workers = True
        if self._measures_loader:
            fetch = sys.modules.get("torch.utils.data._utils.fetch")
            if fetch is not None:
                loader_meter.watch(fetch)
        self._leaves = self.on_leaving is not None
        if self._leaves and self._backward is None and not self.ended:
            self._follow_backwards()
        say(f"step {self._step}: the recording is over and its hooks are removed")

    @property
    def _step(self) -> int:
        return self._clock.step if self._clock is not None else 0

    # -- requests, on the thread of the socket

    def _answer(self, request: Message) -> Message:
        what = request.get("do")
        if what == "status":
            return self._status()
        if what == "steps":
            return self._steps(request)
        if what == "record":
            return self._accept(request)
        if what == "stop":
            self._request, self._wants_end = None, True
            return {"ok": True}
        return {"error": "unknown request"}

    def _status(self) -> Message:
        ends = list(self._ends_ns)[-RATED_STEPS:]
        took_ns = ends[-1] - ends[0] if len(ends) > 1 else 0
        clock, session, pending = self._clock, self._session, self._request
        at_hand = self._recording or pending
        rank, local_rank, world_size = place_among_ranks()
        return {
            "pid": os.getpid(),
            "name": _name(),
            "job": job_of(os.environ, os.getppid()),
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "step": self._step,
            "total": clock.total if clock is not None else None,
            "step_ns": took_ns // (len(ends) - 1) if took_ns else None,
            "since_ns": time.perf_counter_ns() - ends[-1] if ends else None,
            "state": "recording" if session is not None else "waiting" if pending is not None else "armed",
            "folder": str(at_hand.folder) if at_hand else None,
            "by": at_hand.by if at_hand else None,
            "progress": None if session is None else session.progress(),
            "why": self._why,
        }

    def _steps(self, request: Message) -> Message:
        """Wall ns of the steps after number `after`: at most MOST_SENT, oldest first."""
        after = request.get("after")
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:
            return {"error": "`after` is a number of steps"}
        ends, last = list(self._ends_ns), self._step
        first = last - len(ends) + 1  # when that step began is not known
        begin = min(max(after, first), last)
        chosen = ends[begin - first : begin - first + MOST_SENT + 1]
        each = [b - a for a, b in pairwise(chosen)]
        return {"first": begin + 1, "ns": each, "recorded": list(self._recorded)}

    def _accept(self, request: Message) -> Message:
        at_hand = self._recording or self._request
        if at_hand is not None:
            return {"error": f"is being recorded already, by the gpuprof attach of process {at_hand.by}", "busy": True}
        if self.ended:
            return {"error": "is no longer armed"}
        if self._sessions.current() is not None:
            return {"error": "records itself at the moment (gpuprof.Recorder)"}
        folder, at_step, by = request.get("folder"), request.get("at_step", 0), request.get("by", 0)
        if not isinstance(folder, str) or not isinstance(at_step, int) or not isinstance(by, int):
            return {"error": "a request without a folder, a step and a process"}
        checked = _checked(folder)
        if at_step and self._step >= at_step:
            return {"error": f"has taken {self._step} steps already", "late": True}
        self._why = ""
        self._request = Request(checked, at_step, by)
        self._sessions.counter = None  # after the request: the next step sees that
        return {"ok": True, "step": self._step}


def _checked(text: str) -> Path:
    """The run folder that a request names. Raises Refused if it is not one, is another user's, or asks for what cannot
    be done."""
    folder = Path(text)
    if len(text) > 4096 or not folder.is_absolute() or not folder.is_dir():
        raise Refused(f"{text[:200]}: this process sees no such folder")
    if folder.stat().st_uid != os.getuid():
        raise Refused(f"{text[:200]} belongs to another user")
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        raise Refused(f"{text[:200]} is not a run folder")
    why = why_not(manifest.get("options"))
    if why:
        raise Refused(why)
    return folder


def job_of(environment: Any, parent: int) -> str:
    """Identifies a job by what its ranks on this machine share: the address of their rendezvous, and the process that
    started them."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    meets = ":".join(str(environment.get(name, "")) for name in names)
    return f"{parent}/{meets}"[:300]


def _name() -> str:
    program = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    return os.path.basename(program)[:100]


def _loosely(found: Any) -> Callable[[], Any]:
    import weakref

    try:
        return weakref.ref(found)
    except TypeError:
        return lambda: None


armed = Armed(holder)
"""This process's Armed."""
os.register_at_fork(after_in_child=lambda: armed.forked())

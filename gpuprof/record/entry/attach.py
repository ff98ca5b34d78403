"""Connects this process's session to what marks the ends of steps: torch's optimizers, a trainer, or a Recorder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from ...runfile import log
from ..base.optimizer_hooks import NOTHING, Counter, OptimizerHooks
from ..base.options import options_of
from ..recording.session import Session
from ..windows.observer import observer


class OptimizerListener(Protocol):
    """An object that is also called when an optimizer has done its step."""

    def optimizer_ended(self, optimizer: Any, /) -> None: ...


class Holder:
    """Holds this process's session. It begins with the first step: a process that never trains has none."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._session: Session | None = None
        self._begun = False
        self._attached = self._follows_forks = False
        self._hooks: OptimizerHooks | None = None
        self._listener: OptimizerListener | None = None
        self._counter: Counter | None = None
        self._undo: list[Callable[[], Any]] = []
        """Functions that remove the hooks."""

    def record_into(self, run: str | os.PathLike[str]) -> None:
        """From now on, sessions of this process write into this run folder."""
        self._run, self._session, self._begun = Path(run), None, False
        self._exchange(None)
        if options_of(self._run)["memory"]:
            observer.watch(self._run)

    def begin(self, run: Path, source: str, quiet: bool) -> Session | None:
        """Begins a recording now, at the end of a step; None if that is not possible. quiet: nothing goes to stderr."""
        self.record_into(run)
        session = self.session(source)
        if session is not None and quiet:
            session.be_quiet()
        return session

    def end(self) -> None:
        """Ends the current recording; the hooks that begin a session stay. Never raises."""
        session, self._session, self._run, self._begun = self._session, None, None, False
        if session is not None:
            session.close()

    def session(self, source: str) -> Session | None:
        """The session, begun if there is none yet; None once it has ended. A forked child gets its own when it
        trains."""
        if not self._begun and self._run is not None:
            self._begun = True
            try:
                self._session = Session.begin(self._run, source)
                if self._session is not None:
                    self._session.exchange = self._count_session
            except Exception as error:
                log(self._run, f"process {os.getpid()} is not recorded: {error!r}")
        session = self._session
        return None if session is None or session.ended else session

    def current(self) -> Session | None:
        """The session that is recording at this moment, or None; does not begin one."""
        session = self._session
        return None if session is None or session.ended else session

    def _forked(self) -> None:
        self._begun, self._session = False, None
        self.counter = None

    @property
    def counter(self) -> Counter | None:
        """In an armed process, while nothing is recorded: the only function called after an optimizer's step. What it
        does not count it passes to the listener."""
        return self._counter

    @counter.setter
    def counter(self, counter: Counter | None) -> None:
        self._counter = counter
        self._exchange(counter if self._run is None else None)

    def _exchange(self, counter: Counter | None, before: Counter = NOTHING) -> None:
        if self._hooks is not None:
            self._hooks.count_by(counter, before)

    def _count_session(self, session: Session, counter: Counter | None, before: Counter) -> None:
        """A session counts its steps in this way from now on."""
        if session is self._session and self._listener is None:
            self._exchange(counter, before)

    def attach_optimizers(self, module: Any, listener: OptimizerListener | None = None) -> None:
        """Follows every optimizer of the process, once. module: torch.optim.optimizer. listener: called after the
        session."""
        if self._attached:
            return
        self._attached = True
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(after_in_child=self._forked)
        opened: list[tuple[int, Callable[[], None]]] = []

        def before(optimizer: Any, _: Any, __: Any) -> None:
            session = self._session
            if session is None:
                return
            # torch 2.13 calls its global hooks twice before a step, and a subclass may call its parent's step.
            if not opened:
                close = session.optimizer_range()
                if close is not None:
                    opened.append((id(optimizer), close))

        def after(optimizer: Any, _: Any, __: Any) -> None:
            if opened and opened[-1][0] == id(optimizer):
                opened.pop()[1]()
            session = self.session("optimizer")
            if session is not None:
                session.on_optimizer_end(optimizer)
            if listener is not None:
                listener.optimizer_ended(optimizer)

        self._listener, self._hooks = listener, OptimizerHooks(module, before, after)
        self._undo.append(self._hooks.remove)

    def attach_trainer(self, module: Any, made: Iterable[Any] = ()) -> None:
        """Makes every Trainer created from now on, and those in `made`, report its steps. module:
        transformers.trainer."""
        from .trainer import callback_class

        callback = callback_class(module.TrainerCallback, self.session)
        module.DEFAULT_CALLBACKS.append(callback)
        self._undo.append(lambda: module.DEFAULT_CALLBACKS.remove(callback))
        for trainer in made:
            trainer.add_callback(callback)
            self._undo.append(lambda trainer=trainer: trainer.remove_callback(callback))

    def release(self) -> None:
        """Ends the session, if there is one, and removes all hooks and callbacks. Never raises."""
        undo, self._undo, self._attached = self._undo, [], False
        self.end()
        for one in undo:
            with contextlib.suppress(Exception):  # the program has removed a callback itself
                one()


holder = Holder()
"""This process's Holder."""

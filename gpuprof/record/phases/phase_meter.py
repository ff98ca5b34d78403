"""The part of a session that handles phases of iterations: splits the steps' time, and writes ranges."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..base.guard import guarded
from .decode_window import DecodeWindow
from .phase_clock import PhaseClock
from .phase_log import log_in
from .phase_names import GENERATION, PART_RANGE, range_of
from .phase_patches import PhasePatches


class Around(Protocol):
    """What the meter needs of the session."""

    ended: bool
    folder: Path

    def fail(self, error: Exception) -> None: ...
    def close(self) -> None: ...
    def is_here(self) -> bool: ...
    def follow_phases(self) -> None: ...
    def open_range(self, name: str) -> Callable[[], None] | None: ...
    def pausable_window(self) -> Any: ...
    def pause_window(self, window: Any, forwards: int | None) -> None: ...


class PhaseMeter:
    """Follows the phases of one session's thread. clock: of the current step."""

    def __init__(self, session: Around, clock: PhaseClock) -> None:
        self._session, self._clock = session, clock
        self._patches = PhasePatches(self)
        self._loops = 0
        """Generate loops that are open: one may call another."""
        self._decode = DecodeWindow(0)
        self._begun_ns = self._forwards = self._left_out = 0
        """Start of the current loop, its forward passes, and how many of them the window has left out."""

    @property
    def ended(self) -> bool:
        """Needed by `guarded`."""
        return self._session.ended

    def fail(self, error: Exception) -> None:
        """gpuprof itself has failed."""
        self._session.fail(error)

    def close(self) -> None:
        """Ends the recording."""
        self._session.close()

    @guarded
    def watch(self) -> None:
        """Looks for trainers and generate loops that the program has imported."""
        self._patches.watch()

    def leave(self) -> None:
        """Removes the hooks. Later steps have no phases, until the program marks one."""
        self._patches.leave()
        self._clock.marked = False

    @guarded
    def on_phase(
        self, phase: str, part: str | None = None, kept: bool = True, now: int | None = None
    ) -> Callable[[], None] | None:
        """A phase, or (phase "") a part of one, begins on this thread; call what is returned at its end. kept: whether
        its span is kept; who marks it may do that. now: when it began, so that it includes the cost of the mark."""
        if not self._session.is_here():
            return None
        self._session.follow_phases()
        if part is not None:
            return self._session.open_range(PART_RANGE + part)
        self._clock.marked = True
        depth, close_range = self._clock.enter(phase, now), self._session.open_range(range_of(phase))
        log = log_in(self._session.folder) if kept else None
        begun = None if log is None else log.begin(phase)

        def close() -> None:
            if log is not None and begun is not None:
                log.end(begun)
            if close_range is not None:
                close_range()
            self._left(depth)

        return close

    @guarded
    def _left(self, depth: int) -> None:
        self._clock.leave(depth)

    @guarded
    def on_part(self, name: str, ns: int, cpu_ns: int) -> None:
        """A reward function has ended, on any thread. cpu_ns: CPU time of that thread."""
        self._clock.add_part(name, ns, cpu_ns)

    def is_in(self, *phases: str) -> bool:
        """Whether one of these phases is open."""
        return self._clock.is_in(*phases)

    @guarded
    def on_generate(self, generating: bool) -> None:
        """A generate loop begins or ends."""
        if not self._session.is_here() or self._clock.phase != GENERATION:
            return
        self._loops = max(self._loops + (1 if generating else -1), 0)
        if self._loops != (1 if generating else 0):
            return
        if generating:
            self._clock.generation.begin()
            self._forwards, self._begun_ns = 0, time.perf_counter_ns()
            return
        self._clock.generation.end()
        self._record(True)
        self._decode.seen(self._forwards, time.perf_counter_ns() - self._begun_ns)

    @guarded
    def on_token(self, sequences: int) -> None:
        """A forward pass of a generate loop is over."""
        if not self._loops or not self._session.is_here():
            return
        self._forwards = self._clock.generation.token(sequences)
        self._record(self._decode.records(self._forwards + 1))

    def _record(self, on: bool) -> None:
        """Whether the window, if there is one, records what comes next."""
        window = self._session.pausable_window()
        if window is None:
            return
        self._left_out += 0 if on else 1
        if window.paused and on:
            self._session.pause_window(window, self._left_out)
            self._left_out = 0
        elif not window.paused and not on:
            self._session.pause_window(window, None)

    @guarded
    def on_completions(self, lengths: list[int]) -> None:
        """Completions of these lengths were generated."""
        if self._session.is_here():
            self._clock.generation.completed(lengths)

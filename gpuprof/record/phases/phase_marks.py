"""`gpuprof.phase`: marks a phase of an iteration in your own loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...runfile import RUN_VARIABLE
from .phase_log import PhaseLogWriter, log_in
from .phase_names import MARKED, range_of


def phase(name: str) -> Any:
    """A context manager around one phase of an iteration.

        with gpuprof.phase("generation"):
            completions = generate(prompts)

    name: generation, environment, reward, log-probabilities, advantage, training, weight sync, validation, save, other
    or idle. Phases nest; time counts for the innermost. Within training gpuprof finds forward, backward and optimizer.
    Under `gpuprof trace` and a `Recorder` the phase is timed and gets a range in the recorded window; its span is kept
    also for processes that do not train, so that `gpuprof diagnose` can put roles on one timeline. Under a torch
    profiler that the program runs itself it is a range too, and under Nsight Systems an NVTX range. Otherwise it does
    nothing, at the cost of a function call. Raises ValueError for another name.
    """
    if name not in MARKED:
        raise ValueError(f"{name!r} is not a phase: {', '.join(MARKED)}")
    session = _session()
    folder = os.environ.get(RUN_VARIABLE) if session is None else session.folder
    if folder:
        return _Marked(session, name, log_in(folder))
    return _bare(name) or _NOTHING


class _Marked:
    """A phase of a recorded process. session: None if the process has taken no step."""

    __slots__ = ("_begun", "_close", "_log", "_name", "_session")

    def __init__(self, session: Any, name: str, log: PhaseLogWriter) -> None:
        self._session, self._name, self._log = session, name, log
        self._close: Callable[..., object] | None = None
        self._begun: tuple[str, int, int] | None = None

    def __enter__(self) -> None:
        if self._session is not None:
            self._close = self._session.phases.on_phase(self._name, None, False)
        elif (bare := _bare(self._name)) is not None:
            bare.__enter__()
            self._close = partial(bare.__exit__, None, None, None)
        self._begun = self._log.begin(self._name)

    def __exit__(self, *_: object) -> None:
        if self._begun is not None:
            self._log.end(self._begun)
        if self._close is not None:
            self._close()


_NOTHING = nullcontext()


def _session() -> Any:
    """The session of this process: that of `gpuprof trace`, else of a Recorder; None where nothing records."""
    for module in ("_gpuprof.record.entry.attach", f"{__name__.rpartition('.phases.')[0]}.entry.attach"):
        attach = sys.modules.get(module)
        session = attach.holder.current() if attach is not None else None
        if session is not None:
            return session
    return None


def _bare(name: str) -> Any:
    """A range for a profiler that is not ours; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.autograd._profiler_enabled():
            return torch.profiler.record_function(range_of(name))
        if torch.cuda.is_available() and _tool_is_listening():
            return torch.cuda.nvtx.range(range_of(name))
    except Exception:  # this torch lacks one of these
        return None
    return None


def _tool_is_listening() -> bool:
    from ..base.ranges import tool_is_listening

    return tool_is_listening()

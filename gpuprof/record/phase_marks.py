"""`gpuprof.phase`: marks a phase of an iteration in a loop of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from .phase_names import MARKED, range_of


def phase(name: str) -> Any:
    """A context manager around one phase of an iteration.

        with gpuprof.phase("generation"):
            completions = generate(prompts)

    name: generation, environment, reward, log-probabilities, advantage, training, weight sync, validation, save, other
    or idle. Phases nest; the innermost has the time. Within training gpuprof finds forward, backward and optimizer.

    Under `gpuprof trace` and a `Recorder` the phase is timed and gets a range in the recorded window. Under a profiler
    of torch that the program runs itself it is a range too, and under Nsight Systems an NVTX range. Otherwise it does
    nothing, at the cost of a function call. Raises ValueError for another name.
    """
    if name not in MARKED:
        raise ValueError(f"{name!r} is not a phase: {', '.join(MARKED)}")
    session = _session()
    if session is not None:
        return _Marked(session, name)
    return _bare(name) or _NOTHING


class _Marked:
    """A phase of a session."""

    __slots__ = ("_close", "_name", "_session")

    def __init__(self, session: Any, name: str) -> None:
        self._session, self._name = session, name
        self._close: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._close = self._session.phases.on_phase(self._name)

    def __exit__(self, *_: object) -> None:
        if self._close is not None:
            self._close()


_NOTHING = nullcontext()


def _session() -> Any:
    """The session of this process: that of `gpuprof trace`, else of a Recorder; None where nothing records."""
    for module in ("_gpuprof.record.attach", f"{__package__}.attach"):
        attach = sys.modules.get(module)
        session = attach.holder.current() if attach is not None else None
        if session is not None:
            return session
    return None


def _bare(name: str) -> Any:
    """A range for a profiler that is not ours; None where there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.autograd._profiler_enabled():
            return torch.profiler.record_function(range_of(name))
        if torch.cuda.is_available() and _tool_is_listening():
            return torch.cuda.nvtx.range(range_of(name))
    except Exception:  # a torch without one of these
        return None
    return None


def _tool_is_listening() -> bool:
    from .ranges import tool_is_listening

    return tool_is_listening()

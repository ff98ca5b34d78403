"""The program's own profilers: one process has room for one, and theirs comes first."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

from .hooks import Listener, WrappedAttribute

ENTRY = "_enable_profiler"
_ENTRIES = (
    ("torch.autograd.profiler", "_prepare_profiler"),
    ("torch.autograd.profiler", ENTRY),
    ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"),
)
"""Functions with which torch's profilers begin: torch.profiler, emit_nvtx, emit_itt and the legacy one."""


def patch_profilers(listener: Listener) -> list[WrappedAttribute]:
    """Calls back when a profiler is about to begin: a second one would end the training with an error, or worse."""

    def wrap(begin: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            listener.on_profiler_begin()
            return begin(*args, **kwargs)

        return wrapper

    patches = []
    for module, name in _ENTRIES:
        try:
            patches.append(WrappedAttribute(importlib.import_module(module), name, wrap))
        except (ImportError, AttributeError):  # another version of torch has none of that name
            continue
    return patches


def profiler_is_active() -> bool:
    """Whether any torch profiler records on this thread at this moment."""
    return bool(sys.modules["torch._C._autograd"]._profiler_enabled())


def profiler_is_alive() -> bool:
    """Whether the program has a profiler that records, or that has been prepared and will.

    torch does not report one that is warming up, so all live objects are searched, which takes as long as one pass of
    the garbage collector.
    """
    if profiler_is_active():
        return True
    from torch.autograd import profiler

    for found in gc.get_objects():
        if not issubclass(type(found), profiler.profile):
            continue
        state = vars(found)
        if state.get("entered") and state.get("kineto_results") is None:
            return True
    return False

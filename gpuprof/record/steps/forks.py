"""What a child forked during a recording must do, so that it runs and exits as if nothing were recorded."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Forking(Protocol):
    """What is called in a forked child."""

    def forked(self) -> None: ...


_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_follows = False


def tell_in_child(listener: Forking) -> None:
    """Calls `listener.forked` in every child forked from now on, for as long as the listener exists. (A function
    registered with the interpreter itself could not be removed.)"""
    global _follows
    _listeners.add(listener)
    if not _follows:
        _follows = True
        os.register_at_fork(after_in_child=_tell)


def _tell() -> None:
    for listener in list(_listeners):
        listener.forked()
    _leave_quickly()


_libc: Any = None


def prepare() -> None:
    """In the parent, before a profiler runs for the first time: a child must not import anything."""
    global _libc
    try:
        import ctypes

        _libc = ctypes.CDLL(None)
    except Exception:
        _libc = None


def stop_recording() -> None:
    """In a child that was born while a profiler recorded: it inherits the profiler's callbacks, and nothing would ever
    read what they gather."""
    try:
        from torch._C import _autograd

        _autograd._enable_record_function(False)  # type: ignore[attr-defined]
    except Exception:
        pass


def _leave_quickly() -> None:
    """Once a profiler has run, C++ destructors wait forever for its thread, which a child does not have. Exit handlers
    run last in, first out: ours flushes C's buffers and ends the process with its exit code before the destructors.
    This holds for as long as the process lives, also once the recording is over and forgotten.
    """
    if _libc is None:
        return
    try:
        _libc.on_exit(_libc._exit, None)
        _libc.__cxa_atexit(_libc.fcloseall, None, None)
    except Exception:  # another C library than GNU's
        pass

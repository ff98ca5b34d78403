"""Calls of torch.func (grad, vjp, vmap …) in a window with shapes: recorded as far as GPU memory allows.

With shapes, torch.profiler holds weak references to the tensors that ops are given until it stops. An ordinary tensor
gives its memory back all the same. But a transform of torch.func wraps tensors in others, and a wrapper holds what it
wraps for as long as anything refers to it: every tensor that an op inside a transform was given stays in memory until
the window closes. A loss that is computed so, in chunks because it would not fit at once, fills the GPU in a few steps.

So calls are measured during warm-up; and of the recorded steps' calls those for which there is no room run with the
profiler's eyes shut. Nothing of theirs is kept then, their kernels are in the trace as ever, and a range around each
says whose they are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from .allowance import Allowance
from .guard import guarded
from .hooks import Patch
from .other_profilers import profiler_is_active
from .ranges import Ranges
from .skip_compile import run_as_is, without_compiling

RANGE = "torch.func"
"""What a call that is left out is called in the trace."""

_BEGINNINGS = {
    "torch._functorch.eager_transforms": (
        "_grad_increment_nesting",
        "_jvp_increment_nesting",
        "_func_increment_nesting",
    ),
    "torch._functorch.vmap": ("_vmap_increment_nesting",),
}
"""What every call of a transform begins with. torch.compile does not look at these: it puts its own in their place."""


class Memory(Protocol):
    """What is asked about the memory of GPUs."""

    def allocated_ever(self) -> int: ...


class _Here(threading.local):
    """What one thread is about: calls nest in it, and the profiler sees it or does not."""

    depth = 0
    begun_bytes: int | None = None
    is_shut_out = False
    close_range: Callable[[], None] | None = None


class Transforms:
    """Watches the outermost calls of torch.func from now on until `close`, which is called by the recorded thread.

    Not in that thread alone: what is computed again in a backward pass runs in a thread of autograd's.
    """

    def __init__(self, memory: Memory, ranges: Ranges) -> None:
        self.ended = False
        """Whether nothing is watched any more."""
        self.error: Exception | None = None
        """What went wrong in here."""
        self.allowance = Allowance()
        self._memory, self._ranges = memory, ranges
        self._records = False
        self._here = _Here()
        self._patches = _patch(self)

    def record(self, budget: int, steps: int) -> None:
        """Warm-up is over. budget: bytes that calls may keep. steps: how many are recorded."""
        self._records = True
        self.allowance.grant(budget, steps)

    def end_step(self, grown: int = 0) -> None:
        """grown: by how much memory has grown since the first recorded step began."""
        self._let_in()  # in case that a call had no end
        self._here.depth = 0
        self.allowance.end_step(grown)

    @guarded
    def on_begin(self) -> None:
        """A transform begins."""
        here = self._here
        here.depth += 1
        if here.depth > 1 or (self._records and not profiler_is_active()):
            return
        here.begun_bytes = self._memory.allocated_ever()
        if self._records and not self.allowance.admit():
            self._shut_out()

    @guarded
    def on_end(self) -> None:
        """A transform has ended, well or not."""
        here = self._here
        here.depth = max(0, here.depth - 1)
        if here.depth:
            return
        was_shut_out = here.is_shut_out
        self._let_in()
        begun_bytes, here.begun_bytes = here.begun_bytes, None
        if begun_bytes is not None:
            size = self._memory.allocated_ever() - begun_bytes
            self.allowance.measured(size, keeps=self._records and not was_shut_out)

    def _shut_out(self) -> None:
        """From here on the profiler sees no ops of this thread, and of autograd's threads that work for it."""
        self._here.close_range = self._ranges.open(RANGE)
        self._here.is_shut_out = True
        _let_profiler_see(False)

    def _let_in(self) -> None:
        here = self._here
        if not here.is_shut_out:
            return
        here.is_shut_out = False
        _let_profiler_see(True)
        close, here.close_range = here.close_range, None
        if close is not None:
            close()

    def close(self) -> None:
        """Leaves torch as it was found. What was counted stays."""
        self.ended = True
        self._let_in()
        for patch in self._patches:
            patch.undo()
        self._patches = []

    def fail(self, error: Exception) -> None:
        """An error of gpuprof's own: nothing is watched any more, so the window had better close."""
        self.error = error
        try:
            self.close()
        except Exception:  # the first error is the one that tells
            pass


def _let_profiler_see(ops: bool) -> None:
    """Whether profilers receive this thread's ops."""
    from torch._C import _autograd

    _autograd._enable_record_function(ops)  # type: ignore[attr-defined]


def _patch(listener: Transforms) -> list[Patch]:
    """Calls back for the beginning and the end of every transform."""

    def wrap_beginning(begin: Any) -> Any:
        tell = without_compiling(listener.on_begin)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tell()
            return begin(*args, **kwargs)

        return run_as_is(wrapper)

    def wrap_end(end: Any) -> Any:
        tell = without_compiling(listener.on_end)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return end(*args, **kwargs)
            finally:
                tell()

        return run_as_is(wrapper)

    patches = []
    for module_name, names in _BEGINNINGS.items():
        module = sys.modules.get(module_name)  # torch imports them with itself
        for name in names:
            end_name = name.replace("increment", "decrement")
            if hasattr(module, name) and hasattr(module, end_name):
                patches.append(Patch(module, end_name, wrap_end))
                patches.append(Patch(module, name, wrap_beginning))
    return patches

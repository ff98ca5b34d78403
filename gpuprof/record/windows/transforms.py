"""Calls of torch.func (grad, vjp, vmap …) in a window with shapes: recorded as far as GPU memory allows.

With shapes, torch.profiler holds weak references to the inputs of ops until it stops. An ordinary tensor still frees
its memory. But a transform of torch.func wraps tensors in others, and a wrapper holds its tensor for as long as
anything refers to it, even weakly: every input of an op inside a transform stays in memory until the window closes. A
loss that is computed this way, in chunks because it would not fit at once, fills the GPU in a few steps. So calls are
measured during warm-up, and in the recorded steps the profiler does not see the ops of calls for which there is no
room. Nothing of these calls is kept; their kernels are in the trace as usual, and a range around each call identifies
them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..base.guard import guarded
from ..base.hooks import WrappedAttribute
from ..base.other_profilers import profiler_is_active
from ..base.ranges import Ranges
from ..base.skip_compile import run_as_is, without_compiling
from .allowance import Allowance

RANGE = "torch.func"
"""Name of the range around a call whose ops are left out."""

_BEGINNINGS = {
    "torch._functorch.eager_transforms": (
        "_grad_increment_nesting",
        "_jvp_increment_nesting",
        "_func_increment_nesting",
    ),
    "torch._functorch.vmap": ("_vmap_increment_nesting",),
}
"""Functions with which every transform begins. torch.compile does not trace them: it has its own replacements."""


class Memory(Protocol):
    """The figure that is needed of `GpuMemory`."""

    def allocated_ever(self) -> int: ...


class _Here(threading.local):
    """State of one thread: how deep its calls nest, and whether the profiler sees its ops."""

    depth = 0
    begun_bytes: int | None = None
    is_shut_out = False
    close_range: Callable[[], None] | None = None


class Transforms:
    """Watches the outermost calls of torch.func from now on until `close`, which the recorded thread calls.
    Calls in other threads count too: recomputation in a backward pass runs in an autograd thread.
    """

    def __init__(self, memory: Memory, ranges: Ranges) -> None:
        self.ended = False
        """Whether the watch has ended."""
        self.error: Exception | None = None
        """The error that ended the watch, if any."""
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
        self._let_in()  # in case a call did not end
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
        """Hides the ops of this thread, and of autograd threads that work for it, from the profiler."""
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
        """Removes the hooks; keeps the counts."""
        self.ended = True
        self._let_in()
        for patch in self._patches:
            patch.undo()
        self._patches = []

    def fail(self, error: Exception) -> None:
        """gpuprof itself has failed: nothing is watched any more, so the window should close."""
        self.error = error
        try:
            self.close()
        except Exception:  # the first error is the informative one
            pass


def _let_profiler_see(ops: bool) -> None:
    """Whether profilers receive this thread's ops."""
    from torch._C import _autograd

    _autograd._enable_record_function(ops)  # type: ignore[attr-defined]


def _patch(listener: Transforms) -> list[WrappedAttribute]:
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
                patches.append(WrappedAttribute(module, end_name, wrap_end))
                patches.append(WrappedAttribute(module, name, wrap_beginning))
    return patches

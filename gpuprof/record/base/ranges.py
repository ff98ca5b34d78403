"""Ranges around the parts of a step, written to torch.profiler or an NVTX tool, if either is active.
Both get the same names. Ranges of one thread nest, except the step's own range, which begins and ends in different
places.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...runfile import COUNTED_VARIABLE

DOMAIN = "gpuprof"
_COLOURS = {"data": "green", "forward": "blue", "backward": "red", "optimizer": "purple"}


class Ranges:
    """Opens and closes ranges in the active tools; costs next to nothing if there is none."""

    def __init__(self, nvtx: Any = None) -> None:
        self._nvtx = nvtx
        self._kineto = False
        self._step: Any = None
        self.listening = nvtx is not None

    def record(self, on: bool) -> None:
        """Whether ranges are written into the trace of torch.profiler from now on."""
        self._kineto = on
        self.listening = on or self._nvtx is not None

    def emit(self, nvtx: Any) -> None:
        """Sets the NVTX binding to write to, None for none; ends the range of the current step."""
        if self._nvtx is not None and self._step is not None:
            self._nvtx.end(self._step)
        self._nvtx, self._step = nvtx, None
        self.listening = self._kineto or nvtx is not None

    def open(self, name: str) -> Callable[[], None] | None:
        """Begins a range on this thread and returns a function that ends it; None if no tool is active."""
        if not self.listening:
            return None
        closers: list[Callable[[], Any]] = []
        try:
            if self._kineto and not _ops_are_watched():
                import torch

                record = torch.profiler.record_function(name)
                record.__enter__()
                closers.append(lambda: record.__exit__(None, None, None))
            if self._nvtx is not None:
                self._nvtx.push(name)
                closers.append(self._nvtx.pop)
        except Exception:  # ranges are optional
            self.record(False)

        def close() -> None:
            for closer in reversed(closers):
                try:
                    closer()
                except Exception:
                    self.record(False)

        return close

    def step(self, number: int) -> None:
        """The step before ends, this one begins. (In the trace of torch.profiler its own marks say this.)"""
        if self._nvtx is not None:
            if self._step is not None:
                self._nvtx.end(self._step)
            self._step = self._nvtx.start(f"step_{number}")


def _ops_are_watched() -> bool:
    """Whether the program watches every op (a TorchDispatchMode): it would see ranges as ops."""
    import torch

    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return depth is not None and depth() > 0


def tool_is_listening() -> bool:
    """Whether an NVTX tool, such as Nsight Systems, has been put into this process.

    Such a tool subscribes to CUPTI, which takes one subscriber: torch.profiler must then be left alone.
    """
    variables = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", COUNTED_VARIABLE)
    return any(os.environ.get(name) for name in variables)


def find_nvtx() -> Any:
    """The best NVTX binding of this environment: the nvtx package, else torch's own; None if there is none."""
    return _package() or _torch()


class _Nvtx:
    """push, pop, start and end of any binding."""

    def __init__(self, push: Any, pop: Any, start: Any, end: Any) -> None:
        self.push, self.pop, self.start, self.end = push, pop, start, end


def _package() -> _Nvtx | None:
    try:
        import nvtx  # pyright: ignore[reportMissingImports]

        domain = nvtx.get_domain(DOMAIN)
        # Under some versions of Nsight Systems the package turns itself off without a word (nvtx 0.2.12 and later).
        if type(domain).__name__ == "DummyDomain" and tool_is_listening():
            return None
        attributes = {name: domain.get_event_attributes(message=name, color=c) for name, c in _COLOURS.items()}
    except Exception:
        return None

    def named(name: str) -> Any:
        if name not in attributes and len(attributes) < 10_000:
            attributes[name] = domain.get_event_attributes(message=name)
        return attributes.get(name) or domain.get_event_attributes(message=name)

    return _Nvtx(
        push=lambda name: domain.push_range(named(name)),
        pop=domain.pop_range,
        start=lambda name: domain.start_range(domain.get_event_attributes(message=name)),
        end=domain.end_range,
    )


def _torch() -> _Nvtx | None:
    import torch

    functions = torch.cuda.nvtx
    try:
        functions.range_end(functions.range_start(DOMAIN))
    except Exception:  # a build without CUDA
        return None
    return _Nvtx(functions.range_push, functions.range_pop, functions.range_start, functions.range_end)

"""A window of steps under Nsight Systems, which was started around the process and waits for a signal to record."""

from __future__ import annotations

import time
from typing import Any

from ...runfile import NSYS, NSYS_EXPORT
from ..base.ranges import Ranges, find_nvtx
from ..base.timing import synchronise
from ..steps.schedule import WINDOW_S


class Capture:
    """Lets nsys record some steps of the calling thread. Used as a `Window` is.

    The device is synchronised when the capture begins and when it ends. Otherwise it would hold kernels of earlier
    steps without their launches, and lack the last step's kernels.
    """

    busy = False
    """torch's profiler is not used here."""
    notes: tuple[str, ...] = ()
    """No part of the window is left out."""

    def __init__(self, first_step: int, warm_up: int, steps: int, ranges: Ranges, devices: list[int]) -> None:
        self.name, self.first_step, self.steps = NSYS, first_step + warm_up, steps
        self.result: dict[str, Any] | None = None
        """The window's entry in rank<N>.json, once it is closed."""
        self.active = False
        """Whether steps are being recorded (not warming up)."""
        self._warm_up, self._ranges, self._devices = warm_up, ranges, devices
        self._begun_s = 0.0

    def start(self) -> None:
        """Begins to warm up."""
        if self._warm_up == 0:
            self._begin()

    def step(self, ended: int) -> bool:
        """A step has ended; returns whether the window is closed now."""
        if not self.active:
            if ended + 1 >= self.first_step:
                self._begin()
            return False
        if time.monotonic() - self._begun_s > WINDOW_S:
            self.steps = ended - self.first_step + 1
        if ended < self.first_step + self.steps - 1:
            return False
        self._end()
        return True

    def stop(self, ended: int) -> None:
        """Closes the window before its time, keeping the whole steps that it has."""
        if self.result is None and self.active:
            self.steps = max(0, ended - self.first_step + 1)
            self._end()

    def _begin(self) -> None:
        synchronise(self._devices)
        runtime = cuda_runtime()
        if runtime is not None:
            runtime.cudaProfilerStart()
        # Only now: NVTX domains and names registered before the capture would be missing from it.
        self._ranges.emit(find_nvtx())
        self.active, self._begun_s = True, time.monotonic()

    def _end(self) -> None:
        self._ranges.emit(None)  # ends the range of the last step before anything else is waited for
        synchronise(self._devices)
        begun = time.perf_counter_ns()
        runtime = cuda_runtime()
        if runtime is not None:
            runtime.cudaProfilerStop()
        self.active = False
        self.result = {
            "window": NSYS,
            "file": NSYS_EXPORT,
            "first_step": self.first_step,
            "steps": self.steps,
            "shapes": False,
            "stacks": False,
            "memory": False,
            "bytes": None,
            "stop_ns": time.perf_counter_ns() - begun,
        }


def cuda_runtime() -> Any:
    """CUDA's runtime, through which nsys is started and stopped; None in a process that does not use a GPU."""
    import torch

    return torch.cuda.cudart() if torch.cuda.is_initialized() else None


def why_no_capture(deaf: bool) -> str | None:
    """Why Nsight Systems cannot record this process; None if it can. deaf: nsys is not injected here."""
    if deaf:
        return "Nsight Systems is not attached to this process (were its environment variables removed?)"
    return None if cuda_runtime() is not None else "this process has no work on a GPU for Nsight to capture"

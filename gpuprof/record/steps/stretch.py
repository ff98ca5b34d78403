"""The clock of free-running steps; recordings, trials and scenarios all use it."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..base.timing import synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Events


PREPARED: Assumed[Events] = 256
"""Events that are created before a stretch begins, and reused in a long one: creating and recording one takes about
40 µs on an H200 machine, 2 % of a short step. A baseline has at most 201."""
RESERVE: Assumed[Events] = 32
"""Once no more than this many are left, used ones are reused."""


_NO_STREAM = object()
"""Unlike every stream."""


class CurrentStream:
    """The current stream. `torch.cuda.current_stream` calls ten functions and makes an object each time, so it is
    called only when the stream has changed."""

    def __init__(self) -> None:
        self.known: Any = None
        """(number, device, kind) of the stream, as torch's C++ function returns them."""
        self.stream: Any = None
        self.is_default = False
        """Whether it is the default stream."""

    @staticmethod
    def readers() -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """torch's C++ functions that return the current device, and the stream of a device in the form of `known`;
        stand-ins if this torch has none."""
        inside = sys.modules["torch"]._C
        read = getattr(inside, "_cuda_getDevice", None), getattr(inside, "_cuda_getCurrentStream", None)
        return (lambda: None, lambda _: _NO_STREAM) if None in read else read  # type: ignore[return-value]

    def of_now(self) -> Any:
        """The current stream of the current GPU; None, which means the same to torch, if this torch does not report
        it."""
        inside = sys.modules["torch"]._C
        try:
            known = inside._cuda_getCurrentStream(inside._cuda_getDevice())
        except AttributeError:
            return None
        if known != self.known:
            self.known, self.stream = known, sys.modules["torch"].cuda.current_stream()
            self.is_default = known[0] == 0
        return self.stream


def _record_event() -> Any:
    """torch's C++ function that records an event in a stream, else the event's own method."""
    torch = sys.modules["torch"]
    return getattr(getattr(torch._C, "_CudaEventBase", None), "record", None) or torch.cuda.Event.record


class Stretch:
    """Consecutive steps, timed without synchronisation between them; the GPUs are idle at the start.
    devices: the GPUs in use. on_gpu: also mark the ends of steps on the GPU's timeline. Where the CPU runs ahead of the
    GPU, the CPU's clock shows how fast it launches, not how long a step takes; the GPU's timeline is right in both
    cases.
    """

    def __init__(self, devices: list[int], on_gpu: bool = False) -> None:
        self._devices, self.on_gpu = devices, on_gpu and bool(devices)
        self.step_ns: list[int] = []
        """Duration of each step on the CPU's clock, without time between steps."""
        self.marks: deque[Any] = deque()
        self._device_ns: list[int] = []
        """Durations between marks whose events have been reused."""
        self._finished: tuple[int, list[int] | None] | None = None
        self.stream = CurrentStream()
        self.record: Any = _record_event() if self.on_gpu else None
        self.made = [self._event() for _ in range(PREPARED if self.on_gpu else 0)]
        """Events that have been created; torch creates one when it is first recorded."""
        synchronise(devices)
        self.begun_ns = self.step_begun_ns = time.perf_counter_ns()
        """Begin of the stretch and of its current step; time before the latter belongs to no step."""
        if self.on_gpu:
            self.mark()

    def end_step(self, now_ns: int) -> None:
        """A step ended at this moment of `time.perf_counter_ns`, and the next one begins."""
        self.step_ns.append(now_ns - self.step_begun_ns)
        self.step_begun_ns = now_ns
        if self.on_gpu:
            self.mark()

    def mark(self) -> None:
        """Marks this moment on the GPU's timeline."""
        made = self.made
        if len(made) <= RESERVE:
            self._use_again()
        if made:
            event, stream = made.pop(), self.stream.of_now()
            if stream is None:  # torch's function in C++ takes no None: it would crash
                event.record()
            else:
                self.record(event, stream)
        else:
            event = self._event()
        self.marks.append(event)

    def _use_again(self) -> None:
        """Reads the times of steps that are over on the GPU, and keeps their events for reuse: all at once, so that one
        step in hundreds takes longer, and not each."""
        marks = self.marks
        while len(marks) >= 2 and marks[1].query():
            first = marks.popleft()
            self._device_ns.append(round(first.elapsed_time(marks[0]) * 1e6))
            self.made.append(first)

    def _event(self) -> Any:
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record(self.stream.of_now())
        return event

    def finish(self) -> tuple[int, list[int] | None]:
        """Waits for the GPUs; returns ns of the whole stretch, and of each step on the GPU's timeline if that is
        marked. Called again it returns the same."""
        if self._finished is None:
            self._finished = self._finish()
        return self._finished

    def _finish(self) -> tuple[int, list[int] | None]:
        synchronise(self._devices)
        whole_ns = time.perf_counter_ns() - self.begun_ns
        if not self.on_gpu:
            return whole_ns, None
        return whole_ns, self._device_ns + [round(a.elapsed_time(b) * 1e6) for a, b in pairwise(self.marks)]

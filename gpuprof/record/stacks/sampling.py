"""In the training: starts the process that samples its Python stacks, and says when it begins and ends.

The process reads this one's memory (python_stacks.py), so that nothing runs here while it samples.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from ...runfile import RUN_VARIABLE, samples_file
from .frame_layout import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import (
        Assumed,
        Bytes,
        Code,
        Convention,
        Cores,
        Entries,
        Measured,
        Published,
        Samples,
        Seconds,
        Steps,
        Times,
        WholeNs,
    )


SAMPLED_S: Assumed[Seconds] = 4.0
"""The stretch lasts at least this long, if the training has enough steps."""
FEWEST_SAMPLED_STEPS: Assumed[Steps] = 2
"""Steps that are sampled even if they are long."""
USUAL_SAMPLES: Assumed[Samples] = 2000
"""Samples of a stretch: for a function that takes 20 % of a step, 2,000 samples give its share to within 5 % of its
value (80 % interval, binomial), 1,500 to within 6 %."""
LEAST_PERIOD_NS: Assumed[WholeNs] = 1_000_000
LARGEST_PERIOD_NS: Assumed[WholeNs] = 50_000_000
SHORT_STRETCH_S: Assumed[Seconds] = 1.0
MANY_CORES: Assumed[Cores] = 8
"""A stretch shorter than SHORT_STRETCH_S is sampled twice as often on machines with at least this many cores."""
SLOW_READING: Measured[Times] = 2
"""Factor of the shortest period in Python 3.10, where each frame is an object: a sample of 50 frames takes the
sampling process 200 µs there, and 60 µs in later versions."""
REPLY_S: Assumed[Seconds] = 10.0
"""The training waits at most this long for the sampling process to start: usually 0.1 s, longer if other programs keep
the CPUs busy."""
TAKEN_S: Assumed[Seconds] = 3.0
"""The training waits at most this long for the sampling process to take what it is sent at the end of the stretch."""
SENT_BYTES: Assumed[Bytes] = 1 << 20
"""What it is sent fits into a buffer of this size; the kernel may allow less, and then the training waits until it is
read."""
MOST_MARKS: Convention[Entries] = 16_000
"""Six in each step of 2 ms."""
DENIED = "denied"
"""The sampler's answer where the system does not let it read."""
_PR_SET_PTRACER: Published[Code] = 0x59616D61

START = """\
import sys, types
package = types.ModuleType("_gpuprof_sampler")
package.__path__ = [sys.argv[1]]
sys.modules["_gpuprof_sampler"] = package
from _gpuprof_sampler.record.stacks import sampler
sampler.main(sys.argv[2], sys.argv[3])
"""
"""Runs sampler.py by its path, as telemetry.py does."""


class NotSampled(Exception):
    """The process cannot be sampled; the message says why."""


class Sampling:
    """The sampling of this process: prepared, then on for a stretch of steps.

    Made by the thread that trains. Raises NotSampled, OSError.
    """

    def __init__(self, folder: Path, rank: int, step_s: float) -> None:
        self._steps_ns: list[int] = []
        """Ends of steps on the monotonic clock; the first is the beginning of the stretch."""
        self._marks: list[tuple[str, int]] = []
        self._step_s = step_s
        self.is_on = self._is_allowed = False
        places = layout()
        if places is None or not sys.executable:
            raise NotSampled(f"gpuprof does not know how Python {sys.version.split()[0]} keeps its stacks")
        self._is_slow = places.frames_are_objects
        variables = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, "PYTHONPATH")}
        words = [str(Path(__file__).parents[2]), str(folder.absolute()), samples_file(rank)]
        self._line, theirs = socket.socketpair()
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)
        self._line.settimeout(REPLY_S)
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", START, *words],
                    stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables,
                    start_new_session=True,
                )  # fmt: skip
            process.wait(REPLY_S)  # it has forked the process that samples
            answer = self._check()
            if answer["error"] == DENIED:
                # Where a process may only be traced by its ancestors, it may name one more tracer.
                _allow(answer["pid"])
                self._is_allowed = True
                answer = self._check()
            if answer["error"] == DENIED:
                raise NotSampled("the system does not let another process read its stacks (ptrace)")
            if answer["error"] is not None:
                raise NotSampled(answer["error"])
            self._line.settimeout(TAKEN_S)
        except (subprocess.TimeoutExpired, TimeoutError, ValueError) as error:
            self.leave()
            raise NotSampled("the process that samples did not start") from error
        except BaseException:
            self.leave()
            raise

    def _check(self) -> dict[str, Any]:
        """Has the sampler read the current stack of this thread and compare it with the truth."""
        stack, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            stack.append([code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
            frame = frame.f_back
        state = ctypes.pythonapi.PyThreadState_Get
        state.restype = ctypes.c_void_p
        target = {
            "pid": os.getpid(), "thread": state(), "code_type": id(types.CodeType), "stack": stack[::-1],
            "roots": [os.getcwd(), *(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))],
        }  # fmt: skip
        self._send({"check": target})
        answer = b""
        while not answer.endswith(b"\n"):
            data = self._line.recv(4096)
            if not data:
                raise ValueError
            answer += data
        return json.loads(answer)

    def _send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        while data:
            # If the sampler is gone, this raises an error here instead of sending SIGPIPE to the program.
            data = data[self._line.send(data, socket.MSG_NOSIGNAL) :]

    def begin(self, steps: int, extends: bool, iteration: int = 0, workers: bool = False) -> int:
        """The stretch begins; returns its steps. steps: as planned. extends: it lasts until it is long
        enough. iteration: steps of one, which is sampled whole. workers: the DataLoader's are sampled too. Raises
        OSError."""
        if extends:
            steps = fewer_steps(steps, self._step_s, iteration)
        expected_s = max(steps * self._step_s, SAMPLED_S if extends else 0.0)
        least = LEAST_PERIOD_NS * (SLOW_READING if self._is_slow else 1)
        if expected_s < SHORT_STRETCH_S and (os.cpu_count() or 1) >= MANY_CORES:
            least //= 2
        period = min(max(int(expected_s * 1e9 / USUAL_SAMPLES), least), LARGEST_PERIOD_NS)
        self._steps_ns = [time.monotonic_ns()]
        self._send({"go": {"period_ns": period, "workers": workers}})
        self.is_on = True
        return steps

    def mark(self, what: str) -> None:
        """A phase of the step begins or ends now."""
        if self.is_on and len(self._marks) < MOST_MARKS:
            self._marks.append((what, time.monotonic_ns()))

    def step(self) -> None:
        """A step has ended."""
        self._steps_ns.append(time.monotonic_ns())

    def noted(self, ends_ns: list[int], marks: list[tuple[str, int]]) -> None:
        """Steps have ended at these moments, with these marks."""
        self._steps_ns += ends_ns
        if self.is_on:
            self._marks += marks[: MOST_MARKS - len(self._marks)]

    def further_steps(self) -> int:
        """Steps until the stretch is long enough, as far as it can be said now: 0 if it is."""
        lasted_ns, steps = self._steps_ns[-1] - self._steps_ns[0], len(self._steps_ns) - 1
        missing_ns = SAMPLED_S * 1e9 - lasted_ns
        return 0 if missing_ns <= 0 else max(int(missing_ns * steps / max(lasted_ns, 1)), 1)

    def end(self, first_step: int) -> None:
        """The stretch is over; the sampler writes what it has. first_step: number of its first step. Raises OSError."""
        try:
            if self.is_on:
                self.is_on = False
                steps = {"first_step": first_step, "steps_ns": self._steps_ns, "marks": self._marks}
                self._send({"stop": steps})
        finally:
            self.leave()

    def leave(self) -> None:
        """Lets go of the sampler, which ends by itself. Never raises."""
        self._line.close()
        if self._is_allowed:
            _allow(0)


def fewer_steps(planned: int, step_s: float, iteration: int) -> int:
    """Steps to sample before the first look at whether the stretch is long enough: no more than needed, but whole
    iterations. planned: the most."""
    needed = math.ceil(SAMPLED_S / step_s) if step_s > 0 else planned
    return min(planned, max(needed, FEWEST_SAMPLED_STEPS, iteration))


def _allow(pid: int) -> None:
    """Allows one process, or none (0), to trace this one where Yama's ptrace_scope is 1 (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)

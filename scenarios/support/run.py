"""One run of a scenario: its switches, sizes that suit this machine, and the timing of its steps."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from gpuprof.record.steps.stretch import Stretch

T = TypeVar("T")
SETTLE, FREE, SYNCHRONISED = 6, 8, 4
"""Steps to settle, free-running steps that are timed together, and steps that are timed one by one, each with a
synchronisation at its end."""
ALONE = 2
"""The last of the steps to settle, which a process takes in its turn. It takes those before, in which kernels are
loaded and compiled, at the same time as others."""
DRAINED = 34
"""The same in a process that times many free-running steps: they use up the batches that workers made while it waited
for its turn (16 workers with 2 each)."""
MOST_FREE = 5000
"""Most free-running steps where these are timed by seconds."""
GATE, PROCESS = "SCENARIO_GATE", "SCENARIO_PROCESS"
"""Variables for a socket at which a timed process gives its name and waits until it may continue, so that one process
runs at a time, and for that name."""
MIB = 1 << 20


@dataclass
class Timing:
    """What a timed process measured, in milliseconds and MiB. `free_ms`: the mean of the free-running steps."""

    fix: str
    free_ms: float = 0.0
    free_each_ms: list[float] = field(default_factory=list)
    synchronised_ms: list[float] = field(default_factory=list)
    tokens: float | None = None
    """Tokens per step without padding, the mean of the timed steps, where the program counts them."""
    joules: float | None = None
    """Energy of the whole GPU during the free-running steps, by its energy counter; None without one."""
    allocated_mib: float | None = None
    """GPU memory at the end: allocated by tensors, reserved by the allocator, and the peak of the tensors."""
    reserved_mib: float | None = None
    peak_mib: float | None = None

    @property
    def step_ms(self) -> float:
        """The median of the synchronised steps."""
        return statistics.median(self.synchronised_ms)


class Run:
    """The argument of a scenario's `train`."""

    def __init__(
        self,
        fix: str = "",
        steps: int | None = None,
        timed: bool = False,
        data: str = "",
        free: int | None = None,
        drained: int | None = None,
        seconds: float | None = None,
    ) -> None:
        import torch

        self.timed = timed
        self._wait()
        self.fix = fix
        self.data = data
        self.tiny = not torch.cuda.is_available()
        self.device = "cpu" if self.tiny else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        self.settle, self.free, self.synchronised = SETTLE, FREE, SYNCHRONISED
        self.alone = ALONE
        if free is not None:
            drained = DRAINED if drained is None else drained
            self.settle, self.free, self.alone = SETTLE - ALONE + drained, free, drained
            self.synchronised = 1
        elif seconds is not None and drained is not None:
            self.settle, self.alone = SETTLE - ALONE + drained, drained
        self._seconds = None if self.tiny else seconds
        if self._seconds is not None:
            self.free = MOST_FREE
        if self.tiny:
            self.settle, self.free, self.synchronised, self.alone = 1, 2, 2, ALONE
        self._energy = _Energy() if timed and not self.tiny else None
        self._asked = steps
        self._stretch: Stretch | None = None
        """The timed steps; those to settle come before."""
        self._tokens: list[float] = []

    @property
    def count(self) -> int:
        """Number of steps of the training; with `seconds` it is known once the free-running steps have ended."""
        if self.timed:
            return self.settle + self.free + self.synchronised
        return self._asked if self._asked is not None else (4 if self.tiny else 80)

    def pick(self, usual: T, tiny: T) -> T:
        """A size: the scenario's own on a GPU, a tiny one on a CPU."""
        return tiny if self.tiny else usual

    def steps(self) -> Iterator[int]:
        """The numbers of the steps; the body of the loop is one optimizer step."""
        step = 0
        while step < self.count:
            yield step
            self.end_step(step)
            step += 1
        self.end()

    def tokens(self, count: float) -> None:
        """Sets the number of tokens of the step, without padding."""
        self._tokens.append(float(count))

    def end_step(self, step: int) -> None:
        """After each step. Only a timed run closes any with a synchronisation."""
        if not self.timed:
            return
        if step == max(self.settle - 1 - self.alone, 0):
            self._synchronise()
            self._wait()
        if self._stretch is not None and self._seconds is not None and step >= self.settle + FREE - 1:
            self._end_free_by_time(step, self._stretch.begun_ns + self._seconds * 1e9)
        if step >= self.settle + self.free - 1:
            self._synchronise()
        if self._stretch is not None:
            self._stretch.end_step(time.perf_counter_ns())
        elif step == self.settle - 1:
            self._begin_stretch()
        if self._energy is not None and step == self.settle + self.free - 1:
            self._energy.read()

    def _end_free_by_time(self, step: int, end_ns: float) -> None:
        if time.perf_counter_ns() >= end_ns:
            self.free, self._seconds = step - self.settle + 1, None

    def _begin_stretch(self) -> None:
        from gpuprof.record.base.timing import devices_in_use
        from gpuprof.record.steps.stretch import Stretch

        self._synchronise()
        if self._energy is not None:
            self._energy.read()
        self._stretch = Stretch(devices_in_use())

    def end(self) -> None:
        """After the last step: prints what was timed, as one line of JSON after the word `timing`."""
        if not self.timed:
            return
        if os.environ.get("RANK", "0") == "0":
            print("\ntiming", json.dumps(asdict(self.timing())), flush=True)
        self._wait()

    def timing(self) -> Timing:
        """What was measured. Call it once all steps are done."""
        import torch

        each = [] if self._stretch is None else [ns / 1e6 for ns in self._stretch.step_ns]
        free, synchronised = each[: self.free], each[self.free :]
        timing = Timing(self.fix, sum(free) / len(free), free, synchronised)
        timing.joules = self._energy.joules if self._energy is not None else None
        if self._tokens:
            timing.tokens = statistics.mean(self._tokens[self.settle :] or self._tokens)
        if not self.tiny:
            timing.allocated_mib = torch.cuda.memory_allocated() / MIB
            timing.reserved_mib = torch.cuda.memory_reserved() / MIB
            timing.peak_mib = torch.cuda.max_memory_allocated() / MIB
        return timing

    def callback(self):
        """For transformers' Trainer and those that derive from it: `callbacks=[run.callback()]`."""
        from transformers import TrainerCallback

        run = self

        class Clock(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                run.end_step(state.global_step - 1)
                control.should_training_stop |= state.global_step >= run.count

            def on_train_end(self, args, state, control, **kwargs):
                run.end()

        return Clock()

    def _wait(self) -> None:
        """Until it is this process's turn: to build its model, to be timed, and to end.

        Every rank waits for itself: one that waited for another in a collective would keep its GPU busy with that.
        """
        if GATE in os.environ:
            with socket.socket(socket.AF_UNIX) as gate:
                gate.connect(os.environ[GATE])
                gate.sendall(os.environ[PROCESS].encode())
                if not gate.recv(1):
                    raise SystemExit("the measurement has ended")

    def _synchronise(self) -> None:
        from gpuprof.record.base.timing import devices_in_use, synchronise

        synchronise(devices_in_use())


class _Energy:
    """The energy counter of the first GPU, read between two moments."""

    def __init__(self) -> None:
        self._read: list[float] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._counter = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            self._counter()
        except Exception:  # the package, the driver or the counter is missing: then nothing is known
            self._counter = None

    def read(self) -> None:
        if self._counter is not None:
            self._read.append(self._counter())

    @property
    def joules(self) -> float | None:
        """Energy between the first and the last reading; None if there were not two."""
        return self._read[-1] - self._read[0] if len(self._read) > 1 else None


def main(train: Callable[[Run], None]) -> None:
    """What a scenario's `train.py` does when it is run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", default="", help="the change to make; none if left out")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--data", default="", help="which lengths, where the scenario has several")
    parser.add_argument("--timed", action="store_true", help="time steps, and print how long they took")
    parser.add_argument("--free", type=int, default=None, help="free-running steps to time")
    parser.add_argument("--seconds", type=float, default=None, help="in place of --free: time free steps for so long")
    parser.add_argument("--drained", type=int, default=None, help="with those: steps in its turn before them")
    args = parser.parse_args()
    train(Run(args.fix, args.steps, args.timed, args.data, args.free, args.drained, args.seconds))

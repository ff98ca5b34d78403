"""Times a training that `gpuprof try` has started, and ends it: its mean step, memory, start, and what it computes.

There is no profiler. Steps are found as in a recording. Once they have settled, and nothing was compiled for some
steps, one free-running stretch between two device synchronisations is timed; its mean is the mean step. The result is
written to `rank<N>.trial.json`, and the process waits to be killed, so that nothing after the stretch ever runs.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runfile import log, read_json, write_json
from ..base.environment import describe_gpu, describe_process, place_among_ranks
from ..base.guard import guarded
from ..base.hooks import patch_backward, patch_loader
from ..base.timing import devices_in_use, synchronise
from ..model.batch import WorkMeter
from ..model.samples import StepSamples, sampled
from ..patches.context import Hub, Proof
from ..steps.free_run_length import MOST_TIMED_STEPS, block_of, half_width, more_steps
from ..steps.step_clock import OPTIMIZER, StepClock
from ..steps.stretch import Stretch
from ..windows.memory import most_resident_bytes
from .cpu_load import CpuTimes, cpu_times, load_between
from .digest import Digests
from .first_models import FirstModels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Seconds, Steps, WholeNs


SETTLING_STEPS: Assumed[Steps] = 10
"""At least this many steps are left out."""
QUIET_STEPS: Assumed[Steps] = 10
"""Steps without compilation that must pass before the stretch begins."""
LONGEST_SETTLE: Assumed[Steps] = 400
"""After this many steps a training is timed even if it still compiles."""
FEWEST_STRETCH_STEPS: Assumed[Steps] = 5
"""Steps that a stretch must have to say anything."""
STEPS_BEFORE_LOOKING: Assumed[Steps] = 20
"""Steps of a stretch before it is checked for the first time."""
SHORTEST_STRETCH_NS: Assumed[WholeNs] = 1_500_000_000
MOST_STRETCH_STEPS: Assumed[Steps] = 1000
"""A stretch lasts at least SHORTEST_STRETCH_NS, if it may and if that takes no more than MOST_STRETCH_STEPS steps."""
ARRIVED = ".arrived"
"""Suffix of a gate's name: the file says that a process waits there."""
GATE_S: Assumed[Seconds] = 0.02
STAYS_S: Assumed[Seconds] = 600.0
"""How long the process waits to be killed; then it ends itself."""


def result_file(rank: int) -> str:
    """Name of what one rank of a trial writes."""
    return f"rank{rank}.trial.json"


class TrialMeter:
    """The timing of one process.

    settle, steps: as an earlier process of the same command chose them; None: this one chooses. seconds: longest
    stretch. gate: a file that the process waits for after its first step, so that many can be started at once and
    timed one by one.
    """

    def __init__(self, folder: Path, plan: dict[str, Any], hub: Hub, proofs: dict[str, Callable[[], Proof]]) -> None:
        self.folder, self.hub, self._proofs = folder, hub, proofs
        self._clock = StepClock(OPTIMIZER, self._end_step)
        self.pid = self._clock.pid
        self.ended = False
        self._rank, _, self._world = place_among_ranks()
        self._settle: int = plan.get("settle") or 0
        self._steps: int = plan.get("steps") or 0
        self._seconds = float(plan.get("seconds") or 20.0)
        self._gate: str | None = plan.get("gate")
        self._brief = bool(plan.get("brief"))
        self.tape = self.bare = None
        self._digests, self._work, self._loaded = Digests(), WorkMeter(), StepSamples()
        self._passes = 0
        """Backward passes of the current step."""
        self._loader: Any = None
        self._models = FirstModels(hub)
        # Where we are.
        self._compiled, self._compiled_at = 0, 0
        self._stretch: Stretch | None = None
        self._free_ns: list[int] = []
        """Durations of the stretch's steps."""
        self._stretch_ns: int | None = None
        self._cpu_begun: CpuTimes | None = None
        self._cpu_ended: CpuTimes | None = None
        self._left = 0
        self._first_unix_ns: int | None = None
        """When the stretch began."""
        self._samples = self._tokens = 0
        self._with_samples = self._with_tokens = 0
        """Number of steps whose samples, and whose tokens, are known."""
        self._devices: list[int] = []

    # -- beginning

    def watch_loaders(self) -> None:
        """Watches every batch of a DataLoader; torch.utils.data has been imported."""
        patch_loader(self)
        sampled.watch(sys.modules["torch.utils.data.dataloader"])

    def watch_passes(self) -> None:
        """Watches backward passes, and the models of the first step; torch has been imported."""
        patch_backward(self)
        os.register_at_fork(after_in_child=self._forked)
        self._models.watch()

    def _forked(self) -> None:
        self.ended = True

    def fail(self, error: Exception) -> None:
        """gpuprof itself has failed: this trial reports the error instead of a measurement."""
        self.finish(f"gpuprof failed in the training: {type(error).__name__}: {error}")

    def close(self) -> None:
        """The program's own signal handler has raised: the training goes its own way."""
        self.ended = True

    @property
    def _step(self) -> int:
        """Steps that have ended."""
        return self._clock.step

    @property
    def _total(self) -> int | None:
        """How many there will be."""
        return self._clock.total

    # -- what happens in the training

    @guarded
    def on_backward(self, tensors: Any) -> Callable[[], None] | None:
        """A backward pass of these tensors begins; what is returned is called at its end."""
        if not self._clock.is_here():
            return None
        self._clock.backward_begins()
        self._loaded.backward()
        self._passes += 1
        if self._digests.wants_losses:
            self._digests.backward(tensors)
        return self._backward_ended

    @guarded
    def _backward_ended(self) -> None:
        self._clock.backward_ends()

    @guarded
    def on_fetch(self, batches: Any) -> Callable[[Any], None] | None:
        """A batch is asked for; what is returned is called with it."""
        if not self._clock.is_here():
            return None
        self._loader = batches
        return functools.partial(self._fetched, batches)

    @guarded
    def _fetched(self, batches: Any, batch: Any) -> None:
        if batch is None:  # perhaps the end of an evaluation
            self._loaded.evaluated()
            return
        if self._digests.wants_batches:
            self._digests.fetched(batch)
        self._work.fetched(batch)
        self._loaded.fetched(sampled.of_batch(batches))

    def on_optimizer_begin(self, optimizer: Any) -> None:
        """An optimizer is about to do its step."""
        self._update(optimizer)

    @guarded
    def _update(self, optimizer: Any) -> None:
        if self._clock.is_here() and self._digests.wants_losses:
            self._digests.update(optimizer)

    @guarded
    def on_optimizer_end(self, optimizer: Any) -> None:
        """An optimizer has done its step: one inside of a backward pass ends a step with that."""
        self._clock.optimizer_ended(optimizer)

    @guarded
    def on_training(self, source: str, left: int | None, model: Any = None, optimizer: Any = None, *_: Any) -> None:
        """A trainer begins to count steps. left: how many there will be."""
        if self._clock.is_here():
            self._clock.counted_by(source, left)

    @guarded
    def on_intervals(self, read: Any) -> None:
        """How often a trainer saves and evaluates does not matter: neither is part of what is compared."""

    @guarded
    def on_arguments(self, args: Any) -> None:
        """What a trainer was given is known from the recording."""

    @guarded
    def on_evaluation(self) -> None:
        """Evaluations are timed as part of the mean step where they fall into the stretch, in every trial alike."""

    @guarded
    def step_ended(self) -> None:
        """The trainer reports that a step has ended."""
        self._clock.counted()

    @guarded
    def on_training_end(self) -> None:
        """The trainer is done."""
        if self._clock.is_here():
            self._too_short()

    def _ends(self) -> None:
        """The program ends, well or not."""
        if not self.ended and os.getpid() == self.pid and self._step:
            self.ended = True
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            self._write(self._short() if error is None else f"{type(error).__name__}: {error}")

    # -- the end of a step

    def _end_step(self) -> None:
        now = time.perf_counter_ns()
        if self._step == 1:
            atexit.register(self._ends)
        if self._step == 1 and self._gate:
            self._wait_at(self._gate)
        self._models.step_ended()
        if self._digests.wants_losses:
            self._digests.end_step()
        self._note_compilation()
        work, samples = self._work.take(), self._loaded.take(self._passes)
        self._passes = 0
        if self._stretch is None:
            if self._has_settled():
                self._begin_stretch()
        else:
            self._stretch.end_step(now)
            if samples is not None:
                self._samples += samples
                self._with_samples += 1
            if work.tokens is not None:
                self._tokens += work.real_tokens or work.tokens
                self._with_tokens += 1
            self._left -= 1
            if self._left <= 0:
                self._left = self._further()
            if self._left <= 0 or self._total == self._step:
                self._end_stretch()
                self.finish(None)
            self._stretch.step_begun_ns = time.perf_counter_ns()

    def _wait_at(self, gate: str) -> None:
        """Waits for the gate's file, which holds the numbers of settling and timed steps, or null."""
        synchronise(devices_in_use())
        Path(gate + ARRIVED).touch()
        end = time.monotonic() + STAYS_S
        while (found := read_json(Path(gate))) is None and time.monotonic() < end:
            time.sleep(GATE_S)
        self._settle, self._steps = ((found or {}).get(name) or 0 for name in ("settle", "steps"))

    def _note_compilation(self) -> None:
        dynamo = sys.modules.get("torch._dynamo.utils")
        count = sum(dynamo.counters["frames"].values()) if dynamo is not None else 0
        if count != self._compiled:
            self._compiled, self._compiled_at = count, self._step

    def _has_settled(self) -> bool:
        """Whether the stretch begins: at the same step on every rank."""
        if self._brief:  # only memory is wanted
            return self._step >= self._settle
        if self._settle and (self._world > 1 or self._step < self._settle):
            return self._step >= self._settle
        if self._settle and self._step <= self._ahead() and not self._is_short():
            return False
        if self._step < SETTLING_STEPS and not self._is_short():
            return False
        if self._is_short() and self._total is not None:
            return self._step >= max(self._total // 3, 1)
        if self._step >= LONGEST_SETTLE:
            return True
        if self._compiled_at and self._step - self._compiled_at < QUIET_STEPS:
            return False
        return bool(self._settle) or self._step > SETTLING_STEPS + self._ahead()

    def _ahead(self) -> int:
        """Steps for which the loader's workers may have prefetched batches during the slow first steps."""
        workers, factor = getattr(self._loader, "_num_workers", 0), getattr(self._loader, "_prefetch_factor", None)
        per_step = max(len(self._digests.batches) // max(self._digests.steps, 1), 1) if self._digests.steps else 1
        return -(-int(workers or 0) * int(factor or 2) // per_step)

    def _is_short(self) -> bool:
        """Whether the training is known to have too few steps for settling and for a stretch."""
        return self._total is not None and self._total < 2 * SETTLING_STEPS + STEPS_BEFORE_LOOKING

    def _begin_stretch(self) -> None:
        self._devices = devices_in_use()
        synchronise(self._devices)
        self._first_unix_ns = time.time_ns()
        self._settle = self._step
        self._left = self._steps or STEPS_BEFORE_LOOKING
        self._cpu_begun = cpu_times()
        self._stretch = Stretch(self._devices)
        self._free_ns = self._stretch.step_ns

    def _further(self) -> int:
        """Steps by which the stretch is extended; 0 if its length is given."""
        count, took_ns = len(self._free_ns), sum(self._free_ns)
        if self._steps or self._world > 1 or took_ns > self._seconds * 1e9:
            return 0
        more = min(more_steps(self._free_ns, self._workers), MOST_TIMED_STEPS - count)
        shortest_ns = min(SHORTEST_STRETCH_NS, self._seconds * 1e9)
        if took_ns < shortest_ns and count < MOST_STRETCH_STEPS:  # a brief disturbance must not dominate
            more = max(more, min(math.ceil((shortest_ns - took_ns) * count / took_ns), MOST_STRETCH_STEPS - count))
        return more

    @property
    def _workers(self) -> int:
        return int(getattr(self._loader, "_num_workers", 0) or 0)

    def _end_stretch(self) -> None:
        assert self._stretch is not None
        self._stretch_ns, _ = self._stretch.finish()
        self._cpu_ended = cpu_times()

    # -- the end

    def _too_short(self) -> None:
        if len(self._free_ns) >= FEWEST_STRETCH_STEPS:
            self._end_stretch()
            self.finish(None)
        else:
            self.finish(self._short())

    def _short(self) -> str:
        steps = "1 step" if self._step == 1 else f"{self._step} steps"
        return f"the training ended after {steps}, before enough of them could be timed"

    def finish(self, error: str | None) -> None:
        """Writes the result, and waits to be killed. Does not return."""
        self.ended = True
        try:
            self._write(error)
        finally:
            _wait_to_be_killed()

    def _write(self, error: str | None) -> None:
        facts: dict[str, Any] = {
            "rank": self._rank, "world_size": self._world, "error": error, "settle": self._settle,
            "steps": len(self._free_ns), "source": self._clock.source, "first_unix_ns": self._first_unix_ns,
            "step_ns": self._free_ns, "mean_ns": None, "half_width_ns": None, "compilations": self._compiled,
            "samples": self._samples / self._with_samples if self._with_samples else None,
            "tokens": self._tokens / self._with_tokens if self._tokens else None,
        }  # fmt: skip
        if self._stretch_ns is not None and self._free_ns:
            facts["mean_ns"] = self._stretch_ns / len(self._free_ns)
            width = half_width(self._free_ns, block_of(self._workers))
            facts["half_width_ns"] = width if width < float("inf") else None
        for part in (self._memory, self._load, self._proven, self._digests.facts, self._environment):
            try:
                facts |= part()
            except Exception as failure:
                log(self.folder, f"{part.__name__}: {failure!r}")
        write_json(self.folder / result_file(self._rank), facts)

    def _memory(self) -> dict[str, Any]:
        """Peak memory: of the GPU, or without one of the process."""
        import torch

        if self._devices:
            return {"peak_bytes": sum(torch.cuda.max_memory_allocated(one) for one in self._devices), "peak_of": "gpu"}
        return {"peak_bytes": most_resident_bytes(), "peak_of": "host"}

    def _load(self) -> dict[str, Any]:
        """CPU use of other programs, and our own CPU time per step. With several ranks the first is left out: each rank
        would count the others."""
        found = load_between(self._cpu_begun, self._cpu_ended, (self._stretch_ns or 0) / 1e9)
        alone = found if self._world == 1 else None
        return {
            "other_cpus": alone and alone.others, "idle_cpus": alone and alone.idle,
            "cpu_ns": found and found.own * (self._stretch_ns or 0) / max(len(self._free_ns), 1),
        }  # fmt: skip

    def _proven(self) -> dict[str, Any]:
        """The proof of each patch."""
        found = []
        for name, proof in self._proofs.items():
            try:
                proven = proof()
            except Exception as error:
                proven = Proof(False, f"{type(error).__name__}: {error}")
            found.append({"name": name, "applied": proven.applied, "text": proven.text[:500]})
        return {"patches": found}

    def _environment(self) -> dict[str, Any]:
        return {"gpu": describe_gpu(), **describe_process()}


def _wait_to_be_killed() -> None:
    """The launcher kills the whole group as soon as every rank has written; nothing of the program runs any more."""
    end = time.monotonic() + STAYS_S
    try:
        while time.monotonic() < end:
            time.sleep(0.5)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)

"""The free-running stages of a session: how long each lasts, and what was timed in it."""

from __future__ import annotations

import time
from typing import Any

from ..base.journal import Journal
from ..model.loader_meter import Made
from ..model.loader_meter import meter as loader_meter
from ..model.training import Training
from .free_run_length import AfterWindows, more_steps
from .schedule import iterations_left
from .step_meter import StepMeter
from .stretch import Stretch

STAGES = ("baseline_free", "sampling", "after")


class FreeTiming:
    """The free-running steps of one process."""

    def __init__(self, options: dict[str, Any], training: Training, meter: StepMeter, world_size: int) -> None:
        self._options, self._training, self._meter, self._world_size = options, training, meter, world_size
        self.stretch: Stretch | None = None
        """The current stretch."""
        self._baseline_ns: list[int] = []
        self.is_short = False
        """Whether the baseline had to end before its mean was known well enough."""
        self.after: AfterWindows | None = None
        """In that case its continuation after the windows."""
        self._made = Made()
        """What the loader had made when the baseline began."""
        self._made_watched: Made | None = None
        """What it had made when steps began to be watched; None if none are."""

    def watch_batches(self) -> None:
        """Batches that this process makes are measured from now on: they are not while steps have next to no hooks."""
        if not self._training.workers:
            self._made_watched = loader_meter.read(False)

    def begin(self, stage: str, devices: list[int]) -> None:
        """A stage begins; does nothing for a stage outside STAGES."""
        if stage not in STAGES:
            return
        self.stretch = Stretch(devices, on_gpu=True)
        workers = self._training.workers
        if stage == "baseline_free":
            self._baseline_ns, self._made = self.stretch.step_ns, loader_meter.read(workers > 0)
        elif stage == "after" and self.is_short:
            now = time.perf_counter_ns()
            self.after = AfterWindows(self._baseline_ns, workers, self._training.batches_ahead, now)

    def further_steps(self, room: int) -> int:
        """Steps by which the baseline is extended until its mean is known well enough. room: the most there may be.
        With several ranks, each with its own clock, and where the user gave a number of steps, the plan is kept.
        """
        wanted = max(min(self._wanted_steps(), room), 0) if self._world_size == 1 else 0
        self.is_short = not wanted and self._wanted_steps() > 0
        return wanted

    def _wanted_steps(self) -> int:
        """Further steps that the mean needs, in whole iterations; 0 if the user gave a number of steps."""
        if self._options["baseline"] is not None:
            return 0
        steps, ns = self._meter.phases.iteration_steps, self._baseline_ns
        each = max(steps, 1)
        wanted = -(-more_steps(ns, self._training.workers) // each)
        if steps and wanted:
            wanted = min(wanted, iterations_left(sum(ns) / len(ns) * each / 1e9, sum(ns) / 1e9))
        return each * wanted

    def end(self, stage: str, journal: Journal) -> None:
        """The stage is over: notes what was timed."""
        stretch, self.stretch, self.after = self.stretch, None, None
        if stage == "baseline_sync" and self._made_watched is not None:
            journal.describe_batches(loader_meter.read(False).since(self._made_watched).facts())
        if stretch is None:
            return
        whole_ns, device_ns = stretch.finish()
        journal.time_stage(whole_ns)
        if device_ns:
            journal.time_steps(device_ns)
        if stage == "baseline_free":
            made = loader_meter.read(self._training.workers > 0).since(self._made_watched or self._made)
            journal.describe_batches(made.facts())

"""A fix of `gpuprof try` in a process that is timed here: applied from outside, and verified before its time counts."""

from __future__ import annotations

import sys
import tempfile

from gpuprof.record.entry.arm import ImportWatch
from gpuprof.record.patches.context import Hub
from gpuprof.record.trials.first_models import FirstModels
from gpuprof.record.trials.trial_setup import apply_all, watch_arguments
from gpuprof.trial.fixes import parse


class FromOutside:
    """One fix, as an argument of `gpuprof try --fix`. Must be created before torch is imported."""

    def __init__(self, fix: str) -> None:
        (asked,) = parse(fix)
        hub = Hub()
        self.fix = fix
        self.models = FirstModels(hub)
        self._proof = apply_all(hub, [{"name": asked.name, "value": asked.value}])[asked.name]
        watch_arguments(hub)
        sys.meta_path.insert(0, ImportWatch(hub.wanted(), tempfile.gettempdir()))

    def check(self) -> None:
        """RuntimeError if the fix took no effect."""
        found = self._proof()
        print(f"{self.fix}: {found.text}", flush=True)
        if not found.applied:
            raise RuntimeError(f"Error: {self.fix} was not applied: {found.text}")

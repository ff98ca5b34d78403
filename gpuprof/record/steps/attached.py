"""The hooks that a session has put into torch and into the model, and removes again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..base.hooks import CallListener, WrappedAttribute, patch_backward, patch_loader
from ..base.other_profilers import ENTRY, patch_profilers
from ..base.ranges import Ranges, find_nvtx
from ..model.flags import flags
from ..model.loader_meter import meter as loader_meter
from ..model.lumps import Lumps
from ..model.performance_warnings import warned
from ..model.samples import sampled
from ..model.training import Training
from ..phases.phase_meter import PhaseMeter
from .step_clock import StepClock


class Attached:
    """The hooks of one session. listener: to the calls of the model. levels: of modules that get ranges."""

    def __init__(
        self, training: Training, phases: PhaseMeter, lumps: Lumps, listener: CallListener, levels: int
    ) -> None:
        self.ranges = Ranges()
        self._training, self._phases, self._lumps = training, phases, lumps
        self._listener, self._levels = listener, levels
        self._patches: list[WrappedAttribute] = []
        self._backward: WrappedAttribute | None = None
        self._loader: WrappedAttribute | None = None
        self._resting: list[Any] = []
        """Patches that `rest` has removed for now."""
        self.sees_profilers = False
        """Whether the session is notified when a torch profiler begins."""

    def attach(self, session: Any, listening: bool) -> None:
        """Lets the session see what happens. listening: a tool outside of this process listens to NVTX ranges."""
        if listening:
            self.ranges = Ranges(find_nvtx())
        warned.listen()
        self._phases.watch()
        self._backward = patch_backward(session)
        profilers = patch_profilers(session)
        self.sees_profilers = any(one.name == ENTRY for one in profilers)
        self._loader = patch_loader(session)
        self._patches = [self._loader, *profilers]
        sampled.watch(sys.modules["torch.utils.data.dataloader"])

    def hook_model(self, ranges: bool) -> None:
        """Watches the model's calls. ranges: the calls and its modules get ranges."""
        self._training.hook(self._listener, self.ranges.open, self._levels if ranges else None)

    def rest(
        self, fetching: Callable[[Any, Any], Any], calling: Callable[[Any, Any, Any], None] | None,
        passing: Callable[[Any, Any], Any] | None = None,
    ) -> bool:  # fmt: skip
        """Removes the hooks that a step calls, until `resume`; returns whether that was possible. fetching: makes the
        stand-in for the loader's `__next__` (see `Patch.rest`). calling: called before the model is, with it and its
        positional arguments and keywords. passing: makes the stand-in for the backward pass; None: there is none."""
        here = [self._backward, *sampled.patches, *(() if self._training.workers else loader_meter.patches)]
        if self._loader is None or not self._loader.rest(fetching):
            return False
        self._resting = [self._loader]
        for patch in here:
            if patch is not None and not patch.rest(passing if patch is self._backward else None):
                self.resume()
                return False
            self._resting.append(patch)
        self._training.unhook()
        if calling is not None:
            self._training.note_calls(self._listener, self.ranges.open, calling)
        return True

    def resume(self) -> None:
        """Puts back what `rest` has removed."""
        resting, self._resting = self._resting, []
        for patch in resting:
            patch.resume()
        if resting:
            self.hook_model(ranges=False)

    def let_go(self) -> None:
        """Removes all hooks except those that count steps and those that emit ranges for an NVTX tool."""
        if self.ranges.listening:
            return
        self._training.unhook()
        flags.stop()
        warned.stop()
        self._lumps.leave()
        loader_meter.stop()
        sampled.stop()
        self._phases.leave()
        self.sees_profilers = False
        for patch in self._patches:
            patch.undo()
        self._patches.clear()

    def leave_backwards(self, clock: StepClock) -> None:
        """Stops following backward passes, if the clock finds the ends of steps without them."""
        if self._backward is not None and not clock.needs_backwards:
            self._backward.undo()
            clock.without_backwards()

    def forked(self) -> None:
        """Called in a forked child, which writes no ranges."""
        self.ranges = Ranges()

    def withdraw(self) -> None:
        """Removes every hook."""
        self.ranges = Ranges()
        self.let_go()
        if self._backward is not None:
            self._backward.undo()

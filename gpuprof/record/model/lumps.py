"""What a step does in addition to training: save, evaluate, log, collect garbage, compile. Wall time of each, per step.

These come in lumps: a mean step contains their share, the median step contains none. Where one lies inside another
(a collection while saving), the time counts for the outer one.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from ..base.hooks import WrappedAttribute

KINDS: tuple[str, ...] = ("save", "evaluation", "logging", "garbage_collection", "compile")

_CALLS = (
    ("save", "torch.serialization", None, "save"),
    ("save", "torch", None, "save"),
    ("save", "safetensors.torch", None, "save_file"),
    ("save", "torch.distributed.checkpoint.state_dict_saver", None, "save"),
    ("logging", "transformers.trainer_callback", "CallbackHandler", "on_log"),
    ("logging", "wandb.sdk.wandb_run", "Run", "log"),
    ("logging", "torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar"),
    ("logging", "mlflow.tracking.fluent", None, "log_metrics"),
)
"""(kind, module, class or None, function): wrapped where the program has imported the module."""


class Lumps:
    """Adds up the wall time that the current step spends on each kind."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        """What `take` would return."""
        self._depth = 0
        self._patches: list[WrappedAttribute] = []
        self._undo: list[Callable[[], None]] = []
        self._collecting_ns = 0

    def take(self) -> dict[str, int]:
        """Kind → ns in the step that has ended, without kinds that did not occur; starts again from zero."""
        taken = self.ns
        if taken:
            self.ns = {}
        return taken

    def add(self, kind: str, ns: int) -> None:
        self.ns[kind] = self.ns.get(kind, 0) + max(ns, 0)

    # -- where it is measured

    def watch(self) -> None:
        """Wraps what the program has imported by now."""
        self.leave()
        for kind, module, owner, name in _CALLS:
            home = sys.modules.get(module)
            home = getattr(home, owner, None) if owner and home is not None else home
            call = getattr(home, name, None)
            if call is not None and callable(call):
                self._patches.append(WrappedAttribute(home, name, lambda call, kind=kind: self._timed(kind, call)))
        gc.callbacks.append(self._collecting)
        self._undo.append(self._forget_collecting)
        self._watch_compiler()

    def leave(self) -> None:
        """Puts everything back."""
        for patch in self._patches:
            patch.undo()
        for undo in self._undo:
            undo()
        self._patches, self._undo, self._depth = [], [], 0

    def _timed(self, kind: str, call: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begun = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth = max(self._depth - 1, 0)
                if not self._depth:
                    self.add(kind, time.perf_counter_ns() - begun)

        return wrapper

    def _collecting(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._collecting_ns = time.perf_counter_ns()
        elif self._collecting_ns and not self._depth:
            self.add("garbage_collection", time.perf_counter_ns() - self._collecting_ns)

    def _forget_collecting(self) -> None:
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _watch_compiler(self) -> None:
        """torch.compile calls back around every compilation (torch 2.6 and newer)."""
        handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if handler is None or not hasattr(handler, "register_start_callback"):
            return
        begun: list[int] = []

        def start(*_: Any) -> None:
            begun.append(time.perf_counter_ns())

        def end(*_: Any) -> None:
            if begun:
                self.add("compile", time.perf_counter_ns() - begun.pop())

        handler.register_start_callback(start)
        handler.register_end_callback(end)
        self._undo.append(lambda: handler.remove_start_callback(start))
        self._undo.append(lambda: handler.remove_end_callback(end))

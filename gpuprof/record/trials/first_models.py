"""The outermost modules that a process trains in its first step, for patches that change a model once it is wrapped."""

from __future__ import annotations

import threading
from typing import Any

from ..patches.context import Hub


class FirstModels:
    """Looks at the forward passes of one thread from the import of torch to the end of the first step."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.thread = hub, threading.get_ident()
        self._depth = 0
        self._models: list[Any] = []
        self._handles: list[Any] = []

    def watch(self) -> None:
        """Begins to watch, if a patch waits for models; torch has been imported."""
        if self.hub.wants_models:
            import torch

            modules = torch.nn.modules.module
            self._handles = [
                modules.register_module_forward_pre_hook(self._enters),
                modules.register_module_forward_hook(self._leaves, always_call=True),
            ]

    def step_ended(self) -> None:
        """Passes the models to the patches, once."""
        if self._handles:
            self.stop()
            models, self._models = self._models, []
            self.hub.first_models(models)

    def stop(self) -> None:
        """Stops watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enters(self, module: Any, _: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        if not self._depth and module.training and all(one is not module for one in self._models):
            import torch

            if torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
                self._models.append(module)
        self._depth += 1

    def _leaves(self, _: Any, __: Any, ___: Any) -> None:
        if threading.get_ident() == self.thread:
            self._depth = max(self._depth - 1, 0)

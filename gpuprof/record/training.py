"""What is being trained, as far as it has shown itself, and the hooks in it. Held on to no longer than needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .environment import describe_gpu
from .hooks import ModuleHooks, named_blocks
from .journal import Journal
from .model import describe_loader, describe_model, describe_optimizer, find_model, is_compiled, optimizer_parameters


class Training:
    """Model, optimizer and loader of one training."""

    def __init__(self) -> None:
        self.total: int | None = None
        """Steps that it will take, if somebody said so."""
        self.known = False
        """Whether it has been described; what comes later is another training."""
        self._model: Any = None
        self._optimizer: Any = None
        self._batches: Any = None
        self._modules: ModuleHooks | None = None

    def meet(self, model: Any = None, optimizer: Any = None, batches: Any = None) -> None:
        """Something of the training has shown itself. batches: the iterator of a DataLoader."""
        if not self.known:
            self._model = self._model if model is None else model
            self._optimizer = self._optimizer if optimizer is None else optimizer
            self._batches = self._batches if batches is None else batches

    @property
    def is_in_training_mode(self) -> bool:
        """Whether a call of the model is a step of the training, not of an evaluation."""
        return self._model is not None and self._model.training

    def describe(self, journal: Journal) -> None:
        """Notes what is trained; a description is nice to have, and no more."""
        self.known = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # looking at an attribute may call it deprecated
                self._describe(journal.facts)
        except Exception as error:
            journal.log(f"the training is not described: {error!r}")

    def _describe(self, facts: dict[str, Any]) -> None:
        facts |= {"steps_total": self.total, "gpu": describe_gpu()}
        if self._batches is not None:
            facts["loader"] = describe_loader(self._batches)
            self._batches = None
        if self._optimizer is not None:
            facts["optimizer"] = describe_optimizer(self._optimizer)
            if self._model is None:
                self._model = find_model(optimizer_parameters(self._optimizer))
        if self._model is not None:
            facts["model"] = describe_model(self._model)

    def hook(self, on_call: Callable[[Any], None], open_range: Any, levels: int | None) -> None:
        """Looks at the model's calls; and with ranges around it and so many levels of its blocks, unless None.

        Not so in a compiled model: it would be compiled once more for hooks in it.
        """
        self.unhook()
        if self._model is None or getattr(self._model, "_compiled_call_impl", None) is not None:
            return
        self._modules = ModuleHooks(open_range, on_call)
        self._modules.watch(self._model)
        if levels is not None and not is_compiled(self._model):
            self._modules.name(self._model, "forward")
            for module, name in named_blocks(self._model, levels):
                self._modules.name(module, name)

    def unhook(self) -> None:
        """Leaves the model as it was found."""
        if self._modules is not None:
            self._modules.remove()
            self._modules = None

    def forget(self) -> None:
        """Lets go of everything: its memory is the program's to free."""
        self._model = self._optimizer = self._batches = None

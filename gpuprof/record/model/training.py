"""The model, optimizer and loader of the training as far as they have been seen, by weak references, and their
hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..base.environment import compute_threads, describe_gpu
from ..base.hooks import CallListener, ModuleHooks, named_blocks
from ..base.journal import Journal
from .program import ProgramRecorder, reference_modules, watch_autocast
from .repeated_calls import RepeatedCalls, models_of_process
from .repeated_matmuls import RepeatedMatmulMarker
from .trained_model import (
    describe_loader,
    describe_model,
    describe_optimizer,
    find_model,
    held_by_optimizers,
    idle_gradients,
    idle_modules,
    is_compiled,
    optimizer_parameters,
)
from .zeroed_work import ZeroedWork


class Training:
    """Model, optimizer and loader of one training."""

    def __init__(self) -> None:
        self.total: int | None = None
        """Number of steps of the training, if known."""
        self.intervals: dict[str, int] = {}
        """Event (save, evaluation, logging) → steps from one to the next, as the trainer's settings say."""
        self.known = False
        """Whether it has been described; a model seen later belongs to another training."""
        self._model: Any = _nothing
        self._optimizer: Any = _nothing
        self._batches: Any = _nothing
        self._updated: dict[int, list[int]] = {}
        """Id of each optimizer that has stepped → ids of the tensors that it updates."""
        self._modules: ModuleHooks | None = None
        self._repeated: RepeatedCalls | None = None
        self._graphs: tuple[ZeroedWork | RepeatedMatmulMarker, ...] = ()
        self._autocast: list[Any] = []
        self.program = ProgramRecorder()

    def meet(self, model: Any = None, optimizer: Any = None, batches: Any = None) -> None:
        """A part of the training was seen. batches: the iterator of a DataLoader."""
        if not self.known:
            self._model = self._model if model is None else _loosely(model)
            self._optimizer = self._optimizer if optimizer is None else _loosely(optimizer)
            self._batches = self._batches if batches is None else _loosely(batches)

    def updates(self, optimizer: Any) -> None:
        """An optimizer has done its step; there may be several."""
        if not self.known and id(optimizer) not in self._updated:
            self._updated[id(optimizer)] = [id(one) for one in optimizer_parameters(optimizer)]

    @property
    def is_in_training_mode(self) -> bool:
        """Whether a call of the model is a step of the training, not of an evaluation."""
        model = self._model()
        return model is not None and model.training

    @property
    def workers(self) -> int:
        """Processes that prepare batches."""
        return _number(self._batches(), "_num_workers")

    def why_no_worker_samples(self) -> str | None:
        """Why the workers' stacks cannot be read; None if they can."""
        if not self.workers:
            return "there are none"
        kinds = {type(one).__name__ for one in getattr(self._batches(), "_workers", ())}
        if kinds <= {"ForkProcess", "Process"}:
            return None
        return "they are not forked from the training (its multiprocessing context starts new processes)"

    @property
    def epoch(self) -> int | None:
        """Batches in an epoch; None if the loader does not know."""
        try:
            return len(self._batches()._index_sampler)
        except (AttributeError, TypeError):
            return None

    @property
    def batches_ahead(self) -> int:
        """Batches that the loader's workers may have prefetched."""
        return self.workers * max(_number(self._batches(), "_prefetch_factor"), 1)

    def describe(self, journal: Journal) -> None:
        """Writes down what is trained; the description is optional, so its errors are only logged."""
        self.known = True
        try:
            self._describe(journal.facts)
        except Exception as error:
            journal.log(f"the training is not described: {error!r}")

    def _describe(self, facts: dict[str, Any]) -> None:
        facts |= {"steps_total": self.total, "intervals": self.intervals or None, "gpu": describe_gpu()}
        facts["threads"] = compute_threads()
        batches, optimizer, model = self._batches(), self._optimizer(), self._model()
        if batches is not None:
            facts["loader"] = describe_loader(batches)
        if optimizer is not None:
            facts["optimizer"] = describe_optimizer(optimizer)
            if model is None:
                model = find_model(optimizer_parameters(optimizer))
        if model is not None:
            self._model = _loosely(model)
            facts["model"] = describe_model(model)
            if optimizer is not None:
                updated = {one for ids in self._updated.values() for one in ids}
                facts["optimizer"] |= idle_gradients(model, updated)
                facts["optimizer"]["idle_modules"] = idle_modules(models_of_process(), updated | held_by_optimizers())
            self.program.meet_model(model)

    def hook(self, listener: CallListener, open_range: Any, levels: int | None) -> None:
        """Watches the model's calls; also puts ranges around the model and `levels` levels of its blocks, unless None.
        Not for compiled models: hooks would cause a recompilation.
        """
        self.unhook()
        model = self._model()
        if model is None or is_compiled(model):
            return
        self._modules = ModuleHooks(open_range, listener)
        self._modules.watch(model)
        if self.program.autocast is None:
            self._autocast = watch_autocast(model, self._saw_autocast)
        if levels is not None:
            self._modules.name(model, "forward")
            for module, name in self._named_modules(model, levels):
                self._modules.name(module, name)
            self._repeated = RepeatedCalls(open_range, models_of_process())
            self._graphs = (ZeroedWork(open_range), RepeatedMatmulMarker(open_range))

    def note_calls(self, listener: CallListener, open_range: Any, note: Callable[[Any, Any, Any], None]) -> None:
        """Calls `note` before each call of the model, and does nothing else, until `unhook` or `hook`."""
        model = self._model()
        if model is not None and not is_compiled(model):
            self._modules = ModuleHooks(open_range, listener)
            self._modules.note(model, note)

    def new_step(self) -> None:
        """A step begins: its calls of models repeat none of earlier steps."""
        if self._repeated is not None:
            self._repeated.new_step()
        for one in self._graphs:
            one.new_step()

    def backward(self, root: Any) -> None:
        """A backward pass of this tensor begins."""
        for one in self._graphs:
            one.backward(root)

    def _saw_autocast(self, name: str) -> None:
        self.program.autocast = name

    def _named_modules(self, model: Any, levels: int) -> list[tuple[Any, str]]:
        """Modules that get a range: the blocks, and modules that are slow because a kernel is missing."""
        blocks = named_blocks(model, levels)
        known = {id(module) for module, _ in blocks}
        slow = [module for module, _ in reference_modules(model) if id(module) not in known] if levels else []
        return blocks + [(module, f"nn.Module: {type(module).__name__}") for module in slow]

    def unhook(self) -> None:
        """Removes the hooks from the model."""
        if self._modules is not None:
            self._modules.remove()
            self._modules = None
        if self._repeated is not None:
            self._repeated.remove()
            self._repeated = None
        self._graphs = ()
        while self._autocast:
            self._autocast.pop().remove()

    def forget(self) -> None:
        """The training or its recording is over."""
        self._model = self._optimizer = self._batches = _nothing


def _number(found: Any, name: str) -> int:
    value = getattr(found, name, None)
    return value if isinstance(value, int) else 0


def _nothing() -> None:
    return None


def _loosely(found: Any) -> Any:
    """A weak reference to an object: the program must be able to free it."""
    try:
        return weakref.ref(found)
    except TypeError:
        return _nothing

"""Finds calls of a model that repeat an earlier one of the same step: same weights and inputs, so the same outputs.
Nothing is read from the GPU and no tensor is kept alive: a tensor is identified by its storage, its offset and strides
in it, and torch's version counter. A call counts as repeated only if its outputs cannot differ: no active dropout, no
buffer or weight changed in between, and the same adapters enabled.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from ..base.hooks import Hook
from ..phases.phase_names import REPEATED_RANGE
from .trained_model import is_compiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Calls, Convention, Modules


MOST_MODELS: Convention[Modules] = 8
"""Number of models that are watched: the largest of the process."""
MOST_CALLS: Convention[Calls] = 256
"""Calls of a step that are remembered; a generation makes one for each token."""
_Open = Callable[[str], "Callable[[], None] | None"]


class RepeatedCalls:
    """Opens a range around every repeated call of some models, on the thread of the call."""

    def __init__(self, open_range: _Open, models: list[Any]) -> None:
        self._open = open_range
        self._handles: list[Any] = []
        self._thread = threading.get_ident()
        self._seen: dict[Any, list[Any]] = {}
        for model in models:
            self._watch(model)

    def new_step(self) -> None:
        """A step has ended: weights change, so no later call repeats an earlier one."""
        self._seen.clear()

    def remove(self) -> None:
        """Removes the hooks from the models."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def _watch(self, model: Any) -> None:
        state = _State(model)
        opened: list[Callable[[], None] | None] = []

        def before(_: Any, args: Any, kwargs: Any) -> None:
            opened.append(self._open(f"{REPEATED_RANGE}{state.name}") if self._repeats(state, args, kwargs) else None)

        def after(*_: Any) -> None:
            close = opened.pop() if opened else None
            if close is not None:
                close()

        try:
            self._handles.append(model.register_forward_pre_hook(Hook(before), with_kwargs=True, prepend=True))
            self._handles.append(model.register_forward_hook(Hook(after), always_call=True))
        except Exception:  # a module that takes no hooks goes without
            pass

    def _repeats(self, state: _State, args: Any, kwargs: Any) -> bool:
        if threading.get_ident() != self._thread or _in_backward():
            return False
        try:
            # Storages are kept by weak references: while such a reference lives, no other storage gets its address.
            kept: list[Any] = []
            key = state.fingerprint(args, kwargs, kept)
        except _Unknown:
            return False
        if key in self._seen:
            return not any(one.expired() for one in self._seen[key])
        if len(self._seen) < MOST_CALLS:
            self._seen[key] = kept
        return False


class _Unknown(Exception):
    """A call depends on something that cannot be known."""


class _State:
    """Everything except its inputs that the outputs of a model depend on."""

    def __init__(self, model: Any) -> None:
        import torch

        self.name = type(model).__name__
        self._model = model
        modules = list(model.modules())
        self._weights = [*model.parameters(), *model.buffers()]
        self._dropouts = [m for m in modules if isinstance(m, torch.nn.modules.dropout._DropoutNd)]
        self._adapters = [m for m in modules if hasattr(m, "_disable_adapters") or hasattr(m, "active_adapter")]
        configs = [getattr(m, "config", None) for m in modules[:4]]
        self._drops = any(_drops(config) for config in configs)

    def fingerprint(self, args: Any, kwargs: Any, kept: list[Any]) -> tuple[Any, ...]:
        """A key of the call. Raises _Unknown if outputs may differ although the key does not."""
        inputs = tuple(_key(one, kept) for one in args)
        named = tuple((name, key) for name, one in sorted(kwargs.items()) if (key := _key(one, kept)) is not None)
        if not kept:
            raise _Unknown
        if self._model.training and (self._drops or any(m.training and m.p > 0 for m in self._dropouts)):
            raise _Unknown
        try:
            versions = sum(one._version for one in self._weights)
        except RuntimeError as error:  # tensors of inference mode have no version counter
            raise _Unknown from error
        adapters = tuple((getattr(m, "_disable_adapters", None), repr(_active(m))) for m in self._adapters)
        return id(self._model), self._model.training, versions, adapters, inputs, named


def _active(module: Any) -> Any:
    return getattr(module, "_active_adapter", None) or getattr(module, "active_adapter", None)


def _drops(config: Any) -> bool:
    """Whether a model's config has a non-zero dropout: functional dropout has no module."""
    values = getattr(config, "__dict__", {})
    names = ("dropout", "pdrop", "drop_rate")
    return any(
        isinstance(value, float) and value > 0 for name, value in values.items() if any(word in name for word in names)
    )


def _key(value: Any, kept: list[Any]) -> Any:
    """A key of an argument; None for a switch, which changes what is returned and not what is computed."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if value is None or isinstance(value, (bool, str)):
        return None
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, torch.Tensor):
        try:
            storage = StorageWeakRef(value.untyped_storage())
            version = value._version
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            raise _Unknown from error
        kept.append(storage)
        return storage.cdata, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype, version
    if isinstance(value, (list, tuple)):
        return tuple(_key(one, kept) for one in value)
    if isinstance(value, dict):
        return tuple((str(name), _key(one, kept)) for name, one in value.items())
    raise _Unknown


def _in_backward() -> bool:
    """Whether a backward pass runs on this thread: checkpointing repeats forward passes in it."""
    import torch

    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def models_of_process() -> list[Any]:
    """The largest outermost modules, except compiled ones, which hooks would cause to be recompiled.
    Takes as long as one pass of the garbage collector."""
    import torch

    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    children = {id(child) for m in modules for child in m._modules.values() if child is not None}
    roots = [(sum(p.numel() for p in m.parameters()), m) for m in modules if id(m) not in children]
    large = sorted((one for one in roots if one[0]), key=lambda one: -one[0])[:MOST_MODELS]
    return [m for _, m in large if not isinstance(m, torch.jit.ScriptModule) and not is_compiled(m)]

"""gpuprof's hooks in torch, and their removal.
Each hook calls straight through to what it wraps; the session decides what else happens, and an error in that never
reaches the training.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol


class Notes(Protocol):
    """Only notes what happens, in steps in which nothing else has to be done (see `tape`)."""

    thread: int
    """The thread that trains."""

    def fetched(self, begun_ns: int, batches: Any, batch: Any, /) -> None: ...
    def called(self, arguments: Any, /) -> None: ...
    def backward(self) -> None: ...


class NotingListener(Protocol):
    """A listener whose tape, if there is one, notes events in its place."""

    @property
    def tape(self) -> Notes | None: ...


class FetchListener(NotingListener, Protocol):
    """What is done when a batch is asked for."""

    def on_fetch(self, batches: Any) -> Callable[[Any], None] | None: ...


class CallListener(NotingListener, Protocol):
    """What is done when the model is called with some arguments."""

    def on_call(self, arguments: Any, /) -> None: ...


class BackwardListener(NotingListener, Protocol):
    """What is done when a backward pass of some tensors begins; what is returned is called at its end."""

    def on_backward(self, tensors: Any, /) -> Callable[[], None] | None: ...


class Listener(FetchListener, BackwardListener, Protocol):
    """What a session does when something happens in the training."""

    def on_profiler_begin(self) -> None: ...


class WrappedAttribute:
    """An attribute replaced by a wrapper of itself, until it is undone."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._wrap = owner, name, wrap
        self._begin()

    def _begin(self) -> None:
        owner, name = self._owner, self._name
        self._own = name in vars(owner)
        self._before = getattr(owner, name)
        self.current: Any = None
        """What is installed: the wrapper, its stand-in, or None for the original."""
        self._after = self.current = _as(self._before, self._wrap(self._before))
        setattr(owner, name, self._after)

    @property
    def name(self) -> str:
        """The attribute's name."""
        return self._name

    @property
    def is_there(self) -> bool:
        """Whether the attribute is still the wrapper or its stand-in: no other code has wrapped it since."""
        return vars(self._owner).get(self._name) is self.current

    def rest(self, stand_in: Callable[[Any, Any], Any] | None = None) -> bool:
        """Removes the wrapper until `resume`; returns whether that was possible. stand_in: makes its replacement from
        the original and the wrapper; None: the original is used."""
        if not self.is_there or self.current is not self._after:
            return False
        if stand_in is None:
            self._restore()
            self.current = None
        else:
            self.current = _as(self._before, stand_in(self._before, self._after))
            setattr(self._owner, self._name, self.current)
        return True

    def resume(self) -> None:
        """Puts the wrapper back."""
        if self.current is self._after:
            return
        if self.current is None:
            self._begin()  # around what there is now
        elif self.is_there:
            self.current = self._after
            setattr(self._owner, self._name, self._after)

    def undo(self) -> None:
        """Restores the original, unless other code has wrapped it since."""
        if self.current is not None and self.is_there:
            self._restore()

    def _restore(self) -> None:
        if self._own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)


def _as(original: Any, wrapper: Any) -> Any:
    """The wrapper, with the name and docstring of what it wraps."""
    found = functools.wraps(original)(wrapper)
    # torch.compile does not trace it: it runs as plain Python, outside the graph.
    found._torchdynamo_disable = True  # type: ignore[attr-defined]
    return found


def patch_backward(listener: BackwardListener) -> WrappedAttribute:
    """Calls back for every backward pass, except those that run inside another (checkpointing)."""
    import torch

    inside = threading.Lock()  # one for all threads: recomputation calls backward on the autograd thread

    def wrap(backward: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not inside.acquire(blocking=False):
                return backward(*args, **kwargs)
            try:
                tape = listener.tape
                if tape is not None and tape.thread == get_ident():
                    tape.backward()
                    return backward(*args, **kwargs)
                close = listener.on_backward(args[0] if args else kwargs.get("tensors"))
                try:
                    return backward(*args, **kwargs)
                finally:
                    if close is not None:
                        close()
            finally:
                inside.release()

        return wrapper

    return WrappedAttribute(torch.autograd, "backward", wrap)


def patch_loader(listener: FetchListener) -> WrappedAttribute:
    """Calls back before and after every fetch of a batch from a DataLoader."""
    from torch.utils.data import dataloader

    def wrap(fetch: Any) -> Any:
        def wrapper(iterator: Any) -> Any:
            tape, batch = listener.tape, None
            if tape is not None and tape.thread == get_ident():
                begun = perf_counter_ns()
                try:
                    batch = fetch(iterator)
                    return batch
                finally:
                    tape.fetched(begun, iterator, batch)
            close = listener.on_fetch(iterator)
            try:
                batch = fetch(iterator)
                return batch
            finally:
                if close is not None:
                    close(batch)

        return wrapper

    return WrappedAttribute(dataloader._BaseDataLoaderIter, "__next__", wrap)


class Hook:
    """A hook on a module. Copies and pickles of the module get a function that does nothing instead of it.
    While torch.compile or torch.jit.trace traces it, it does nothing either: the graph must be the same as without.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        import torch

        self._call = call
        self._is_compiling, self._is_tracing = torch.compiler.is_compiling, torch._C._is_tracing

    def __call__(self, *args: Any) -> None:
        if not (self._is_compiling() or self._is_tracing()):
            self._call(*args)

    def __reduce__(self) -> Any:
        return functools.partial, (sys.audit, "gpuprof.copied")


class DirectHook(functools.partial):
    """The same where the module is not traced: one function of Python less."""

    def __reduce__(self) -> Any:
        return functools.partial, (sys.audit, "gpuprof.copied")


class ModuleHooks:
    """Ranges around the calls of modules, and a look at the arguments of the model's calls."""

    def __init__(self, open_range: Callable[[str], Callable[[], None] | None], listener: CallListener) -> None:
        self._open, self._listener = open_range, listener
        self._handles: list[Any] = []

    def watch(self, model: Any) -> None:
        """Looks at the arguments of every call of the model."""
        self._put(model.register_forward_pre_hook, Hook(self._look), with_kwargs=True, prepend=True)

    def _look(self, model: Any, args: Any, kwargs: Any) -> None:
        tape = self._listener.tape
        if tape is not None and model.training and tape.thread == get_ident():
            tape.called((kwargs, args))
        else:
            self._listener.on_call((kwargs, args))

    def note(self, model: Any, call: Callable[[Any, Any, Any], None]) -> None:
        """Calls `call` before each call of the model, with it, its positional arguments and its keywords."""
        self._put(model.register_forward_pre_hook, DirectHook(call), with_kwargs=True, prepend=True)

    def name(self, module: Any, name: str) -> None:
        """A range of this name around every call of the module."""
        opened = threading.local()  # a recomputation calls it on a thread of its own

        def before(*_: Any) -> None:
            opened.__dict__.setdefault("ranges", []).append(self._open(name))

        def after(*_: Any) -> None:
            ranges = opened.__dict__.get("ranges")
            close = ranges.pop() if ranges else None
            if close is not None:
                close()

        self._put(module.register_forward_pre_hook, Hook(before), prepend=True)
        self._put(module.register_forward_hook, Hook(after), always_call=True)

    def _put(self, register: Any, hook: Callable[..., None], **options: Any) -> None:
        try:
            self._handles.append(register(hook, **options))
        except Exception:  # a module that takes no hooks, such as a scripted one, goes without
            pass

    def remove(self) -> None:
        """Removes every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def named_blocks(model: Any, levels: int) -> list[tuple[Any, str]]:
    """Modules that get their own range, and its name.

    Level 1 is the model's repeated blocks (its longest list of modules) and their siblings: embedding, final norm,
    head. Each further level adds the children of the one before.
    """
    import torch

    if levels < 1:
        return []
    lists = [m for m in model.modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m)]
    longest = max(lists, key=len, default=None)
    if longest is None or len(longest) < 2:
        found = [(child, None) for child in model.children()]
    else:
        found = [(block, i) for i, block in enumerate(longest)]
        found += [(m, None) for m in _around(model, longest)]
    named: list[tuple[Any, str]] = []
    for _ in range(levels):
        named += [(m, _range_name(m, i)) for m, i in found]
        found = [(child, i) for m, i in found for child in _called_children(m)]
    return named


def _range_name(module: Any, index: int | None) -> str:
    """As torch.profiler names modules in its stacks."""
    return f"nn.Module: {type(module).__name__}" + ("" if index is None else f"_{index}")


def _around(model: Any, blocks: Any) -> list[Any]:
    """Siblings of the modules on the path from the model to its blocks."""
    chain = _chain(model, blocks)
    known = {id(m) for m in (*chain, *blocks)}
    return [c for m in chain[:-1] for c in _called_children(m) if id(c) not in known]


def _chain(model: Any, goal: Any) -> list[Any]:
    """The path of modules from the model to one inside it, both included."""
    if model is goal:
        return [model]
    for child in model.children():
        chain = _chain(child, goal)
        if chain:
            return [model, *chain]
    return []


def _called_children(module: Any) -> list[Any]:
    """Children that are called themselves: a list of modules is not, its members are."""
    import torch

    found = []
    for child in module.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            found += list(child.children())
        else:
            found.append(child)
    return found

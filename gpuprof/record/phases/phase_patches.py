"""Marks the phases of an iteration in trainers that do not mark them: TRL's, and transformers' generate loop.

TRL times parts of its iterations (`ProfilingContext`), and emits no range that a profiler sees. Its context is wrapped,
and the methods of loaded trainers that generate what they train on. Nothing is imported; all of it is undone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from types import FunctionType, MethodType
from typing import Any, Protocol

from ..base.hooks import WrappedAttribute
from .phase_names import (
    ADVANTAGE,
    CONTEXTS,
    FORWARD,
    GENERATING,
    GENERATION,
    LOG_PROBABILITIES,
    METHODS,
    REWARD,
    SURROUNDED,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Sequences


WITH_LENGTHS = "_generate"
"""The method that returns all completions of an iteration."""
UNTIMED_REWARDS = "_calculate_rewards_from_functions"
"""The method, of online DPO, that calls all reward functions in none of TRL's contexts."""
MOST_COMPLETIONS: Convention[Sequences] = 65_536
"""Completions of one step whose lengths are read."""


class PhaseListener(Protocol):
    """What a session does at phases."""

    def on_phase(
        self, phase: str, part: str | None = None, kept: bool = True, now: int | None = None
    ) -> Callable[[], None] | None: ...
    def on_part(self, name: str, ns: int, cpu_ns: int) -> None: ...
    def on_generate(self, generating: bool) -> None: ...
    def on_token(self, sequences: int) -> None: ...
    def on_completions(self, lengths: list[int]) -> None: ...
    def is_in(self, *phases: str) -> bool: ...


class PhasePatches:
    """The wrappers that mark phases, while they are wanted."""

    def __init__(self, listener: PhaseListener) -> None:
        self._listener = listener
        self._patches: list[WrappedAttribute] = []
        self._done: set[tuple[int, str]] = set()

    def watch(self) -> None:
        """Wraps what the program has imported by now, and was not wrapped yet."""
        generation = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
        if generation is not None:
            self._put(generation, "generate", self._generate)
            self._put(generation, "_update_model_kwargs_for_generation", self._token)
        trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
        generating = [] if trainer is None else [kind for kind in _subclasses(trainer) if _generates(kind)]
        for owner in dict.fromkeys(base for kind in generating for base in kind.__mro__ if trainer in base.__mro__):
            for name, phase in METHODS.items():
                if name in vars(owner):
                    self._put(owner, name, lambda call, name=name, phase=phase: self._method(call, name, phase))
        context = getattr(sys.modules.get("trl.extras.profiling"), "ProfilingContext", None)
        if context is not None and generating:
            self._contexts(context)

    def leave(self) -> None:
        """Puts everything back."""
        for patch in reversed(self._patches):
            patch.undo()
        self._patches.clear()
        self._done.clear()

    def _put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        if (id(owner), name) not in self._done and callable(vars(owner).get(name)):
            self._done.add((id(owner), name))
            self._patches.append(WrappedAttribute(owner, name, wrap))

    def _method(self, call: Any, name: str, phase: str) -> Any:
        call = self.by_function(call) if name == UNTIMED_REWARDS else call

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            now = time.perf_counter_ns()
            if phase == ADVANTAGE and self._listener.is_in(*SURROUNDED):
                return call(*args, **kwargs)
            close = self._listener.on_phase(_of_gradients(phase), None, True, now)
            try:
                found = call(*args, **kwargs)
                if name == WITH_LENGTHS and (lengths := completion_lengths(found)):
                    self._listener.on_completions(lengths)
                return found
            finally:
                if close is not None:
                    close()

        return wrapper

    def by_function(self, call: Any) -> Any:
        """A method that calls the trainer's reward functions: each is timed while it runs."""

        def wrapper(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            functions = getattr(trainer, "reward_funcs", None)
            if not isinstance(functions, list):
                return call(trainer, *args, **kwargs)
            trainer.reward_funcs = [self._reward(one) for one in functions]
            try:
                return call(trainer, *args, **kwargs)
            finally:
                trainer.reward_funcs = functions

        return wrapper

    def _reward(self, function: Any) -> Any:
        """A reward function that reports its time; models and coroutines, which trainers recognise, as they are."""
        if not isinstance(function, (FunctionType, MethodType)) or iscoroutinefunction(function):
            return function

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            close = self._listener.on_phase("", function.__name__)
            begun, cpu_begun = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                ns, cpu_ns = time.perf_counter_ns() - begun, time.thread_time_ns() - cpu_begun
                if close is not None:
                    close()
                self._listener.on_part(function.__name__, ns, cpu_ns)

        return wrapper

    def _generate(self, call: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            close = self._listener.on_phase(GENERATION)
            self._listener.on_generate(True)
            try:
                return call(*args, **kwargs)
            finally:
                self._listener.on_generate(False)
                if close is not None:
                    close()

        return wrapper

    def _token(self, call: Any) -> Any:
        def wrapper(model: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._listener.on_token(_sequences(outputs))
            return call(model, outputs, *args, **kwargs)

        return wrapper

    def _contexts(self, context: Any) -> None:
        """TRL's contexts: those with a phase's name mark that phase, those within the rewards time a reward
        function."""
        opened: dict[int, tuple[int, int, Callable[[], None] | None, str | None]] = {}

        def enter(call: Any) -> Any:
            def wrapper(self_: Any) -> Any:
                name = str(getattr(self_, "name", "")).partition(".")[2]
                phase = CONTEXTS.get(name)
                part = name if phase is None and self._listener.is_in(REWARD) and name not in METHODS else None
                close = self._listener.on_phase(phase or "", part) if phase or part else None
                cpu_begun = time.thread_time_ns() if part else 0  # a system call, unlike the other clock
                opened[id(self_)] = (time.perf_counter_ns(), cpu_begun, close, part)
                return call(self_)

            return wrapper

        def leave(call: Any) -> Any:
            def wrapper(self_: Any, *args: Any) -> Any:
                begun, cpu_begun, close, part = opened.pop(id(self_), (0, 0, None, None))
                if close is not None:
                    close()
                if part is not None:
                    cpu_ns = time.thread_time_ns() - cpu_begun
                    self._listener.on_part(part, time.perf_counter_ns() - begun, cpu_ns)
                return call(self_, *args)

            return wrapper

        self._put(context, "__enter__", enter)
        self._put(context, "__exit__", leave)


def _of_gradients(phase: str) -> str:
    """The phase, but forward for log-probabilities computed with gradients."""
    if phase != LOG_PROBABILITIES:
        return phase
    import torch

    return FORWARD if torch.is_grad_enabled() else LOG_PROBABILITIES


def _generates(kind: type) -> bool:
    return any(name in vars(base) for base in kind.__mro__ for name in GENERATING)


def _subclasses(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _sequences(outputs: Any) -> int:
    """Sequences of a forward pass, by the shape of its logits."""
    try:
        return int(outputs.logits.shape[0])
    except (AttributeError, IndexError, TypeError):
        return 0


def completion_lengths(found: Any) -> list[int]:
    """Lengths of completions in what a trainer's generation returns: lists of token numbers in host memory, the second
    of a tuple. Nothing is read from tensors, which may be on a GPU."""
    if not isinstance(found, tuple) or len(found) < 2 or not isinstance(found[1], list):
        return []
    lists = found[1][:MOST_COMPLETIONS]
    return [len(one) for one in lists] if lists and all(isinstance(one, list) for one in lists) else []

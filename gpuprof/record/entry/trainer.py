"""A callback for transformers.Trainer (and TRL's, and unsloth's) that reports steps to a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..model.trainer_arguments import trainer_intervals


class Bare(Protocol):
    """Steps of which next to nothing is noted: whether one of them has ended is asked first."""

    def ended(self) -> bool: ...


class TrainerListener(Protocol):
    """What counts a trainer's steps: the session of a recording, or what times one process of a trial."""

    @property
    def bare(self) -> Bare | None: ...
    def on_training(self, source: str, left: int | None, model: Any, optimizer: Any) -> None: ...
    def on_intervals(self, read: Callable[[], dict[str, int]]) -> None: ...
    def on_arguments(self, args: Any) -> None: ...
    def on_evaluation(self) -> None: ...
    def step_ended(self) -> None: ...
    def on_training_end(self) -> None: ...


class StepListener(Protocol):
    """Counts the steps of a trainer while there is no session."""

    def training_begins(self, args: Any, state: Any, model: Any, optimizer: Any, /) -> None: ...
    def step_ended(self) -> None: ...
    def training_ends(self) -> None: ...


def steps_left(state: Any) -> int | None:
    """Optimizer steps that are left by a trainer's state; None if it does not say."""
    if not isinstance(state.max_steps, int) or state.max_steps <= 0:
        return None
    done = state.global_step if isinstance(state.global_step, int) else 0
    return max(0, state.max_steps - done)


def announce(
    session: TrainerListener, args: Any, state: Any, model: Callable[[], Any], optimizer: Callable[[], Any]
) -> None:
    """Reports to a session what a trainer trains, and for how long. model, optimizer: return the object, or None."""
    session.on_training("trainer", steps_left(state), model(), optimizer())
    session.on_intervals(lambda: trainer_intervals(args, state))
    session.on_arguments(args)


def callback_class(base: type, session_of: Callable[[str], TrainerListener | None]) -> type:
    """The callback's class, derived from the library's own `TrainerCallback`, which only the caller may import."""

    class GpuprofCallback(base):
        """Reports the steps of a Trainer to gpuprof."""

        def __reduce__(self) -> Any:
            return base, ()  # in a copy of the trainer, the library's own callback, which does nothing

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
                announce(session, args, state, lambda: model, lambda: optimizer)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                session.on_evaluation()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None and (session.bare is None or not session.bare.ended()):
                session.step_ended()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                session.on_training_end()

    return GpuprofCallback


def armed_callback_class(base: type, listener: StepListener) -> type:
    """The class of a callback that counts the steps of a Trainer while no session records them."""

    class GpuprofArmedCallback(base):
        """Counts the steps of a Trainer for gpuprof."""

        def __reduce__(self) -> Any:
            return base, ()

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            listener.training_begins(args, state, kwargs.get("model"), kwargs.get("optimizer"))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            listener.step_ended()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            listener.training_ends()

    return GpuprofArmedCallback

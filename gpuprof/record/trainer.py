"""A callback for transformers.Trainer (and TRL's, and unsloth's) that tells a session where steps begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .intervals import trainer_intervals
from .session import Session


def callback_class(base: type, session_of: Callable[[str], Session | None]) -> type:
    """The callback's class, derived from the library's own `TrainerCallback`, which only the caller may import."""

    class GpuprofCallback(base):
        """Reports the steps of a Trainer to gpuprof."""

        def __reduce__(self) -> Any:
            return base, ()  # in a copy of the trainer, the library's own callback, which does nothing

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                total = state.max_steps if isinstance(state.max_steps, int) and state.max_steps > 0 else None
                done = state.global_step if isinstance(state.global_step, int) else 0
                left = None if total is None else max(0, total - done)
                session.on_training("trainer", left, kwargs.get("model"), kwargs.get("optimizer"))
                session.on_intervals(lambda: trainer_intervals(args, state))
                session.on_arguments(args)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                session.on_evaluation()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                session.step_ended()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            session = session_of("trainer")
            if session is not None:
                session.on_training_end()

    return GpuprofCallback

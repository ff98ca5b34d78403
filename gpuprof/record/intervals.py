"""How often a trainer saves, evaluates and logs, read from its settings: steps from one such event to the next."""

from __future__ import annotations

from typing import Any

_EVENTS = {
    "save": ("save_strategy", "save_steps"),
    "evaluation": ("eval_strategy", "eval_steps"),
    "logging": ("logging_strategy", "logging_steps"),
}
"""Event → names of its strategy and of its interval in transformers.TrainingArguments and TrainerState."""


def trainer_intervals(args: Any, state: Any) -> dict[str, int]:
    """Event (save | evaluation | logging) → optimizer steps from one to the next.

    args, state: transformers' TrainingArguments and TrainerState at the beginning of a training. Left out is what the
    trainer never does within the training, and what its settings do not say.
    """
    total = _whole(getattr(state, "max_steps", None))
    epochs = getattr(state, "num_train_epochs", None)
    epoch = round(total / epochs) if total and isinstance(epochs, (int, float)) and epochs > 0 else None
    found: dict[str, int] = {}
    for event, (strategy_name, steps_name) in _EVENTS.items():
        strategy = getattr(args, strategy_name, None)
        strategy = getattr(strategy, "value", strategy)
        every = None
        if strategy == "steps":
            every = _steps(getattr(state, steps_name, None) or getattr(args, steps_name, None), total)
        elif strategy == "epoch":
            every = epoch
        if every and (total is None or every <= total):
            found[event] = every
    return found


def _steps(value: Any, total: int | None) -> int | None:
    """Steps of an interval; a number below 1 is a share of the whole training."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        return None
    if value < 1:
        return max(round(value * total), 1) if total else None
    return round(value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

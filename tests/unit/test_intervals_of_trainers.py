"""How often a trainer saves, evaluates and logs, read from its settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuprof.record.intervals import trainer_intervals


def settings(**changed: object) -> SimpleNamespace:
    usual = {"save_strategy": "steps", "save_steps": 500, "eval_strategy": "no", "eval_steps": None,
             "logging_strategy": "steps", "logging_steps": 10}  # fmt: skip
    return SimpleNamespace(**(usual | changed))


def state(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(**({"max_steps": 3000, "num_train_epochs": 3} | changed))


@pytest.mark.parametrize(
    ("args", "of", "expected"),
    [
        (settings(), state(), {"save": 500, "logging": 10}),
        (settings(save_strategy=SimpleNamespace(value="epoch")), state(), {"save": 1000, "logging": 10}),
        (settings(save_steps=0.1), state(), {"save": 300, "logging": 10}),
        (settings(save_steps=0.1), state(save_steps=300), {"save": 300, "logging": 10}),
        (settings(eval_strategy="steps", eval_steps=250), state(), {"save": 500, "evaluation": 250, "logging": 10}),
        (settings(), state(max_steps=120), {"logging": 10}),
        (settings(save_steps=True, logging_steps="x"), state(), {}),
        (SimpleNamespace(), SimpleNamespace(), {}),
    ],
    ids=[
        "as set",
        "by epoch",
        "a share",
        "a share, computed",
        "evaluates",
        "never comes to it",
        "odd",
        "nothing known",
    ],
)
def test_intervals(args: SimpleNamespace, of: SimpleNamespace, expected: dict[str, int]):
    assert trainer_intervals(args, of) == expected

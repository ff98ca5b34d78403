"""A trainer's arguments: how often it saves, evaluates and logs, and one place that knows their fields."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace

import pytest
from helpers.paths import ROOT

from gpuprof.record.model.trainer_arguments import (
    ACCUMULATION,
    BATCH,
    CLASS,
    LOGGING_STEPS,
    LOSS_FILTER,
    SILENT,
    trainer_intervals,
)


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


def test_one_file_of_the_recorder_knows_the_fields_of_a_trainers_arguments():
    """Their names are written nowhere else in record/; docstrings may name them."""
    names = {CLASS, BATCH, ACCUMULATION, LOGGING_STEPS, LOSS_FILTER, *SILENT, "save_steps", "eval_steps"}
    names -= {"push_to_hub"}  # a method of models and trainers, too
    found = []
    for path in sorted((ROOT / "gpuprof" / "record").rglob("*.py")):
        if path.name == "trainer_arguments.py" and path.parent.name == "model":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path.name}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
            if names & set(re.findall(r"\w+", node.value))
        ]
    assert not found

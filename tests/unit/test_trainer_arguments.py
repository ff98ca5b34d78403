"""The patch that changes a trainer's arguments, and trials of what would shorten an iteration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.diagnosis.result.fix import PatchValue as NamedPatch
from gpuprof.diagnosis.result.iteration_model import IterationChange
from gpuprof.record.patches.context import Context, Hub
from gpuprof.record.patches.trainer_arguments import PATCH, apply, as_value, given_in
from gpuprof.trial.fixes import advised, of_iteration, parse
from gpuprof.value_range import Range


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_completion_length": 60}, "max_completion_length=60"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "use_vllm=true+vllm_mode=colocate"),
        ({"beta": 0.0, "name": "true"}, 'beta=0.0+name="true"'),
        ({"generation_kwargs": {"use_cache": "static"}}, 'generation_kwargs={"use_cache":"static"}'),
    ],
)  # fmt: skip
def test_a_value_is_read_as_it_is_written(given: dict[str, Any], text: str):
    assert as_value(given) == text
    assert given_in(text) == given
    assert PATCH.check(text)


@pytest.mark.parametrize("text", ["", "beta", "beta=", "=1", "be ta=1", "beta={", "beta=1+", "beta=$(rm)"])
def test_what_is_no_value(text: str):
    assert given_in(text) is None
    assert not PATCH.check(text)


def patched(value: str, **fields: Any) -> tuple[SimpleNamespace, Any]:
    hub = Hub()
    proof = apply(Context(hub, PATCH.name, value))
    arguments = SimpleNamespace(**fields)
    hub.change_arguments(arguments)
    return arguments, proof


def test_the_arguments_get_the_values():
    arguments, proof = patched("max_completion_length=60+vllm_mode=colocate", max_completion_length=256, vllm_mode=None)
    assert (arguments.max_completion_length, arguments.vllm_mode) == (60, "colocate")
    assert proof().applied
    arguments.max_completion_length = 99
    assert "after the patch" in proof().text


def test_a_field_that_is_not_there_is_not_made():
    arguments, proof = patched("max_completion_length=60", max_new_tokens=256)
    assert not hasattr(arguments, "max_completion_length")
    assert not proof().applied and "no max_completion_length" in proof().text


def change(value: str, changes: str | None) -> IterationChange:
    patch = NamedPatch("trainer_arguments", value)
    return IterationChange("x", "X", "fix", Range(50, 60, 80), 100 / 60, "basis", changes, (), patch)


def test_a_trial_knows_what_is_expected_of_an_iteration():
    asked = change("max_completion_length=60", "completions are cut")
    same = change("cache_implementation=static", None)
    iteration = SimpleNamespace(changes=(asked, same), steps=2, mean_ns=100)
    diagnosis: Any = SimpleNamespace(findings=(), worth_trying=(), iteration=iteration)
    known = {one.candidate.fix: one for one in of_iteration(diagnosis)}
    (wanted,) = parse("trainer_arguments=max_completion_length=60")
    found = known[wanted].candidate
    assert found.step_ns is not None and found.speedup is not None
    assert (found.step_ns.low, found.step_ns.expected, found.step_ns.high) == (25, 30, 40)
    assert found.speedup.expected == pytest.approx(100 / 60)
    # What changes the training is only tried where it is asked for.
    candidates, _ = advised(diagnosis)
    assert [one.fix.value for one in candidates] == ["cache_implementation=static"]

"""An RL iteration with other values of its trainer's arguments, compared with sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.make_run import RunBuilder
from helpers.paths import ROOT
from jsonschema import Draft202012Validator

from gpuprof import documents
from gpuprof.cli import main
from gpuprof.diagnosis.iterations.trainer import Trainer
from gpuprof.diagnosis.iterations.with_arguments import WithArguments, with_arguments
from gpuprof.diagnosis.result.iteration_model import GenerationBudget, Iteration, PhaseBudget, RecordedPhase, RewardTime
from gpuprof.errors import GpuprofError
from gpuprof.report.terminal.arguments_terminal import render
from gpuprof.report.terminal.drawn import drawn

RUN = str(ROOT / "tests" / "data" / "rl" / "grpo")
MS = 1_000_000
PHASES = {"generation": 1000, "reward": 600, "log-probabilities": 100, "forward": 100, "backward": 200, "optimizer": 40}
TRAINER = Trainer(frozenset(), "GRPOTrainer", settings={"beta": 0.04, "per_device_train_batch_size": 8})


def iteration(busy: float) -> Iteration:
    """2,040 ms: 980 ms decode 98 tokens, one reward waits for 500 ms, another computes for 100. The GPU works for the
    share `busy` of generation and passes."""
    return Iteration(
        steps=1, count=5, mean_ns=2040 * MS,
        phases=tuple(PhaseBudget(name, ms * MS, 0, ms * MS) for name, ms in PHASES.items()),
        training_ns=340 * MS,
        rewards=(RewardTime("judge", 500 * MS, MS), RewardTime("parse", 100 * MS, 100 * MS)),
        generation=GenerationBudget(20 * MS, 980 * MS, 98.0, 8.0, 10 * MS, 700.0, 700.0, 0.1, 98.0, 90.0),
        recorded=tuple(RecordedPhase(name, ms * MS, round(busy * ms * MS)) for name, ms in PHASES.items()),
        unrecorded=None, changes=(), log_probability_passes=1.0,
    )  # fmt: skip


def expected(found: WithArguments) -> dict[str, float]:
    """Phase → ms of the phases that change, and of the iteration."""
    return {"iteration": found.iteration_ns.expected / MS} | {one.phase: one.then.expected / MS for one in found.phases}


def test_half_the_length_has_half_the_decode_steps():
    found = with_arguments(iteration(0.001), TRAINER, {"max_completion_length": 49})
    assert expected(found)["generation"] == 510
    assert expected(found)["iteration"] == pytest.approx(1550, abs=0.2)
    then = found.phases[0].then
    assert (then.low, then.high) == (pytest.approx((20 + 441) * MS), pytest.approx((20 + 539) * MS))
    assert found.speedup.expected == pytest.approx(2040 / 1550, rel=1e-3) and found.completions == 1


def test_passes_are_shorter_only_where_the_gpu_works():
    """Forward of 100 ms, 80 of them GPU time: half the tokens save between nothing and 40."""
    found = with_arguments(iteration(0.8), TRAINER, {"max_completion_length": 49})
    then = {one.phase: one.then for one in found.phases}["forward"]
    assert [then.low, then.expected, then.high] == pytest.approx([60 * MS, 80 * MS, 100 * MS])


def test_more_sequences_cost_what_the_gpu_takes_beyond_the_cpu():
    doubled = {"per_device_train_batch_size": 16}
    assert expected(with_arguments(iteration(0.1), TRAINER, doubled)) == pytest.approx(
        {
            "iteration": 2140, "generation": 1000, "reward": 700, "log-probabilities": 100, "forward": 100,
            "backward": 200,
        }
    )  # fmt: skip
    full = expected(with_arguments(iteration(1.0), TRAINER, doubled))
    assert full == pytest.approx(
        {
            "iteration": 20 + 1960 + 700 + 800 + 40, "generation": 1980, "reward": 700, "log-probabilities": 200,
            "forward": 200, "backward": 400,
        }
    )  # fmt: skip
    waits = {one.phase: one.then for one in with_arguments(iteration(0.1), TRAINER, doubled).phases}["reward"]
    assert waits.high == 1200 * MS, "a reward that waits may wait once for each completion"


def test_two_steps_on_a_generation_train_twice():
    found = expected(with_arguments(iteration(0.0), TRAINER, {"num_iterations": 2}))
    assert found["forward"] == 200 and found["backward"] == 400 and found["optimizer"] == 80
    assert found["log-probabilities"] == 200, "the old policy's, too"
    assert "generation" not in found
    batches = with_arguments(iteration(0.0), TRAINER, {"steps_per_generation": 2})
    assert batches.completions == 2 and expected(batches)["reward"] == 700


def test_without_a_reference_its_pass_goes():
    assert expected(with_arguments(iteration(0.0), TRAINER, {"beta": 0})) == {
        "iteration": 1940, "log-probabilities": 0,
    }  # fmt: skip
    assert with_arguments(iteration(0.0), TRAINER, {"beta": 0.1}).phases == ()


def test_completions_at_the_limit_may_get_longer():
    """98 tokens are the limit, or it was not recorded: with 196 they have between 98 and 196."""
    at_limit = replace(TRAINER, settings={**TRAINER.settings, "max_completion_length": 98})
    for trainer, says in ((at_limit, "98 tokens now, the limit"), (TRAINER, "whether that is the limit")):
        found = with_arguments(iteration(0.5), trainer, {"max_completion_length": 196})
        then = {one.phase: one.then for one in found.phases}["generation"]
        assert [then.low, then.expected, then.high] == pytest.approx([1000 * MS, 1980 * MS, (20 + 980 * 2.1) * MS])
        assert says in found.basis[0]


def test_accumulated_batches_train_in_one_step():
    found = with_arguments(iteration(0.1), TRAINER, {"gradient_accumulation_steps": 2})
    assert found.completions == 2 and expected(found) == pytest.approx(
        {
            "iteration": 2540, "generation": 1000, "reward": 700, "log-probabilities": 200, "forward": 200,
            "backward": 400,
        }
    )  # fmt: skip
    accumulates = replace(TRAINER, settings={**TRAINER.settings, "gradient_accumulation_steps": 4})
    half = with_arguments(iteration(0.1), accumulates, {"gradient_accumulation_steps": 2})
    assert half.completions == 0.5 and expected(half)["backward"] == 100
    twice = with_arguments(iteration(0.0), accumulates, {"steps_per_generation": 8})
    assert twice.completions == 2 and expected(twice)["optimizer"] == 80, "4 batches of 8 are a step"
    both = {"steps_per_generation": 2, "gradient_accumulation_steps": 2}
    assert expected(with_arguments(iteration(0.1), TRAINER, both)) == expected(found)


def test_checkpointing_runs_the_forward_pass_again():
    off = replace(TRAINER, settings={**TRAINER.settings, "gradient_checkpointing": False})
    then = with_arguments(iteration(0.5), off, {"gradient_checkpointing": True}).phases[0].then
    assert [then.low, then.expected, then.high] == pytest.approx([280 * MS, 335 * MS, 420 * MS])
    on = replace(TRAINER, settings={**TRAINER.settings, "gradient_checkpointing": True})
    then = with_arguments(iteration(0.5), on, {"gradient_checkpointing": False}).phases[0].then
    assert [then.low, then.expected, then.high] == pytest.approx([0, 65 * MS, 120 * MS])
    assert with_arguments(iteration(0.5), on, {"gradient_checkpointing": True}).phases == ()


def test_arguments_that_change_no_time_say_so():
    limited = replace(TRAINER, settings={**TRAINER.settings, "max_completion_length": 200})
    longer = with_arguments(iteration(0.0), limited, {"max_completion_length": 500})
    assert longer.phases == () and "at most 98 tokens" in longer.basis[0]
    assert with_arguments(iteration(0.0), TRAINER, {"num_generations": 4}).phases == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"learning_rate": 1e-5}, "learning_rate: gpuprof does not know what it costs"),
        ({"max_completion_length": "long"}, "max_completion_length=long: give a whole number of at least 1"),
        ({"max_completion_length": 0}, "give a whole number of at least 1"),
        ({"max_completion_length": 10**400}, "give a whole number of at least 1"),
        ({"num_generations": 2.5}, "num_generations=2.5: give a whole number of at least 1"),
        ({"num_generations": float("inf")}, "give a whole number of at least 1"),
        ({"num_generations": [1, 2]}, "give a whole number of at least 1"),
        ({"num_generations": None}, "give a whole number of at least 1"),
        ({"beta": -1}, "not below 0"),
        ({"beta": float("inf")}, "not below 0"),
        ({"beta": float("nan")}, "not below 0"),
        ({"gradient_checkpointing": 1}, "give true or false"),
        ({"gradient_checkpointing": True}, "does not say which value it had"),
        ({"num_iterations": True}, "give a whole number of at least 1"),
    ],
)
def test_what_cannot_be_said_is_an_error(arguments: dict[str, Any], says: str):
    with pytest.raises(GpuprofError, match=says):
        with_arguments(iteration(0.5), TRAINER, arguments)


def test_what_was_not_recorded_is_an_error():
    unknown = replace(TRAINER, settings={})
    with pytest.raises(GpuprofError, match="does not say which value it had"):
        with_arguments(iteration(0.5), unknown, {"per_device_train_batch_size": 16})
    with pytest.raises(GpuprofError, match="completions are was not recorded"):
        with_arguments(replace(iteration(0.5), generation=None), TRAINER, {"max_new_tokens": 16})
    with pytest.raises(GpuprofError, match="no reference policy, so what one costs was not recorded"):
        with_arguments(iteration(0.5), replace(TRAINER, settings={"beta": 0.0}), {"beta": 0.1})


def test_the_command(capsys: pytest.CaptureFixture[str]):
    assert main(["project", RUN, "--set", "max_completion_length=40", "--set", "beta=0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(documents.schema("gpuprof.with_arguments/1")).validate(found)
    assert found["iteration_ns"]["low"] < found["iteration_ns"]["expected"] < 0.7 * found["was_ns"]
    for words, says in (
        (["--set", "beta"], "write NAME=VALUE"),
        (["--set", "beta=0", "--to", "H200"], "leave --to and --explain out"),
    ):
        assert main(["project", RUN, *words]) == 2
        assert says in capsys.readouterr().err


def test_the_screen_shows_what_changes():
    both = {"max_completion_length": 49, "per_device_train_batch_size": 16}
    text = drawn(render(with_arguments(iteration(0.1), TRAINER, both)), 80)
    assert "with max_completion_length=49, per_device_train_batch_size=16" in text
    assert "2× the completions; 1.8–2.5× per completion" in text
    assert "optimizer" not in text


def test_a_supervised_run_has_no_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = RunBuilder().write(tmp_path, None)
    assert main(["project", str(run), "--set", "beta=0"]) == 2
    assert "no iterations" in capsys.readouterr().err

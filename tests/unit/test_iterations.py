"""The iteration of a training on its own generations: its budget sums exactly, and what would shorten it is computed
from it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.make_run import MS, RunBuilder
from helpers.valid_json import is_valid

import gpuprof
from gpuprof.cli import main
from gpuprof.diagnosis.diagnose_recording import diagnose_recording
from gpuprof.diagnosis.iterations.budget import iteration_budget, whole_iterations
from gpuprof.diagnosis.iterations.changes import changes, continuous_saved_ns
from gpuprof.diagnosis.iterations.pages import PAGES
from gpuprof.diagnosis.iterations.phase_pages import PAGES as PHASE_PAGES
from gpuprof.diagnosis.iterations.section import of_mean_step
from gpuprof.diagnosis.iterations.titles import TITLES
from gpuprof.diagnosis.iterations.trainer import Trainer
from gpuprof.diagnosis.iterations.with_arguments import with_arguments
from gpuprof.diagnosis.result.iteration_model import CacheCopies, Iteration, PhaseBudget, RecordedPhase, RewardTime
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words import iteration_words
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run_folder.phased_steps import phased_steps
from gpuprof.tracefile.run_folder.run import read_run

FIELDS = {
    "max_completion_length", "use_vllm", "per_device_train_batch_size", "cache_implementation", "generation_kwargs",
    "use_transformers_continuous_batching", "beta",
}  # fmt: skip
GRPO = Trainer(frozenset(FIELDS), "GRPOTrainer")


def test_an_iteration_of_one_step_is_as_long_as_the_mean_step():
    phases = tuple(PhaseBudget(name, ns, 0, ns) for name, ns in (("generation", 700), ("forward", 101), ("other", 199)))
    found = Iteration(1, 3, 1000, phases, 101, (), None, (), None, ())
    as_step = of_mean_step(found, 967)
    assert as_step.mean_ns == sum(one.ns for one in as_step.phases) == 967
    assert [one.ns for one in as_step.phases] == [677, 98, 192] and as_step.training_ns == 98
    assert of_mean_step(found, 700) == found, "another step than the one that was timed"


def line(step: int, stage: str, phases: dict[str, int], **more: Any) -> dict[str, Any]:
    """The line of a step; phases are in ms."""
    times = {name: ms * MS for name, ms in phases.items()}
    ns = sum(times.values())
    return {
        "rank": 0, "step": step, "stage": stage, "unix_ns": 1_790_000_000_000_000_000 + step * ns, "ns": ns,
        "device_ns": None, "data_ns": 0, "micro_steps": 1, "samples": 8, "tokens": None, "real_tokens": None,
        "allocated_bytes": None, "reserved_bytes": None, "peak_bytes": None, "profiled": False, "phases_ns": times,
        **more,
    }  # fmt: skip


GENERATED = {
    "calls": 1, "forwards": 100, "slots": 800, "sequences": 8, "prefill_ns": 10 * MS, "decode_ns": 990 * MS,
    "tokens": 400, "longest": 100, "p95": 60,
}  # fmt: skip
WAITING = {
    "rewards_ns": {"judge": 300 * MS, "facts": 200 * MS, "length": MS},
    "rewards_cpu_ns": {"judge": MS, "facts": MS, "length": MS},
}
PHASES = {"generation": 1000, "reward": 501, "log-probabilities": 99, "forward": 100, "backward": 250, "optimizer": 50}


def generating(step: int, stage: str = "baseline_free", **phases: int) -> dict[str, Any]:
    return line(step, stage, {**PHASES, **phases}, generation=GENERATED, **WAITING)


def run_of(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = RunBuilder().write(folder, None)
    (path / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path


def budget_of(folder: Path, lines: list[dict[str, Any]]) -> Iteration | None:
    return iteration_budget(read_run(run_of(folder, lines)))


@pytest.fixture
def usual(tmp_path: Path) -> Iteration:
    found = budget_of(tmp_path / "run", [generating(1, "settle"), *(generating(n) for n in range(2, 8))])
    assert found is not None
    return found


def test_the_phases_sum_to_the_mean_exactly(tmp_path: Path):
    lines = [generating(n, generation=1000 + 7 * n, reward=501 + n) for n in range(1, 8)]
    found = budget_of(tmp_path / "run", lines)
    assert found is not None
    assert sum(one.ns for one in found.phases) == found.mean_ns
    assert sum(one.ns for one in iteration_words.bar(found)) == found.mean_ns
    assert found.count == 6  # the first one did everything for the first time
    generation = next(one for one in found.phases if one.phase == "generation")
    assert generation.low_ns <= generation.ns <= generation.high_ns


def test_an_iteration_of_several_optimizer_steps(tmp_path: Path):
    only_trains = {name: ms for name, ms in PHASES.items() if name not in ("generation", "reward")}
    lines = [generating(n) if n % 4 == 1 else line(n, "baseline_free", only_trains) for n in range(1, 14)]
    found = budget_of(tmp_path / "run", lines)
    assert found is not None
    assert (found.steps, found.count) == (4, 2)
    assert found.mean_ns == (2000 + 3 * 499) * MS
    assert found.training_ns == 4 * 400 * MS


def test_steps_that_are_missing_part_iterations():
    steps = phased_steps([generating(n) for n in (1, 2, 4, 5, 6)])
    groups = [[one.step for one in group] for group in whole_iterations(steps, 2)]
    assert groups == [[1, 2], [4, 5]]


def test_a_supervised_run_has_none(tmp_path: Path):
    lines = [line(n, "baseline_free", {"forward": 10, "other": 1}) for n in range(1, 9)]
    assert budget_of(tmp_path / "run", lines) is None
    # An occasional validation that generates is none either.
    lines[3] = generating(4)
    assert budget_of(tmp_path / "other", lines) is None


def test_lines_that_make_no_sense_are_passed_over():
    good = generating(3)
    bad = [
        {**good, "phases_ns": {"generation": -5}}, {**good, "phases_ns": "all"}, {**good, "phases_ns": {"rollout": 1}},
        {**good, "ns": good["ns"] + 1}, {**good, "step": None}, {**good, "stage": 7},
    ]  # fmt: skip
    assert [one.step for one in phased_steps([*bad, good])] == [3]
    (odd,) = phased_steps([{**good, "generation": {"calls": "one"}, "rewards_ns": [1]}])
    assert odd.rewards == {} and odd.generated is not None and odd.generated.calls == 0


def test_what_generation_consists_of(usual: Iteration):
    found = usual.generation
    assert found is not None
    assert (found.prefill_ns, found.decode_ns, found.forwards) == (10 * MS, 990 * MS, 100)
    assert found.token_ns == 10 * MS
    assert found.tokens_per_s == pytest.approx(400)
    assert found.ended_share == pytest.approx(0.5)


def test_changes_are_computed_from_the_budget(usual: Iteration):
    without_gpu = {one.id for one in changes(usual, GRPO, on_gpu=False)}
    assert not without_gpu & {"generation_ahead", "serving_engine", "decode_cpu"} and "rewards_at_once" in without_gpu
    found = {one.id: one for one in changes(usual, GRPO)}
    tail = found["completion_tail"]
    assert tail.iteration_ns.expected == pytest.approx((2000 - 0.4 * 990) * MS)
    assert tail.fix == "max_completion_length=60"
    assert tail.changes is not None
    rewards = found["rewards_at_once"]
    assert rewards.iteration_ns.expected == 1800 * MS
    assert rewards.changes is None
    ahead = found["generation_ahead"]
    assert ahead.iteration_ns.low == 1501 * MS
    for one in found.values():
        assert one.iteration_ns.low <= one.iteration_ns.expected <= one.iteration_ns.high < usual.mean_ns
        assert one.speedup == pytest.approx(usual.mean_ns / one.iteration_ns.expected)


def test_rewards_that_compute_do_not_gain_from_waiting_together(usual: Iteration):
    computing = replace(usual, rewards=tuple(replace(one, cpu_ns=one.ns) for one in usual.rewards))
    assert "rewards_at_once" not in {one.id for one in changes(computing, GRPO)}
    together = replace(usual, rewards=tuple(replace(one, ns=2 * one.ns) for one in usual.rewards))
    assert "rewards_at_once" not in {one.id for one in changes(together, GRPO)}  # they overlap already


def test_rewards_that_compute_are_shared_by_processes(usual: Iteration):
    """As many as there are cores, and at most one for each completion; not functions that wait, or models."""
    computing = replace(usual, rewards=(RewardTime("formulas", 400 * MS, 390 * MS), RewardTime("judge", 90 * MS, MS)))
    found = {
        cpus: next(one for one in changes(computing, replace(GRPO, cpus=cpus)) if one.id == "rewards_in_processes")
        for cpus in (4.0, 64.0)
    }
    assert found[4.0].iteration_ns.high == (2000 - 0.3 * 400) * MS
    assert found[4.0].iteration_ns.low == (2000 - 300) * MS
    assert found[64.0].iteration_ns.low == (2000 - 350) * MS, "eight completions"
    assert "formulas" in found[4.0].fix and "judge" not in found[4.0].fix
    model = replace(computing, recorded=(RecordedPhase("reward", 400 * MS, 300 * MS),))
    for one, cores in ((usual, 8.0), (computing, 1.0), (model, 8.0)):
        assert "rewards_in_processes" not in {each.id for each in changes(one, replace(GRPO, cpus=cores))}


def test_decoding_at_the_pace_of_the_gpu_needs_a_recording(usual: Iteration):
    assert "decode_cpu" not in {one.id for one in changes(usual, GRPO)}
    recorded = replace(usual, recorded=(RecordedPhase("generation", 400 * MS, 40 * MS),))
    found = {one.id: one for one in changes(recorded, GRPO)}
    assert found["decode_cpu"].iteration_ns.low == pytest.approx((2000 - 0.9 * 990) * MS)
    assert str(found["decode_cpu"].fix) == (
        'cache_implementation="static"\ntrainer.generation_config.disable_compile = False'
    )
    assert found["decode_cpu"].patch is None  # no argument for that exists
    other = {one.id: one for one in changes(recorded, replace(GRPO, name="OnlineDPOTrainer"))}["decode_cpu"]
    assert other.fix == 'cache_implementation="static"' and other.patch is not None
    engine = found["serving_engine"]
    assert engine.fix == 'use_vllm=True, vllm_mode="colocate"'
    assert "published" in engine.basis
    # Not faster than the recorded work of the GPU without that for ended sequences: 990 x 0.1 x 0.5.
    assert engine.iteration_ns.low == pytest.approx((2000 - 990 + 66) * MS)
    busy = replace(usual, recorded=(RecordedPhase("generation", 400 * MS, 396 * MS),))
    assert "decode_cpu" not in {one.id for one in changes(busy, GRPO)}
    assert busy.generation is not None
    # No engine is faster than the GPU, where no sequence had ended.
    going_on = replace(busy, generation=replace(busy.generation, ended_share=0.0))
    assert "serving_engine" not in {one.id for one in changes(going_on, GRPO)}


BUSY = (
    RecordedPhase("generation", 400 * MS, 360 * MS), RecordedPhase("log-probabilities", 99 * MS, 9 * MS),
    RecordedPhase("forward", 100 * MS, 90 * MS), RecordedPhase("backward", 250 * MS, 225 * MS),
)  # fmt: skip
"""Generation, forward and backward keep the GPU busy for 90 %, log-probabilities for a tenth."""


def priced(iteration: Iteration, trainer: Trainer = GRPO) -> dict[str, float]:
    """Change → ms that it is expected to save, even if little."""
    from gpuprof.diagnosis.iterations.changes import _ALL

    found = [one for make in _ALL for one in make(iteration, trainer)]
    return {one.id: round((iteration.mean_ns - one.iteration_ns.expected) / MS, 1) for one in found}


def test_ended_sequences_cost_where_the_gpu_limits(usual: Iteration):
    """This applies where the CPU keeps up with its steps, less the cost of each call: short completions do not gain,
    long ones do."""
    assert "ended_sequences" not in priced(usual)
    assert priced(replace(usual, recorded=BUSY))["ended_sequences"] == 0  # 322 ms for 500
    assert usual.generation is not None
    long = replace(usual.generation, decode_ns=100_000 * MS)
    found = priced(replace(usual, mean_ns=101_000 * MS, generation=long, recorded=BUSY))
    assert found["ended_sequences"] == pytest.approx(100_000 * (1 - 0.9 * 0.75) - 500, abs=0.1)
    low, expected, high = continuous_saved_ns(800 * MS, 0.06, 0.1)
    assert low < -4340 * MS < high and expected < 0  # decoding of 0.8 s took 4.6 s and half a second more (H100)


def test_a_static_cache_has_to_be_of_the_type_of_its_keys(usual: Iteration):
    """With float32 weights under autocast it is not, and generation raises an error, so the fix changes the weights
    too."""
    waiting = replace(usual, recorded=(RecordedPhase("generation", 400 * MS, 40 * MS),))
    assert {one.id: one.changes for one in changes(waiting, GRPO)}["decode_cpu"] is None
    fields = frozenset({*FIELDS, "model_init_kwargs"})
    mixed = {one.id: one for one in changes(waiting, replace(GRPO, fields=fields, mixed=True))}["decode_cpu"]
    assert str(mixed.fix).startswith('cache_implementation="static", model_init_kwargs={"dtype": "bfloat16"}\n')
    assert mixed.changes is not None and "bfloat16" in mixed.changes


def test_more_prompts_share_what_does_not_grow_with_them(usual: Iteration):
    """The price is half of what `project --set` says for twice the batch."""
    waiting = (RecordedPhase("generation", 400 * MS, 40 * MS), *BUSY[1:])
    recorded = replace(usual, recorded=waiting)
    found = {one.id: one for one in changes(recorded, GRPO)}["rollout_batch"].iteration_ns
    sized = replace(GRPO, settings={"per_device_train_batch_size": 8})
    twice = with_arguments(recorded, sized, {"per_device_train_batch_size": 16}).iteration_ns
    assert [2 * found.low, 2 * found.expected, 2 * found.high] == pytest.approx(
        [twice.low, twice.expected, twice.high], abs=2
    )
    # The GPU works for 9/10 of the 350 ms of training, which therefore takes longer; it hardly works while decoding,
    # which does not.
    assert 1000 * MS < found.expected < 1250 * MS


def test_padding_costs_where_the_gpu_limits(usual: Iteration):
    # 8 completions of at most 100 tokens, 400 in all: half is padding.
    expected = 0.7 * 0.5 * (0.9 * 350 + 99 / 11)
    assert priced(replace(usual, recorded=BUSY))["padded_completions"] == pytest.approx(expected, abs=0.1)


def test_log_probabilities_of_the_reference(usual: Iteration):
    with_beta = replace(GRPO, settings={"beta": 0.04})
    assert "reference_pass" not in priced(usual)
    assert priced(usual, with_beta)["reference_pass"] == 99
    twice = replace(usual, log_probability_passes=2.0, recorded=BUSY)
    assert priced(twice, with_beta)["reference_pass"] == 49.5
    assert priced(twice)["one_pass"] == pytest.approx(0.7 * 49.5 * (1 - 9 / 99), abs=0.1)
    assert "one_pass" not in priced(replace(usual, recorded=BUSY))


def test_cache_copies_are_priced_by_what_limits(usual: Iteration):
    copies = CacheCopies(10_000, 100 * MS, 10 * MS)
    waiting = (RecordedPhase("generation", 400 * MS, 40 * MS),)
    assert priced(replace(usual, cache_copies=copies))["cache_copies"] == 60
    assert priced(replace(usual, cache_copies=copies, recorded=BUSY))["cache_copies"] == 6
    # A step that the CPU limits takes longer over a static cache.
    assert "cache_copies" not in priced(replace(usual, cache_copies=copies, recorded=waiting))
    static = replace(GRPO, settings={"cache_implementation": "static"})
    assert "cache_copies" not in priced(replace(usual, cache_copies=copies), static)


def test_rewards_that_wait_fit_beside_log_probabilities(usual: Iteration):
    assert priced(usual)["rewards_beside"] == pytest.approx(0.9 * 99, abs=0.1)


def test_weights_are_copied_by_their_bytes(tmp_path: Path):
    lines = [line(n, "baseline_free", {**PHASES, "weight sync": 1000}, generation=GENERATED) for n in range(1, 8)]
    synced = budget_of(tmp_path / "run", lines)
    assert synced is not None
    whole = replace(GRPO, weight_bytes=10 * 10**9, trainable_share=1.0)
    assert priced(synced, whole)["weight_sync"] == 500  # 10 GB at 20 GB/s
    adapters = replace(whole, trainable_share=0.01)
    assert priced(synced, adapters)["weight_sync"] == 995
    assert "weight_sync" not in priced(synced)


def test_changes_that_are_arguments_are_data(usual: Iteration):
    trainer = replace(GRPO, arguments="GRPOConfig")
    tail = {one.id: one for one in changes(usual, trainer)}["completion_tail"]
    assert tail.fix == "GRPOConfig(max_completion_length=60)"
    (setting,) = tail.settings
    assert (setting.surface, setting.name, setting.value, setting.of) == (
        "argument", "max_completion_length", 60, "GRPOConfig",
    )  # fmt: skip
    assert tail.patch is not None
    assert tail.patch.command() == "gpuprof try --fix trainer_arguments=max_completion_length=60"
    by_hand = {one.id: one for one in changes(usual, trainer)}["rewards_at_once"]
    assert by_hand.patch is None


def test_an_argument_that_the_trainer_lacks_is_not_advised(usual: Iteration):
    without = Trainer(frozenset({"learning_rate"}), "GRPOTrainer")
    assert "completion_tail" not in {one.id for one in changes(usual, without)}


def test_the_diagnosis_has_it(tmp_path: Path):
    path = run_of(tmp_path / "run", [generating(n) for n in range(1, 8)])
    found = diagnose_recording(resolve(str(path)))
    assert found.iteration is not None
    document = to_json(found)
    assert is_valid(found)
    assert document["iteration"]["mean_ns"] == 2000 * MS
    assert gpuprof.load_diagnosis(document) == found
    text = plain(found, 100)
    assert "generation 50 %" in text and "reward 25 %" in text
    assert "training 20 % (forward 5 %, backward 12 %, optimizer 2 %)" in text or "training 20 %" in text
    assert "Run reward functions at the same time" in text


def test_rewards_too_short_to_matter_are_not_named(usual: Iteration):
    short = RewardTime("length", 10_000, 1_000)
    (found,) = (one for one in changes(replace(usual, rewards=(*usual.rewards, short)), GRPO)
                if one.id == "rewards_at_once")  # fmt: skip
    assert "judge" in found.fix and "length" not in found.fix


def test_rewards_that_the_trainer_does_not_await_run_in_threads(usual: Iteration):
    fixes = {
        name: next(one.fix for one in changes(usual, replace(GRPO, name=name)) if one.id == "rewards_at_once")
        for name in ("GRPOTrainer", "OnlineDPOTrainer")
    }
    assert "async def" in fixes["GRPOTrainer"] and "ThreadPoolExecutor" in fixes["OnlineDPOTrainer"]


def test_each_change_has_a_page(usual: Iteration):
    recorded = replace(usual, recorded=(RecordedPhase("generation", 400 * MS, 40 * MS),))
    offered = changes(recorded, GRPO)
    assert {one.id for one in offered} <= {page.id for page in PAGES}
    assert len(offered) > 3 and all(one.title in TITLES[one.id] for one in offered)


def test_each_phase_and_what_its_page_names_is_explained(capsys: pytest.CaptureFixture[str]):
    explained = {page.id for page in (*PAGES, *PHASE_PAGES)}
    for page in PHASE_PAGES:
        assert main(["explain", page.id]) == 0
        assert page.title in capsys.readouterr().out
        assert set(re.findall(r"\b[a-z]+_[a-z_]+\b", page.gain)) <= explained


def test_a_change_is_explained(capsys: pytest.CaptureFixture[str]):
    for name in ("rewards_at_once", "run reward functions at the same time", "Reward functions wait one after another"):
        assert main(["explain", name]) == 0
        assert "TRL calls functions" in capsys.readouterr().out
    pages = {page.id: page.title for page in PAGES}
    assert pages.keys() == TITLES.keys()
    for id_, titles in TITLES.items():
        for title in titles:
            assert main(["explain", title]) == 0
            assert pages[id_] in capsys.readouterr().out

"""Logs and tracker files of RL post-training frameworks: the phases of their iterations, and who waits for whom."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from helpers import training_logs as logs
from jsonschema import Draft202012Validator

from gpuprof.cli import main
from gpuprof.diagnosis.iterations.logged import ORDER, diagnose_logs
from gpuprof.diagnosis.iterations.logged_model import DOCUMENT as ITERATIONS
from gpuprof.diagnosis.iterations.logged_model import LoggedIterations
from gpuprof.diagnosis.iterations.pages import PAGES
from gpuprof.errors import GpuprofError
from gpuprof.tracefile.training_logs.frameworks import FRAMEWORKS
from gpuprof.tracefile.training_logs.read import is_training_log

VALIDATOR = Draft202012Validator(ITERATIONS.schema())


def written(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def diagnosed(*paths: str) -> LoggedIterations:
    """The diagnosis of logs, after checking that its JSON is valid and the phases sum to the iteration."""
    assert all(is_training_log(Path(path)) for path in paths)
    found = diagnose_logs(paths)
    VALIDATOR.validate(json.loads(json.dumps(ITERATIONS.to_json(found))))
    assert sum(one.ns for one in found.phases) == found.mean_ns + found.overlap_ns
    return found


def seconds(found: LoggedIterations) -> dict[str, float]:
    return {one.phase: round(one.ns / 1e9, 2) for one in found.phases}


TRUTH = {
    "verl.log": (
        logs.verl(),
        {
            "generation": 74.02, "log-probabilities": 6.99, "advantage": 1.17, "training": 14.30, "other": 0.08,
        },
        False,
    ),
    "slime.log": (
        logs.slime(),
        {"generation": 5.0, "weight sync": 6.5, "log-probabilities": 1.5, "training": 1.0, "other": 0.3},
        False,
    ),
    "nemo.log": (
        "".join(logs.NEMO_RL.format(step=n) for n in range(1, 5)),
        {
            "data": 1.61, "generation": 32.52, "log-probabilities": 6.12, "training": 26.11, "weight sync": 0.13,
            "other": 0.06,
        },
        True,
    ),
    "skyrl.log": (
        "".join(logs.SKYRL.format(step=n) for n in range(4)),
        {"generation": 27.65, "log-probabilities": 47.40, "training": 191.74, "other": 19.26},
        False,
    ),
    "wandb-summary.json": (
        json.dumps(logs.OPENRLHF),
        {"generation": 88.0, "log-probabilities": 20.5, "training": 60.25, "weight sync": 4.5},
        False,
    ),
    "prime.jsonl": (
        logs.rows(logs.PRIME_TRAINER, 4, 0),
        {"generation": 19.6, "training": 175.0, "other": 1.4},
        True,
    ),
}  # fmt: skip
"""File → its text, seconds of the mean iteration by phase, and whether it generates while it trains."""


@pytest.mark.parametrize("name", TRUTH)
def test_phases_of_a_framework(tmp_path: Path, name: str):
    text, phases, asynchronous = TRUTH[name]
    found = diagnosed(written(tmp_path, name, text))
    assert {phase: s for phase, s in seconds(found).items() if s} == phases
    assert found.asynchronous is asynchronous
    assert found.overlap_ns == 0


def test_the_first_iteration_is_left_out(tmp_path: Path):
    found = diagnosed(written(tmp_path, "verl.log", logs.verl(5)))
    assert (found.count, found.skipped) == (4, 1)
    assert found.mean_ns == found.high_ns == 96_551_000_000
    few = diagnosed(written(tmp_path, "verl.log", logs.verl(2)))
    assert (few.count, few.skipped) == (2, 0)
    assert "few_iterations" in {one.id for one in few.issues}


def test_trackers_say_what_the_console_says(tmp_path: Path):
    console = diagnosed(written(tmp_path, "verl.log", logs.verl()))
    values = {
        "timing_s/gen": 74.020, "timing_s/old_log_prob": 3.566, "timing_s/ref": 3.420, "timing_s/adv": 1.167,
        "timing_s/update_actor": 14.302,
    }  # fmt: skip
    rows = [{**values, "timing_s/step": 130.0 if n == 1 else 96.551} for n in range(1, 5)]
    lines = "".join(json.dumps({"step": n, "data": row}) + "\n" for n, row in enumerate(rows, 1))
    table = "Step," + ",".join(f"my-run - {key}" for key in rows[0]) + "\n"
    table += "".join(f"{n}," + ",".join(map(str, row.values())) + "\n" for n, row in enumerate(rows, 1))
    for name, text in (("metrics.jsonl", lines), ("export.csv", table), ("history.json", json.dumps(rows))):
        found = diagnosed(written(tmp_path, name, text))
        assert found.phases == console.phases, name
        assert found.count == console.count


def test_validation_between_iterations_lengthens_them(tmp_path: Path):
    """Some versions validate outside what they call a step: only without validation do its phases fit into it."""
    line = "step:{} - timing_s/gen:5.0 - timing_s/update_actor:4.0 - timing_s/step:10.0"
    lines = [line.format(n) + (" - timing_s/testing:30.0" if n == 3 else "") for n in range(1, 5)]
    found = diagnosed(written(tmp_path, "verl.log", "\n".join(lines)))
    assert found.mean_ns == 20e9
    assert seconds(found) == {"generation": 5.0, "training": 4.0, "validation": 10.0, "other": 1.0}
    inside = diagnosed(written(tmp_path, "verl.log", "\n".join(lines).replace("testing:30.0", "testing:0.5")))
    assert inside.mean_ns == 10e9


def test_phases_that_overlap_are_said_to(tmp_path: Path):
    line = "step:{} - timing_s/gen:8.0 - timing_s/update_actor:4.0 - timing_s/step:10.0\n"
    found = diagnosed(written(tmp_path, "verl.log", "".join(line.format(n) for n in range(4))))
    assert found.overlap_ns == 2e9
    assert "phases_overlap" in {one.id for one in found.issues}


def test_who_waits_for_whom(tmp_path: Path):
    row = {
        "timing_s/gen": 6.0, "timing_s/update_actor": 3.0, "timing_s/step": 10.0, "fully_async/trainer/idle_ratio": 0.6,
        "fully_async/rollouter/idle_ratio": 0.02, "fully_async/monitor/queue/mq_queue_size": 3,
    }  # fmt: skip
    found = diagnosed(written(tmp_path, "verl.jsonl", logs.rows(row, 4, 0)))
    trainer, generator = found.roles
    assert (trainer.role, trainer.wait_ns, trainer.waits_for) == ("trainer", 6e9, "completions")
    assert (generator.role, generator.wait_ns, generator.waits_for) == ("generator", 0.2e9, "training")
    assert "generation limits the job" in found.limit
    queue = found.quantity("queue")
    assert queue is not None and queue.mean == 3
    more = {one.id: one for one in found.changes}["generator_gpus"]
    assert 4e9 <= more.iteration_ns.low <= more.iteration_ns.expected <= more.iteration_ns.high < 10e9
    assert "generation_ahead" not in {one.id for one in found.changes}


def test_two_roles_on_one_clock(tmp_path: Path):
    trainer = written(tmp_path, "trainer.jsonl", logs.rows(logs.PRIME_TRAINER, 4, 1035.0))
    generator = written(tmp_path, "orchestrator.jsonl", logs.rows(logs.PRIME_GENERATOR, 4, 1000.0))
    found = diagnosed(generator, trainer)
    assert [one.wait_share for one in found.roles] == pytest.approx([0.1, 60 / 196], abs=1e-3)
    assert found.lag_ns == 35e9
    assert "both wait" in found.limit
    alone = diagnosed(trainer)
    assert alone.roles[1].wait_ns is None
    with pytest.raises(GpuprofError, match="of a trainer"):
        diagnose_logs([trainer, trainer])
    with pytest.raises(GpuprofError, match="of one job"):
        diagnose_logs([trainer, written(tmp_path, "verl.log", logs.verl())])


def test_time_between_iterations_is_not_hidden(tmp_path: Path):
    found = diagnosed(written(tmp_path, "slime.log", logs.slime(apart_s=20)))
    assert found.between_ns == pytest.approx(5.7e9)
    assert "unlogged_time" in {one.id for one in found.issues}
    assert diagnosed(written(tmp_path, "slime.log", logs.slime(apart_s=14))).issues == ()


def test_a_resumed_training_repeats_steps(tmp_path: Path):
    text = logs.verl(4) + logs.VERL.format(step=3, total=100.0) + logs.VERL.format(step=4, total=100.0)
    found = diagnosed(written(tmp_path, "verl.log", text))
    assert found.count == 3
    assert found.high_ns == 100e9


def test_changes_are_priced_from_the_iteration(tmp_path: Path):
    found = diagnosed(written(tmp_path, "verl.log", logs.verl()))
    by_id = {one.id: one for one in found.changes}
    ahead = by_id["generation_ahead"]
    assert ahead.iteration_ns.low == pytest.approx(74.02e9)
    reuse = by_id["old_log_probabilities"]
    assert reuse.iteration_ns.expected == pytest.approx((96.551 - 3.566) * 1e9)
    tail = "step:{} - timing_s/agent_loop/generate_sequences/mean:40.0 - "
    tail += "timing_s/agent_loop/generate_sequences/max:80.0 - timing_s/gen:80.0 - timing_s/step:100.0\n"
    cut = diagnosed(written(tmp_path, "tail.log", "".join(tail.format(n) for n in range(4))))
    (found_tail,) = [one for one in cut.changes if one.id == "completion_tail"]
    assert found_tail.iteration_ns.low > 60e9  # at best all take as long as the mean one
    pages = {page.id for page in PAGES}
    assert {one.id for one in (*found.changes, *cut.changes)} <= pages


def test_each_name_has_a_phase():
    for framework in FRAMEWORKS:
        assert set(framework.phases.values()) <= set(ORDER)
        assert {*framework.inside, *framework.inside.values()} <= framework.phases.keys()


def test_damaged_logs_never_break(tmp_path: Path):
    whole = "".join(text for text, _, _ in TRUTH.values())
    draw = random.Random(3)
    for _ in range(200):
        at = sorted(draw.sample(range(len(whole)), 4))
        text = whole[at[0] : at[1]] + "\x00\ufffd{[" * draw.randrange(3) + whole[at[2] : at[3]]
        path = written(tmp_path, draw.choice(("a.log", "a.json", "a.csv", "a.jsonl")), text)
        try:
            diagnosed_ = diagnose_logs([path])
        except GpuprofError as error:
            assert "\n" not in str(error)
        else:
            VALIDATOR.validate(json.loads(json.dumps(ITERATIONS.to_json(diagnosed_), allow_nan=False)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, "verl.log", logs.verl())
    assert main(["diagnose", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("97 s an iteration")
    assert "generation 77 %" in text and "Generation and training take turns" in text
    assert main(["diagnose", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "gpuprof.iterations/1"
    assert main(["diagnose", path, "--html", str(tmp_path / "page.html")]) == 2
    assert "is a log" in capsys.readouterr().err


def test_logs_and_recordings_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = Path(__file__).parent.parent / "data" / "tiny_lora_dataloader.json.gz"
    assert not is_training_log(trace)
    log = written(tmp_path, "verl.log", logs.verl())
    assert main(["diagnose", log, str(trace)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    # It has a framework's keys but no iteration.
    empty = written(tmp_path, "empty.log", "waiting for timing_s/step\n")
    assert main(["diagnose", empty]) == 2
    assert "no times of iterations" in capsys.readouterr().err

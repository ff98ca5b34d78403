"""What `gpuprof try` tries, from recordings: both lists, the diagnosis of a job, no more workers than cores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.present import present
from helpers.trials import make_run

from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.report.words.fixes import worth_trying
from gpuprof.trial.fixes import FixToTry, advised
from gpuprof.trial.trial import TriedFix
from gpuprof.trial.trial_subject import TrialSubject, predict_workers, subject_of, with_workers

SCENARIOS = ROOT / "scenarios"


def recorded(name: str) -> TrialSubject:
    return subject_of(SCENARIOS / name / "recording")


def workers_of(subject: TrialSubject) -> Finding | None:
    found = present(subject.diagnosis)
    return next((one for one in (*found.findings, *found.worth_trying) if one.id == "input_workers"), None)


def on_cores(folder: Path, run: Path, cpus: int) -> Path:
    """A copy of a run whose machine had this many cores."""
    copy = folder / f"cores{cpus}"
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    host = {name: value for name, value in manifest["host"].items() if name != "cpu_quota"}
    (copy / "manifest.json").write_text(json.dumps(manifest | {"host": host | {"cpus": cpus}}))
    return copy


def test_several_ranks_are_tried_by_the_diagnosis_of_their_job():
    found = recorded("ddp_scaling")
    assert found.world_size == 2
    assert [one.rank for one in present(found.diagnosis).ranks or ()] == [0, 1]


def test_both_lists_are_tried_with_what_is_predicted_of_them():
    found = present(recorded("eager_attention").diagnosis)
    assert found.findings and found.worth_trying, "a recording with both"
    candidates, by_hand = advised(found)
    names = {one.id for one in (*found.findings, *found.worth_trying)}
    assert {one.finding for one in candidates} | {one.id for one in by_hand} == names
    assert {one.advised for one in candidates} == {"fixes", "worth_trying"}
    for one in candidates:
        assert one.saves > 0 and 0.5 <= present(one.probability) <= 1
        assert one.advised == "worth_trying" or present(one.probability) >= 0.9


def test_no_more_workers_are_advised_than_there_are_cores_and_no_more_cores_are_used(tmp_path: Path):
    run = SCENARIOS / "input_starved" / "recording"
    as_recorded = subject_of(run)
    many = present(workers_of(as_recorded))
    assert int(present(many.patch).value) <= present(as_recorded.run.cpus)
    steps = []
    for cpus in (2, 4):
        subject = subject_of(on_cores(tmp_path, run, cpus))
        few = present(workers_of(subject))
        assert 1 <= int(present(few.patch).value) <= cpus
        # The recorded step is its batch followed by the training, on one core; no core works for longer than a step.
        assert few.step_ns.expected * cpus >= 0.9 * present(subject.step_s) * 1e9
        steps.append(few.step_ns.expected)
    assert steps[0] >= steps[1] >= many.step_ns.expected


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_a_loader_of_46_ms_on_two_cores_does_not_get_faster_than_two_cores_are(tmp_path: Path, workers: int):
    run = make_run(tmp_path, made_ms=46.0)
    rank = json.loads((run / "rank0.json").read_text())
    rank["loader"]["made"]["batch_cpu_ns"] = 46_000_000  # it computes instead of waiting
    (run / "rank0.json").write_text(json.dumps(rank))
    subject = subject_of(run)
    found = predict_workers(subject, FixToTry(TriedFix("input_workers", str(workers))))
    step = present(found.step_ns)
    consumer_ns = float(np.mean(subject.run.steps.ns)) - 46e6
    least = (46e6 + consumer_ns) / 2
    assert present(step.low) * 1.2 >= least and step.expected >= least
    # The training's own part may use both cores.
    assert present(step.high) >= (46e6 + 2 * consumer_ns) / 2


def test_workers_that_only_wait_are_predicted_as_a_queue_and_tried_where_no_gpu_is(tmp_path: Path):
    subject = subject_of(make_run(tmp_path, made_ms=46.0))
    (found,) = with_workers(subject, [])
    assert str(found.fix) == "input_workers=2", "the machine of that run has two cores"
    assert found.advised == "fixes" and 0.4 < found.saves < 0.6


@pytest.mark.parametrize("width", [50, 67, 107])
def test_the_short_answer_prints_the_whole_command_that_settles_what_is_worth_trying(width: int):
    found = present(recorded("accelerate_bert_again").diagnosis)
    settled = [(one.settle, one.settle.partition(" -- ")[0]) for one in found.worth_trying[:2] if one.settle]
    lines = [str(line) for line in worth_trying(found, width, 2)]
    assert settled and all(len(line) <= width for line in lines)
    for commands in settled:
        assert any(line.endswith(tuple(f"   {command}" for command in commands)) for line in lines), (commands, lines)

"""Long steps that did not occur in the free-running stretch, found in the run's other unprofiled steps."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.make_run import MS, RunBuilder
from helpers.present import present

from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.mean_step.recurring import full_collections, period
from gpuprof.diagnosis.run.run_facts import run_facts
from gpuprof.tracefile.run_folder.run import RunFolder, read_run

EVERY, USUAL_MS, MORE_MS = 20, 10.0, 200.0


def budget_of(folder, rare: bool = True, cause: str | None = "evaluation", waits: bool = False) -> Budget:
    """A run whose steps 21, 41, … take 200 ms more; the free-running ones are steps 1 to 10."""
    run = RunBuilder()
    for stage, count in (("baseline_free", 10), ("baseline_sync", 10), ("trace", 3), ("sampling", 100)):
        run.stage(stage, [USUAL_MS] * count, new_shapes=0)
    for step in run.steps:
        if step["step"] % EVERY == 1 and step["step"] > 1 and rare:
            for key in ("ns", "device_ns"):
                step[key] += round(MORE_MS * MS)
            if cause is not None:
                step[f"{cause}_ns"] = round(MORE_MS * MS)
            if waits:
                step["data_ns"] = round(MORE_MS * MS)
    return present(run_facts(read_run(run.write(folder, None))).budget)


@pytest.mark.parametrize("cause", ["evaluation", "save", None])
def test_the_mean_step_has_what_other_stages_met(tmp_path, cause):
    """A step in twenty that takes 200 ms more is 10 ms in the mean step."""
    found = budget_of(tmp_path, cause=cause)
    (one,) = [one for one in found.excess if one.every is not None]
    assert (one.cause, one.every, one.mean_ns) == (cause or "periodic", EVERY, round(MORE_MS * MS / EVERY))
    assert found.mean_ns == found.usual_ns + 10 * MS + found.residual_ns == 20 * MS


def test_long_steps_that_wait_for_a_batch_are_no_rare_work(tmp_path):
    assert all(one.every is None for one in budget_of(tmp_path, cause=None, waits=True).excess)
    assert budget_of(tmp_path / "none", rare=False).mean_ns == 10 * MS


def test_events_of_different_length_widen_the_interval(tmp_path):
    narrow = budget_of(tmp_path / "same")
    run = RunBuilder().stage("baseline_free", [USUAL_MS] * 10, new_shapes=0)
    run.stage("sampling", [USUAL_MS] * 100, new_shapes=0)
    for k, step in enumerate(run.steps[20::EVERY]):
        more = round((100 + 50 * k) * MS)
        step |= {"ns": step["ns"] + more, "device_ns": step["ns"] + more, "save_ns": more}
    wide = present(run_facts(read_run(run.write(tmp_path / "wide", None))).budget)
    assert narrow.high - narrow.low < 0.1 * MS
    # Saving took 100, 150, 200, 250 and 300 ms: a mean of 200 ± 35.4 (standard error), of which 80 % are t(4) = 1.533.
    assert wide.high - wide.mean_ns == pytest.approx(1.533 * 35.36 / EVERY * MS, rel=0.05)


@pytest.mark.parametrize(
    ("long", "every"),
    [
        ([21, 41, 61, 81], 20),
        ([21, 33, 41, 61, 81], 20),
        ([21, 61, 81], 20),
        ([21, 41], None),
        ([3, 17, 40, 44, 90], None),
        ([5, 6, 7, 8], None),
        ([10, 13, 16, 24, 50, 83], None),
    ],
)
def test_the_distance_between_long_steps(long, every):
    """Steps 31 to 49 were not timed, so that one at 41 may be missing; a fixed distance holds for the whole run."""
    timed = [number for number in range(2, 100) if number in long or not 31 <= number < 50]
    assert period(np.array(long), np.array(timed)) == every


def collecting(folder, at: list[int], waiting: bool = True) -> RunFolder:
    """A run that collects garbage for 200 ms in these steps; of 120 unprofiled ones the first ten are free-running."""
    run = RunBuilder()
    for stage, count in (("baseline_free", 10), ("baseline_sync", 10), ("sampling", 100)):
        run.stage(stage, [USUAL_MS] * count, new_shapes=0)
    for step in run.steps:
        step |= {"data_ns": 2 * MS, "garbage_collection_ns": MS}
        if step["step"] in at:
            more = round(MORE_MS * MS)
            step |= {key: step[key] + more for key in ("ns", "device_ns", *(["data_ns"] if waiting else []))}
            step["garbage_collection_ns"] += more
    return read_run(run.write(folder, None))


def test_collections_at_no_fixed_distance_are_in_the_mean_step(tmp_path):
    """Five in 120 steps, none of them in the ten free-running ones: 200 ms in one of 24 steps."""
    run = collecting(tmp_path, [21, 49, 60, 88, 111])
    (one,) = present(run_facts(run).budget).excess
    assert (one.cause, one.every, one.mean_ns) == ("garbage_collection", 24, round(MORE_MS * MS / 24))


@pytest.mark.parametrize("at", [[60, 88], [1, 3, 5, 60], []])
def test_collections_are_not_where_they_are_rare_or_the_stretch_shows_them(tmp_path, at):
    assert all(one.every is None for one in present(run_facts(collecting(tmp_path, at)).budget).excess)


@pytest.mark.parametrize(("waiting", "share"), [(True, 1.0), (False, 0.0)])
def test_which_collections_go_with_the_batches(tmp_path, waiting, share):
    """Only those that come while a batch is made."""
    found = present(full_collections(collecting(tmp_path, [21, 49, 60, 88, 111], waiting)))
    assert found.in_waits == pytest.approx(share, abs=0.01)

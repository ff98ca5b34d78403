"""A run's step times: which timed steps are like the recorded ones, how they are scaled, and those that are longer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.make_run import MS, RunBuilder
from helpers.run_facts import array, facts, issues

from gpuprof.diagnosis.mean_step.baseline import durations, line, step_time
from gpuprof.diagnosis.mean_step.budget import in_words
from gpuprof.tracefile.trace import ABSENT


def test_the_gpus_own_clock_goes_first():
    ns, device = np.array([10, 10, 10]), np.array([30, 31, ABSENT])
    assert durations(ns, device, 300, 3, on_gpu=True)[:2].tolist() == [30, 31]
    assert math.isnan(durations(ns, device, 300, 3, on_gpu=True)[2])


def test_a_host_that_ran_ahead_is_corrected_by_the_whole_stage():
    ns, none = np.array([10, 10, 20]), np.full(3, ABSENT)
    assert durations(ns, none, 80, 3, on_gpu=True).tolist() == [20, 20, 40]
    assert durations(ns, none, 80, 3, on_gpu=False).tolist() == [10, 10, 20], "a CPU is never behind"
    assert durations(ns, none, 80, 4, on_gpu=True).tolist() == [10, 10, 20], "steps are missing"
    assert durations(ns, none, 30, 3, on_gpu=True).tolist() == [10, 10, 20]


def test_steps_of_equal_work_only():
    found = step_time(array(80, 81, 82, 160, 170), array(100, 104, 96, 200, 220), 100)
    assert found and (found.ns, found.steps, found.equal_work, found.fitted) == (80, 3, True, False)


def test_steps_of_nearly_equal_work_are_scaled_to_it():
    """All three steps of nearly that work do 9 % less, and take 9 % less."""
    work = array(4736, 4736, 4736, 6656, 7552, 4224)
    found = step_time(work * 24 + 100, work, 5205)
    assert found and found.equal_work and not found.fitted
    assert found.ns == pytest.approx(5205 * 24 + 100, rel=1e-4)
    # What does not grow with the work stays, and nothing grows by more than the work does.
    flat = step_time(array(80, 80, 80, 80), array(91, 92, 93, 100), 100)
    assert flat and flat.ns == 80
    noise = step_time(array(80, 99, 81, 80, 99), array(91, 92, 93, 94, 95), 100)
    assert noise and noise.ns == 81
    steep = step_time(array(80, 80, 80, 400, 410), array(95, 95, 95, 140, 141), 100)
    assert steep and steep.ns == round(80 / 95 * 100)


def test_an_evaluation_is_no_step():
    found = step_time(array(80, 9000, 82, 81), array(100, 100, 100, 100), 100)
    assert found and (found.ns, found.steps) == (81, 3)


def test_few_steps_are_better_than_none():
    found = step_time(array(80, 160), array(100, 200), 100)
    assert found and (found.ns, found.steps) == (80, 1)
    assert step_time(array(80, 160), array(100, 200), 150) is None
    assert step_time(array(), array(), 150) is None
    assert step_time(array(math.nan), None, None) is None


def test_work_that_is_not_known():
    found = step_time(array(80, 81, 82), None, None)
    assert found and found.ns == 81 and found.equal_work is None


def test_the_line_does_not_reach_far():
    ns, work = array(80, 90, 110, 125), array(100, 120, 150, 180)
    assert step_time(ns, work, 1000) is None
    found = step_time(ns, work, 225)
    assert found and found.fitted and 140 < found.ns < 160


def test_steps_timed_in_another_way_show_how_time_grows_with_work():
    """Alone, the three lie on a line that is too steep; with others that are 20 ms longer they show the right one."""
    work = np.array([300.0, 400.0, 500.0])
    ns = np.array([60.0, 60.0, 80.0])
    others = np.linspace(100.0, 900.0, 9)
    assert line(work, ns)[1] == pytest.approx(0.1)
    assert line(work, ns, (80 + 0.01 * others, others))[1] == pytest.approx(0.013, abs=0.0005)
    alone, together = step_time(ns, work, 700), step_time(ns, work, 700, (80 + 0.01 * others, others))
    assert alone and together and alone.ns == 97 and together.ns == 71
    assert step_time(ns, work, 900) is None, "too far from what was measured"
    assert step_time(ns, work, 900, (80 + 0.01 * others, others)) is not None


@pytest.mark.parametrize(
    ("samples", "loader", "found"),
    [
        (1, {"batch_size": 8}, 8),
        (2, {"batch_size": 8}, None),
        (1, {"batch_size": 1}, 1),
        (1, None, None),
        (1, {}, None),
        (179, {"batch_size": None}, None),
        (5, {"batch_size": 8, "counts_samples": True}, 5),
        (None, {"batch_size": None, "counts_samples": True}, None),
    ],
)
def test_samples_are_known_from_the_loader_only(tmp_path, samples, loader, found):
    """A batch may be one long row, and the rows of a tensor may be anything; only what a sampler chose is reliable."""
    run = RunBuilder().stage("baseline_free", [100.0] * 8, samples=samples)
    run.rank["loader"] = loader
    result = facts(run.stage("trace", [110.0], samples=samples), tmp_path).run
    assert result.work.samples == found
    assert result.throughput.samples_per_s == (found and pytest.approx(10 * found))


def test_varying_lengths_in_a_run(tmp_path):
    lengths = [200, 400, 900, 300, 700, 500, 1000, 600]
    run = RunBuilder().stage("baseline_free", [20 + 0.1 * n for n in lengths], lengths)
    run.stage("trace", [200, 240], [750, 850])
    found = facts(run, tmp_path)
    assert found.unprofiled and found.unprofiled.fitted
    assert found.unprofiled.ns == pytest.approx(100 * MS, rel=1e-6)
    assert found.run.baseline.fitted and found.run.baseline.equal_work is False
    assert issues(found) == {"baseline_fitted": "info"}


SAVES = [124.4, 123.0, 123.0, 1116.7, 123.0, 123.1, 123.3, 1150.2, 123.3, 123.0]
SAVES_CLOSED = [124.2, 1201.2, 124.5, 124.5, 124.1, 1219.9, 124.0, 124.5, 124.0, 1210.8]
"""A run on an H200 that saved every four steps."""


def timed(free: list[float], closed: list[float], **fields) -> RunBuilder:
    run = RunBuilder().stage("baseline_free", free, **fields).stage("baseline_sync", closed, **fields)
    return run.stage("trace", [130.0, 1207.0, 124.0])


def test_steps_that_come_back_and_take_long(tmp_path):
    rare = facts(timed(SAVES, SAVES_CLOSED), tmp_path).run.baseline.rare
    assert rare and (rare.every, rare.count) == (4, 5)
    assert rare.ns == pytest.approx(1201.2 * MS) and rare.usual_ns == pytest.approx(124.1 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("free", "closed", "fields"),
    [
        (SAVES, [124.0] * 10, {}),  # twice is an accident
        ([*SAVES[1:3], *SAVES], SAVES_CLOSED[1:], {}),  # at no fixed distance
        (SAVES, SAVES_CLOSED, {"data_ns": 1000 * MS}),  # waits for its batch
        ([124.0] * 10, [150.0, 124.0] * 5, {}),  # no longer than steps differ anyway
    ],
)
def test_long_steps_that_say_nothing(free, closed, fields, tmp_path):
    assert facts(timed(free, closed, **fields), tmp_path).run.baseline.rare is None


def test_long_steps_that_do_more_work(tmp_path):
    run = RunBuilder().stage("baseline_free", [100.0, 100, 100, 400] * 5, [100, 100, 100, 400] * 5)
    assert facts(run.stage("trace", [110.0] * 3, 100), tmp_path).run.baseline.rare is None


def test_work_that_cannot_be_compared(tmp_path):
    run = RunBuilder().stage("baseline_free", [100.0] * 5, 100).stage("trace", [900.0] * 3, 1000)
    found = facts(run, tmp_path)
    assert found.unprofiled is None and issues(found) == {"baseline_work": "warning"}


def test_steps_that_stay_slow(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0, 81, 82] * 3).stage("trace", [160.0] * 3)
    assert issues(facts(run.stage("after", [82.0] * 80), tmp_path)) == {}
    run = RunBuilder().stage("baseline_free", [80.0, 81, 82] * 3).stage("trace", [160.0] * 3)
    found = facts(run.stage("after", [97.0] * 80), tmp_path)
    assert found.run.after_ns == 97 * MS and issues(found) == {"slower_after": "warning"}


def test_steps_that_vary(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0, 120, 85, 125, 90, 80, 118]).stage("trace", [160.0] * 3)
    assert issues(facts(run, tmp_path)) == {"baseline_varies": "warning"}


def test_a_mean_far_from_the_median(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0] * 19 + [900.0]).stage("trace", [160.0] * 3)
    assert issues(facts(run, tmp_path)) == {"baseline_skewed": "info"}


def test_a_save_seen_in_other_steps(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0] * 12).stage("baseline_sync", [82.0] * 5)
    run.stage("trace", [160.0] * 3).rank["intervals"] = {"save": 500}
    run.steps[14]["save_ns"] = 1000 * MS
    found = facts(run, tmp_path).budget
    assert found is not None
    assert [(one.cause, one.mean_ns) for one in found.excess] == [("save", 2 * MS)]


def test_a_stretch_that_continues_after_the_windows(tmp_path):
    """Later steps count from 5 s after the end of the recording, if the recorder's hooks are still there."""

    def run(after_ms: float, **fields) -> RunBuilder:
        made = RunBuilder().stage("baseline_free", [80.0] * 10).stage("trace", [160.0] * 3)
        return made.stage("after", [after_ms] * 100, **fields)

    seen = facts(run(81.0, new_shapes=0), tmp_path / "1").budget
    assert seen is not None and seen.steps == 10 + 100 - 62
    assert 80 * MS < seen.mean_ns < 81 * MS
    for number, other in enumerate((run(81.0), run(99.0, new_shapes=0)), 2):
        found = facts(other, tmp_path / str(number)).budget
        assert found is not None and found.steps == 10, "without hooks, or slower than before"


def test_memory_that_is_allocated_in_a_step(tmp_path):
    """Six calls of cudaMalloc explain 1 ms each of its 12 ms excess; what nothing explains stays variation."""
    run = RunBuilder().stage("baseline_free", [80.0] * 6 + [92.0] + [80.0] * 5).stage("trace", [160.0] * 3)
    for number, step in enumerate(run.steps):
        step["device_allocations"] = 40 if number < 6 else None if number == 6 else 46
    found = facts(run, tmp_path).budget
    assert found is not None
    assert [(one.cause, one.steps) for one in found.excess] == [("allocator", 1)]
    assert found.excess[0].mean_ns == round(6 * MS / 12)
    assert found.residual_ns == 1 * MS - round(6 * MS / 12)


def test_steps_that_pause_for_no_measured_cause_are_counted(tmp_path):
    ms = [80.0, 90.0, 80.0, 80.0, 1280.0, 80.0, 100.0, 80.0, 680.0, 80.0, 80.0, 70.0]
    found = facts(RunBuilder().stage("baseline_free", ms).stage("trace", [160.0] * 3), tmp_path).budget
    assert found is not None
    assert (found.pauses, found.paused_ns) == (2, pytest.approx((1200 + 600) * MS / 12, rel=0.01))
    said = " ".join(in_words(found))
    assert "Pauses without a measured cause add 150 ms to the mean step (2 of 12 timed steps)." in said


@pytest.mark.parametrize(("pause_ms", "owed_ms"), [(380.0, 4 * 40 + 900), (1000.0, 5 * 40)])
def test_a_new_shape_owes_all_of_a_step_that_is_longer_than_any_known_one(tmp_path, pause_ms: float, owed_ms: float):
    """40 ms more for most new shapes, and 900 ms where a kernel is compiled; a long step with a known shape counts as a
    pause."""
    ms = [80.0, 120.0, 80.0, 80.0, 980.0, 80.0, 120.0, pause_ms, 80.0, 120.0, 80.0, 120.0]
    run = RunBuilder().stage("baseline_free", ms).stage("trace", [160.0] * 3)
    for step, took in zip(run.steps, ms, strict=False):
        step["new_shapes"] = int(took in (120.0, 980.0))
    found = facts(run, tmp_path).budget
    assert found is not None
    assert {one.cause: one.mean_ns for one in found.excess} == {
        "new_shapes": pytest.approx(owed_ms * MS / 12, rel=0.03)
    }


@pytest.mark.parametrize(
    ("rows", "loader", "declared", "samples"),
    [
        (8, 8, None, 8),
        (16, 8, None, 8),
        (1, 8, None, 8),
        (12, 8, None, None),
        (520, 64, 8, 8),
        (7, 8, None, None),
        (4, 8, None, 4),
    ],
    ids=["as handed out", "preference pairs", "packed", "unknown relation", "generations", "a smaller call", "halves"],
)
def test_samples_are_those_of_the_batch_and_not_rows(tmp_path, rows, loader, declared, samples):
    """Two accumulated passes; with a trainer its own micro-batch counts."""
    run = RunBuilder().stage("baseline_free", [80.0] * 6, samples=2 * rows, micro_steps=2)
    run.stage("trace", [160.0] * 3, samples=2 * rows, micro_steps=2)
    run.rank["loader"] = {**run.rank["loader"], "batch_size": loader}
    if declared:
        arguments = {"class": "GRPOConfig", "set": {"per_device_train_batch_size": declared}}
        run.rank["program"] = {"arguments": arguments}
    assert facts(run, tmp_path).run.work.samples == (samples and 2 * samples)


def test_steps_of_more_passes_are_timed_by_their_passes(tmp_path):
    """Growing accumulation with batches of unknown size: a recorded step of two passes is compared with timed steps of
    two."""
    run = RunBuilder().stage("baseline_free", [60.0, 61.0, 59.0, 60.0] * 2, tokens=0, samples=None)
    run.stage("baseline_sync", [120.0, 121.0, 119.0, 120.0] * 2, tokens=0, samples=None, micro_steps=2)
    run.stage("trace", [200.0] * 3, tokens=0, samples=None, micro_steps=2)
    found = facts(run, tmp_path).unprofiled
    assert found is not None and found.ns == pytest.approx(120 * MS, rel=0.03)

"""Refitting finds the number that reproduces the measured step, from the recordings that it may use."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from helpers.diagnosed import each_diagnosed_once
from helpers.paths import ROOT
from helpers.present import present

from benchmarks import calibrate, fit_or_test, gain_scatter, refit
from benchmarks.refit import Knob, Refit
from gpuprof.calibration.table import numbers
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.findings import compile, recompute
from gpuprof.value_range import Range
from scenarios import catalogue

PAIR = "tests/data/pairs/tiny.json.gz"
HOST = Knob(("compile.HOST",), compile)


@pytest.mark.parametrize("truth", [0.7, 1.3])
def test_a_known_number_is_found_again(truth, monkeypatch):
    """If the fix takes what is predicted with a number 0.7 or 1.3 times as large, that number is fitted."""
    before = numbers()["compile.HOST"]
    case, timed = refit.timed_fix(PAIR, HOST)
    assert case is not None and timed is not None
    looked = analysis_of(refit.diagnosed(case.path))
    assert looked is not None
    made = refit._predicted(HOST, looked, timed, truth)
    assert made is not None
    monkeypatch.setattr(refit, "timed_fix", lambda *_: (case, replace(timed, step_ms=(made[0] / 1e6,) * 2)))
    assert present(refit.fitted_step(HOST, PAIR)).scale == pytest.approx(truth, rel=0.03)
    assert numbers()["compile.HOST"] == before, "left as it was"


def test_a_step_that_no_value_explains_says_nothing(monkeypatch):
    case, timed = refit.timed_fix(PAIR, HOST)
    assert timed is not None
    for step in (0.001, 1e6):
        monkeypatch.setattr(refit, "timed_fix", lambda *_, step=step: (case, replace(timed, step_ms=(step, step))))
        assert refit.fitted_step(HOST, PAIR) is None


@pytest.mark.slow
def test_a_fix_that_does_not_depend_on_the_number_says_nothing():
    knob = Knob(("recompute.READ_BACK",), recompute)  # 0 times anything
    assert refit.fitted_step(knob, "tests/data/pairs/checkpoint.json.gz") is None


@pytest.mark.slow
def test_what_was_fitted_lies_where_the_table_says():
    """The share of the bandwidth, the price of a round and the hooks of checkpointing, as the commands fit them."""
    with fit_or_test.only_fit(), each_diagnosed_once():
        found = {one.name: one for subject in ("projection", "batch") for one in calibrate.SUBJECTS[subject]()}
    for name in ("projection.USUAL_REACH", "batch.ROUND"):
        one, old = found[name], numbers()[name]
        assert one.value is not None and old.low <= one.value <= old.high
        assert set(one.values) <= set(old.recordings)
    assert found["projection.USUAL_REACH"].value == pytest.approx(0.86, abs=0.02)


def test_noise_is_that_of_the_processes():
    with fit_or_test.only_fit():
        found = {one.name: one for one in islice(calibrate.noise(), 2)}
    of_gpus, of_all = (present(found[f"noise.{name}"].value) for name in ("GPU_PROCESS", "PROCESS"))
    assert of_gpus < of_all < present(numbers()["noise.PROCESS"].high)
    assert len(found["noise.PROCESS"].values) > 40
    assert set(found["noise.GPU_PROCESS"].values) < {*catalogue.names()}


@pytest.mark.slow
def test_processes_of_programs_whose_cpu_matters_differ_more():
    with fit_or_test.only_fit():
        found = {one.name: one for one in islice(calibrate.noise(), 3)}["noise.HOST_BOUND"]
    table = numbers()["noise.HOST_BOUND"]
    assert present(found.value) == pytest.approx(table.value, rel=0.05)
    assert present(found.interval) == pytest.approx((table.low, table.high), rel=0.05)
    assert {catalogue.scenario(name).role for name in found.values} == {"fit"}


def test_gaps_are_of_kernels_that_wait_for_their_turn():
    timeline = calibrate.timeline_of(ROOT / "scenarios" / "eager_attention" / "recording")
    assert timeline is not None
    gaps = calibrate.queued_gaps(timeline)
    assert len(gaps) > 100 and (gaps > -1_000).all()
    assert 700 < np.median(gaps) < 2_500


def test_a_refit_has_the_interval_of_its_values():
    few, many = Refit("a.B", {"x": 1.0, "y": 3.0}), Refit("a.B", {str(i): float(i) for i in range(11)})
    assert (few.value, few.interval) == (2.0, (1.0, 3.0))
    assert (many.value, many.interval) == (5.0, (1.0, 9.0))
    assert (Refit("a.B", {}).value, Refit("a.B", {}).interval) == (None, None)
    assert "not known from the recordings here" in next(calibrate.table(iter([Refit("compile.HOST", {})])))


def test_shares_of_the_bandwidth():
    assert calibrate.share_of_bandwidth(1.43, 1.43) == pytest.approx(1.0)
    assert calibrate.share_of_bandwidth(1.0, 1.43) == 0.0
    used = 0.6
    longer = np.sqrt((used * 1.43) ** 2 + 1 - used**2)
    assert calibrate.share_of_bandwidth(float(longer), 1.43) == pytest.approx(used)


@pytest.mark.parametrize(
    ("measured", "turns", "share"),
    [(2.0, 0.0, 0.0), (2.15, 0.0, 0.0), (1.7, 0.0, None), (1.7, 0.2, 0.0), (2.6, 0.1, None), (1.3, 0.1, None)],
)
def test_what_turns_scatter_by_is_no_scatter_of_the_replay(measured: float, turns: float, share: float | None):
    """A gain of 2, 1.9 to 2.2 for what its fix is unsure of: what is needed beyond it puts the end where the measured
    gain is, less what its turns explain."""
    gain, shorter = Range(1.9, 2.0, 2.2), math.log(2)
    found = gain_scatter.share_needed(measured, gain, shorter, turns)
    if share is not None:
        assert found == share
        return
    own = math.log1p(numbers()["noise.GAIN"].value)
    assert math.hypot(found * shorter, turns, own) == pytest.approx(abs(math.log(measured / 2)))
    assert gain_scatter.share_needed(measured, gain, 0.0, turns) == math.inf


@pytest.mark.slow  # predicts every measured gain of role fit
@pytest.mark.timeout(900)
def test_scatter_of_gains_beyond_that_of_processes():
    with fit_or_test.only_fit():
        (found,) = gain_scatter.gains()
    known = numbers()[found.name]
    assert found.value is not None
    assert known.low <= found.value <= 1.05 * known.value, "less is kept: its description says why"
    assert len(found.values) >= 40

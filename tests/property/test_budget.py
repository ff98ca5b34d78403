"""The budget of the mean step: exact to the nanosecond, and right about irregular costs put in on purpose."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.present import present
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.mean_step.budget import FreeStretch, attributed, budget, in_words, mean_ahead
from gpuprof.diagnosis.mean_step.timed_steps import timed_steps
from gpuprof.diagnosis.mean_step.unseen_lengths import unseen_lengths
from gpuprof.record.steps.free_run_length import (
    AFTERMATH_NS,
    MOST_TIMED_STEPS,
    PRECISE_MEAN,
    AfterWindows,
    block_of,
    half_width,
    more_steps,
)

MS = 1_000_000
CAUSES = ("input", "save", "evaluation", "logging", "garbage_collection", "allocator", "new_shapes")
ns = st.integers(0, 10**10)


@st.composite
def stretches(draw) -> FreeStretch:
    n = draw(st.integers(4, 40))
    column = st.lists(ns, min_size=n, max_size=n).map(lambda values: np.array(values, np.float64))
    step = draw(column)
    chosen = draw(st.lists(st.sampled_from(CAUSES), unique=True))
    return FreeStretch(
        wall_ns=draw(st.integers(1, 10**12)),
        step_ns=step,
        expected_ns=draw(column),
        usual_ns=draw(ns),
        measured_ns={cause: draw(column) for cause in chosen},
        every={cause: draw(st.integers(1, 1000)) for cause in draw(st.sets(st.sampled_from(("save", "evaluation"))))},
        workers=draw(st.integers(0, 8)),
        total_steps=draw(st.none() | st.integers(1, 10**6)),
    )


@given(stretches())
def test_the_parts_sum_to_the_mean_exactly(stretch: FreeStretch):
    found = budget(stretch)
    assert found is not None
    assert found.mean_ns == found.usual_ns + sum(one.mean_ns or 0 for one in found.excess) + found.residual_ns
    assert found.low <= found.mean_ns <= found.high
    assert 0 <= found.paused_ns <= max(found.residual_ns, 0)


@given(stretches())
def test_causes_never_exceed_the_excess(stretch: FreeStretch):
    share = attributed(stretch)
    excess = (stretch.step_ns - stretch.expected_ns).clip(0)
    if share:
        total = np.sum(list(share.values()), axis=0)
        assert (total <= excess * (1 + 1e-9) + 1).all()
        for cause, part in share.items():
            assert (part >= 0).all()
            assert cause == "warm_up" or (part <= stretch.measured_ns[cause] + 1).all()


@given(stretches(), st.data())
def test_the_parts_of_each_step_sum_to_it_exactly(stretch: FreeStretch, data):
    unknown = data.draw(st.sets(st.integers(0, len(stretch.step_ns) - 1), max_size=3))
    stretch.step_ns[list(unknown)] = np.nan
    found = timed_steps(stretch)
    assert found.number.tolist() == [k + 1 for k in range(len(stretch.step_ns)) if k not in unknown]
    assert found.ns.tolist() == [round(ns) for ns in stretch.step_ns.tolist() if not np.isnan(ns)]
    assert np.sum(list(found.parts.values()), axis=0).tolist() == found.ns.tolist()
    share = attributed(stretch)
    for part, ns in found.parts.items():
        assert (ns >= 0).all()
        if part in share:
            assert np.abs(ns - share[part][np.isfinite(stretch.step_ns)]).max(initial=0) <= 1 + 1e-9 * 10**10
    assert (found.parts["usual"] <= stretch.expected_ns[np.isfinite(stretch.step_ns)]).all()


def with_lumps(lumps: dict[str, tuple[int, int]], steps: int = 120, usual: int = 20 * MS, **more) -> FreeStretch:
    """A run of equal steps; cause → (every this many steps, ns that one takes)."""
    step = np.full(steps, float(usual))
    measured = {}
    for cause, (distance, cost) in lumps.items():
        column = np.zeros(steps)
        column[distance - 1 :: distance] = cost
        measured[cause] = column
        step += column
    return FreeStretch(int(step.sum()), step, np.full(steps, float(usual)), usual, measured, **more)


@given(st.dictionaries(
    st.sampled_from(("input", "save", "evaluation", "logging", "garbage_collection")),
    st.tuples(st.sampled_from((2, 4, 8, 10, 20)), st.integers(1 * MS, 500 * MS)), max_size=5,
))  # fmt: skip
def test_known_lumps_are_found_with_their_cost(lumps: dict[str, tuple[int, int]]):
    lumps = {cause: one for cause, one in lumps.items() if (cause, one[0]) != ("input", 2)}  # half are usual
    found = budget(with_lumps(lumps))
    assert found is not None
    means = {one.cause: one.mean_ns for one in found.excess}
    for cause, (distance, cost) in lumps.items():
        assert means[cause] == pytest.approx(cost / distance, rel=1e-6, abs=2)
    assert abs(found.residual_ns) <= 8


def test_what_comes_once_leaves_the_mean():
    found = budget(with_lumps({"new_shapes": (40, 300 * MS)}, total_steps=1000))
    assert found is not None
    assert found.mean_ns == 20 * MS and not found.excess
    (once,) = found.once
    assert (once.cause, once.ns, once.steps, once.per_step_ns) == ("new_shapes", 900 * MS, 3, 900_000)


def test_a_scheduled_event_enters_by_its_schedule():
    seen = with_lumps({"evaluation": (100, 2_000 * MS)}, every={"evaluation": 500, "save": 1000})
    found = budget(seen)
    assert found is not None
    by_cause = {one.cause: one for one in found.excess}
    assert by_cause["evaluation"].mean_ns == 4 * MS and by_cause["evaluation"].every == 500
    assert by_cause["save"].mean_ns is None, "not measured, and not 0"
    assert found.mean_ns == 24 * MS
    assert "Not measured, and not included: saving (every 1000 steps)" in " ".join(in_words(found))


def test_an_event_seen_outside_the_stretch_has_its_cost_from_there():
    stretch = with_lumps({}, every={"save": 500}, events_ns={"save": np.array([900.0 * MS, 1100.0 * MS])})
    (save,) = present(budget(stretch)).excess
    assert (save.cause, save.mean_ns, save.steps) == ("save", 2 * MS, 0)


def test_an_event_that_costs_next_to_nothing_was_seen_all_the_same():
    (logging,) = present(budget(with_lumps({"logging": (10, 50_000)}, every={"logging": 10}))).excess
    assert logging.mean_ns == 5_000 and logging.steps == 12


def test_what_becomes_rarer_enters_the_remaining_time_as_expected():
    """A third of the steps so far had new lengths, and 60 of the next 1000 will."""
    stretch = with_lumps(
        {"new_shapes": (3, 90 * MS)}, recurring=frozenset({"new_shapes"}), ahead_ns={"new_shapes": 60 * 90 * MS},
        total_steps=1120,
    )  # fmt: skip
    found = present(budget(stretch))
    assert found.mean_ns == 50 * MS, "what the steps so far cost"
    assert mean_ahead(found, 1000) == pytest.approx(20 * MS + 5.4 * MS)
    (once,) = found.once
    assert once.ahead_ns == 5400 * MS and once.per_step_ns == round((40 * 90 + 5400) * MS / 1120)


@given(st.integers(0, 10**6), st.integers(20, 120), st.sampled_from((1, 8, 64)), st.integers(50, 2000))
def test_lengths_yet_to_be_seen(seed: int, known: int, grid: int, steps: int):
    """The oracle draws the further steps from the same distribution and counts; means over many futures."""
    draw = np.random.default_rng(seed)

    def lengths(n: int) -> np.ndarray:
        return np.ceil(draw.lognormal(5.5, 0.4, n) / grid).astype(np.int64) * grid

    seen = lengths(known)
    expected = unseen_lengths(seen, steps)
    futures = [len(np.setdiff1d(lengths(steps), seen)) for _ in range(20)]
    assert expected is not None
    assert 0.5 * np.mean(futures) - 8 <= expected <= 1.6 * np.mean(futures) + 8


def test_time_hidden_behind_the_gpu_delays_nothing():
    waits = np.where(np.arange(40) % 4 == 3, 15.0 * MS, 0.0)
    step = np.full(40, 20.0 * MS)
    found = budget(FreeStretch(800 * MS, step, step, 20 * MS, {"input": waits}, workers=4))
    assert found is not None and found.mean_ns == 20 * MS and not found.excess


def test_the_interval_meets_the_true_mean_in_about_eight_of_ten():
    """Every fourth step waits, as with four workers, by a random amount; the truth is the process's own mean."""
    draw = random.Random(3)
    met = 0
    for _ in range(300):
        steps = [20.0 + (draw.expovariate(1 / 60) if k % 4 == 3 else 0.0) + draw.gauss(0, 0.5) for k in range(80)]
        mean = sum(steps) / len(steps)
        met += abs(mean - 35.0) <= half_width(steps, block_of(4))
    assert 0.72 <= met / 300 <= 0.90


def test_a_short_stretch_continues_after_the_windows():
    """Until it is precise: without the steps that pay for the recording, and those with batches made ahead."""
    lumpy = [20.0 * MS if k % 4 else 200.0 * MS * (1 + k % 3) for k in range(12)]
    after = AfterWindows(lumpy, workers=4, ahead=8, begun_ns=0)
    now, counted, steps = 0, 0, 0
    while after.wants_more():
        ns = int(lumpy[steps % 12])
        begun, now, steps = now, now + ns, steps + 1
        after.add(now, ns)
        counted += steps > 8 and begun >= AFTERMATH_NS
        assert steps < 1000
    assert 12 + counted >= MOST_TIMED_STEPS or half_width(lumpy + lumpy * (counted // 12), 8) < 0.07 * 100 * MS
    assert not AfterWindows([20.0 * MS] * 10, 0, 0, 0).wants_more()


def test_the_stretch_ends_when_it_is_precise_or_long_enough():
    assert more_steps([20.0 * MS] * 10, None) == 0
    lumpy = [20.0 * MS if k % 4 else 200.0 * MS * (1 + k % 3) for k in range(12)]
    assert more_steps(lumpy, 4) > 0
    assert more_steps(lumpy * 20, 4) == 0, "200 steps are enough"
    assert more_steps([15_000.0 * MS, 6_000.0 * MS], None) == 0, "20 s are enough"
    assert MOST_TIMED_STEPS == 200 and PRECISE_MEAN == 0.05

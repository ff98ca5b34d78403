"""Changes of the step time, as `gpuprof attach --watch` sees them, with made-up steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.attach.changes import (
    BLOCK_STEPS,
    RECENT_BLOCKS,
    REFERENCE_BLOCKS,
    SETTLING_STEPS,
    StepTimeChange,
    Watch,
    advance,
)
from gpuprof.calibration import watch as watch_calibrated

BEFORE = SETTLING_STEPS + BLOCK_STEPS * REFERENCE_BLOCKS
"""Number of steps until the usual level is known."""
seeds = st.integers(0, 2**32)


def seen(steps_ns: list[float]) -> list[tuple[int, StepTimeChange]]:
    watch, found = Watch(), []
    for i, ns in enumerate(steps_ns):
        watch, change = advance(watch, ns)
        found += [] if change is None else [(i, change)]
    return found


def noise(seed: int, count: int, spread: float = 0.03) -> list[float]:
    """Steps of 100 ms with a tail: one in 20 takes up to 30 times as long."""
    chance = random.Random(seed)
    return [
        1e8 * chance.lognormvariate(0, spread) * (30 ** chance.random() if chance.random() < 0.05 else 1)
        for _ in range(count)
    ]


@given(seed=seeds)
def test_no_change_in_noise_with_a_tail(seed: int):
    assert seen(noise(seed, 1500)) == []


@given(seed=seeds, ratio=st.sampled_from([0.5, 0.65, 1.5, 3.0]), begins=st.integers(BEFORE, BEFORE + 500))
def test_a_level_is_seen_once_and_soon(seed: int, ratio: float, begins: int):
    steps = [ns * (ratio if i >= begins else 1) for i, ns in enumerate(noise(seed, begins + 800))]
    (at, change), *more = [pair for pair in seen(steps) if pair[1].is_new]
    assert not more
    assert begins < at <= begins + 2 * BLOCK_STEPS * RECENT_BLOCKS
    assert change.kind == "level"
    assert change.ratio == pytest.approx(ratio, rel=0.15)
    assert abs((at - change.steps) - begins) <= 4 * BLOCK_STEPS


@given(seed=seeds, per_step=st.sampled_from([2e-4, 5e-4, -2e-4]))
def test_a_drift_opens_one_window(seed: int, per_step: float):
    begins = BEFORE + 200
    steps = [ns * (1 + per_step * max(0, i - begins)) for i, ns in enumerate(noise(seed, begins + 3000))]
    changes = [change for _, change in seen(steps)]
    assert len(changes) >= 2
    assert [change.is_new for change in changes] == [True] + [False] * (len(changes) - 1)


@given(seed=seeds)
def test_a_level_that_comes_back_is_known(seed: int):
    """100 ms, 150 ms, and so on: the second level is new once, the first never again."""
    steps = [ns * (1.5 if i // 1000 % 2 else 1) for i, ns in enumerate(noise(seed, 6000))]
    assert [change.cause for _, change in seen(steps)] == ["new", "known", "known", "known", "known"]


@given(
    steps=st.lists(
        st.floats(1, 1e12),
        min_size=BEFORE + BLOCK_STEPS * RECENT_BLOCKS,
        max_size=BEFORE + BLOCK_STEPS * RECENT_BLOCKS + 100,
    ),
    scale=st.sampled_from([2.0**-10, 2.0**10]),
)
def test_the_unit_does_not_matter(steps: list[float], scale: float):
    one, other = seen(steps), seen([ns * scale for ns in steps])
    assert [(i, c.kind, c.cause, c.steps) for i, c in one] == [(i, c.kind, c.cause, c.steps) for i, c in other]


@given(
    seed=seeds, share=st.floats(-0.8 * watch_calibrated.LEAST_CHANGE.value, 0.8 * watch_calibrated.LEAST_CHANGE.value)
)
def test_small_changes_are_none(seed: int, share: float):
    steps = [ns * (1 + share if i >= 500 else 1) for i, ns in enumerate(noise(seed, 1500, spread=0.01))]
    assert [
        change for _, change in seen(steps) if abs(change.ratio - 1) < 0.9 * watch_calibrated.LEAST_CHANGE.value
    ] == []


@given(steps=st.lists(st.sampled_from([0.0, -1.0, float("nan"), float("inf")]), max_size=50), seed=seeds)
def test_steps_without_a_time_are_passed_over(steps: list[float], seed: int):
    usual = noise(seed, BEFORE)
    watch = Watch()
    for ns in [*steps, *usual]:
        watch, change = advance(watch, ns)
        assert change is None
    assert watch.is_ready and watch.level_ns == pytest.approx(1e8, rel=0.1)
    after = watch.after_recording()
    for _ in range(SETTLING_STEPS):
        after, change = advance(after, 1e12)
        assert change is None
    assert after.reference == watch.reference and not after.since

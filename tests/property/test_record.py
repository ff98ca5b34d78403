"""Where steps end and how they are used, whatever the training does."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gpuprof.record.steps.schedule import plan
from gpuprof.record.steps.step_finder import StepFinder


@given(st.permutations(list(range(4))), st.integers(1, 4), st.integers(30, 80))
def test_any_cycle_of_optimizers_is_one_step(order: list[int], count: int, rounds: int):
    cycle = order[:count]
    finder = StepFinder()
    found = []
    for _ in range(rounds):
        finder.backward()
        found.append([finder.ended(who) for who in cycle])
    assert all(row == [False] * (count - 1) + [True] for row in found[1:])


@given(
    st.integers(1, 200),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(1, 30),
    st.integers(1, 10),
    st.integers(0, 5),
    st.integers(0, 5),
    st.none() | st.floats(1e-4, 1e4),
)
def test_a_short_run_gets_less_of_everything(total, settle, baseline, steps, stacks, memory, step_s):
    found = plan(
        settle=settle, baseline=baseline, steps=steps, stacks=stacks, memory=memory, step_s=step_s, total=total
    )
    least = (1 if settle is None else settle) + 2 * (1 if baseline is None else baseline) + 1 + 1
    if total - 1 >= least:
        assert found.needs() <= total - 1, "the last window closes before the last step"
    assert found.trace >= 1
    assert found.settle == (found.settle if settle is None else settle)


@given(st.floats(0.01, 30.0))
def test_ranks_whose_clocks_differ_a_little_choose_alike(step_s: float):
    jitter = random.Random(step_s)
    plans = {plan(step_s=step_s * (1 + jitter.uniform(-0.01, 0.01))).stages()[1][1] for _ in range(8)}
    assert len(plans) == 1 or any(abs(step_s - limit) < 0.02 * limit for limit in (2.0, 10.0))

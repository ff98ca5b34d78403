"""`gpuprof try` confirms fixes that gain and no others: false and true confirmations by simulation. A trial is
simulated as it runs: an unchanged process before each round and after the last, and a decision after each of up to ten
rounds. Process i takes exp(noise i), and with the fix that divided by the gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers.quick import few
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.trial import judge
from gpuprof.trial.decision import RANK_SUM_P, decide, rank_sum_probability
from gpuprof.trial.trial import MeasuredGain, TimedProcess

TRIALS, ROUNDS = 1000, 10
Noise = Callable[[np.random.Generator, int], np.ndarray]
Draw = np.random.Generator


def process(name: str, step: float, **more: float) -> TimedProcess:
    return replace(TimedProcess(name, round(step * 1e6), 0, 20, None, 1, 1, None), **more)


def bimodal(share: float) -> Noise:
    """Processes of two kinds, such as on two sockets."""
    return lambda draw, n: 0.002 * draw.standard_normal(n) + 0.3 * (draw.random(n) < share)


def drifting(draw: Draw, n: int) -> np.ndarray:
    """A machine that gets slower, or faster, by 5 % a process."""
    return 0.05 * np.arange(n) * draw.choice((-1, 1)) + 0.02 * draw.standard_normal(n)


def wandering(draw: Draw, n: int) -> np.ndarray:
    """Consecutive processes are similar."""
    found = 0.03 * draw.standard_normal(n)
    for i in range(1, n):
        found[i] += 0.7 * found[i - 1]
    return found


NOISES: dict[str, Noise] = {
    "normal": lambda draw, n: 0.03 * draw.standard_normal(n),
    "large": lambda draw, n: 0.3 * draw.standard_normal(n),
    "t2": lambda draw, n: 0.03 * draw.standard_t(2, n),
    "cauchy": lambda draw, n: np.clip(0.02 * draw.standard_cauchy(n), -3, 3),
    "outliers": lambda draw, n: 0.01 * draw.standard_normal(n) + (draw.random(n) < 0.2) * draw.uniform(0.2, 0.4, n),
    "skewed": lambda draw, n: 0.05 * np.exp(draw.standard_normal(n)),
    "bimodal": bimodal(0.5),
    "bimodal, mostly slow": bimodal(0.6),
    "drifting": drifting,
    "wandering": wandering,
}


def confirmed(noise: Noise, gain: float, trials: int = TRIALS) -> np.ndarray:
    """Share of trials in which the fix is confirmed by each round; a trial that ends with "slower" never confirms
    it."""
    draw, by_round = np.random.default_rng(7), np.zeros(ROUNDS + 1)
    for _ in range(trials):
        steps = 10 * np.exp(noise(draw, 2 * ROUNDS + 1))
        order = [process("fix", one / gain) if i % 2 else process("", one) for i, one in enumerate(steps)]
        for rounds in range(2, ROUNDS + 1):
            found = judge.judged("fix", order[: 2 * rounds + 1])
            if found and found.decision:
                by_round[rounds] += found.decision == "confirmed"
                break
    return by_round.cumsum() / trials


@pytest.mark.parametrize("name", few(NOISES, ["normal", "cauchy", "drifting"]))
def test_what_does_nothing_is_confirmed_in_at_most_five_of_a_hundred_trials(name: str):
    assert confirmed(NOISES[name], 1.0)[-1] <= 0.05


@pytest.mark.parametrize(
    ("name", "gain", "rounds", "share"),
    [("normal", 1.3, 2, 0.9), ("normal", 1.1, 4, 0.7), ("normal", 1.1, 10, 0.95), ("t2", 1.3, 4, 0.8),
     ("outliers", 1.3, 10, 0.75), ("bimodal", 2.0, 3, 0.9), ("large", 4.0, 4, 0.75)],
)  # fmt: skip
def test_a_clear_effect_is_confirmed(name: str, gain: float, rounds: int, share: float):
    assert confirmed(NOISES[name], gain, 300)[rounds] >= share


def test_what_lies_within_the_scatter_of_the_unchanged_processes_is_not_confirmed():
    """Measured: on full CPUs, 66.9, 90.2 and 66.2 ms as it is, 72.9 and 74.1 with a fix that did nothing."""
    steps = [("", 66.9), ("fix", 72.9), ("", 90.2), ("fix", 74.1), ("", 66.2)]
    found = judge.judged("fix", [process(*one) for one in steps])
    assert found and found.gain.low and found.gain.low > 1, "the paired gain alone would say that it is faster"
    assert found.decision is None and "differs by 36.3 % between processes" in found.why


def test_on_full_cpus_nothing_is_confirmed():
    steps = [("", 10.0), ("fix", 5.0)] * 4 + [("", 10.0)]
    full = [process(*one, other_cpus=1.0, idle_cpus=0.0) for one in steps]
    found = judge.judged("fix", full)
    assert found and found.decision is None and found.gain.expected == pytest.approx(2.0)
    assert found.why == "other programs kept the CPUs full in 9 of 9 processes, which confirm nothing"
    # Without noise two rounds decide.
    assert getattr(judge.judged("fix", [*full, *(process(*one) for one in steps[:5])]), "decision", None) == "confirmed"


def test_the_rank_sum_probability_is_that_of_all_orders():
    for some, many in ((2, 3), (3, 4), (4, 5)):
        values = range(some + many)
        for fixed in itertools.islice(itertools.combinations(values, some), 20):
            plain = [one for one in values if one not in fixed]
            above = sum(a > b for a in fixed for b in plain)
            orders = [
                sum(a > b for a in one for b in values if b not in one) for one in itertools.combinations(values, some)
            ]
            expected = sum(one <= above for one in orders) / len(orders)
            assert rank_sum_probability([float(x) for x in plain], [float(x) for x in fixed]) == pytest.approx(expected)


positive = st.floats(0.1, 1e4)


@given(st.lists(positive, min_size=3, max_size=9), st.lists(positive, min_size=2, max_size=8), st.floats(0.01, 100))
def test_units_do_not_matter_and_slower_is_the_mirror_image(plain: list[float], fixed: list[float], unit: float):
    gain, loss = MeasuredGain(1.01, 2.0, 3.0), MeasuredGain(1 / 3.0, 1 / 2.0, 1 / 1.01)
    found = decide(plain, fixed, gain)
    assert found in (None, "confirmed")
    if min(plain) > max(fixed) * 1.0001 or found is None:  # rounding does not decide
        mirrored = decide([1 / x for x in plain], [1 / x for x in fixed], loss)
        assert (mirrored == "slower") == (found == "confirmed") or _at_the_edge(plain, fixed)


def _at_the_edge(plain: list[float], fixed: list[float]) -> bool:
    """Whether rounding may decide."""
    gap = math.log(min(plain)) - math.log(max(fixed))
    scatter = math.log(max(plain)) - math.log(min(plain))
    p = rank_sum_probability(plain, fixed)
    limit = RANK_SUM_P / len(fixed) ** 2
    return abs(gap * (len(fixed) - 1) - max(scatter, 0.06)) < 1e-9 or abs(p - limit) < 1e-9 or bool(
        {1 / x for x in plain} & {1 / x for x in fixed}
    )  # fmt: skip


@given(st.lists(positive, min_size=3, max_size=6), st.lists(positive, min_size=2, max_size=6))
def test_nothing_is_confirmed_whose_interval_reaches_one(plain: list[float], fixed: list[float]):
    assert decide(plain, fixed, MeasuredGain(0.99, 1.5, 2.0)) is None
    assert decide(plain, fixed, MeasuredGain(None, 1.5, None)) is None

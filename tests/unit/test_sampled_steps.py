"""How many steps are sampled if the stretch lasts until it is long enough."""

from __future__ import annotations

import pytest

from gpuprof.record.stacks.sampling import FEWEST_SAMPLED_STEPS, fewer_steps


@pytest.mark.parametrize(
    ("planned", "step_s", "iteration", "sampled"),
    [
        (50, 0.002, 0, 50),  # more follow until it is long enough
        (25, 0.2, 0, 20),
        (10, 0.9, 0, 5),
        (4, 4.5, 0, FEWEST_SAMPLED_STEPS),
        (8, 0.9, 8, 8),  # an iteration of eight optimizer steps
        (2, 0.0, 0, 2),
    ],
)
def test_long_steps_are_sampled_no_longer_than_needed(planned: int, step_s: float, iteration: int, sampled: int):
    assert fewer_steps(planned, step_s, iteration) == sampled

"""When a window of steps with many ops may close before its planned end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuprof.record.steps.enough_steps import NODE_NS, STALL_NS, EnoughSteps, ops_counter

MANY = int(STALL_NS / NODE_NS)
"""Number of ops in a step whose recording alone would stall a training for as long as permitted."""


def window(baseline: Sequence[tuple[int | None, int]], recorded: Sequence[tuple[int | None, int]]) -> EnoughSteps:
    found = EnoughSteps()
    for step in baseline:
        found.timed(*step)
    for step in recorded:
        found.recorded(*step)
    return found


@pytest.mark.parametrize(("ops", "steps"), [(MANY // 4, 3), (MANY // 2, 2), (MANY, 1), (5 * MANY, 1)])
def test_as_few_steps_as_the_training_may_stall_for(ops: int, steps: int):
    step = (4096, ops)
    closes = [window([step] * 20, [step] * count).are_enough(3, 1e8) for count in (1, 2, 3)]
    assert closes == [steps < 3 and count >= steps for count in (1, 2, 3)]


def test_a_stall_of_one_long_step_is_no_reason():
    step = (None, MANY)
    assert window([step] * 20, [step]).are_enough(3, 1e9)
    assert not window([step] * 20, [step]).are_enough(3, 3.0 * STALL_NS)


def test_steps_of_other_lengths_do_not_stand_for_the_baseline():
    baseline = [(1000, MANY), (3000, MANY)] * 10
    assert not window(baseline, [(1000, MANY)]).are_enough(3, 1e8)
    assert window(baseline, [(1000, MANY), (3000, MANY)]).are_enough(3, 1e8)
    assert window(baseline, [(2100, MANY)]).are_enough(3, 1e8)


def test_nor_do_steps_of_other_ops():
    baseline = [(None, MANY)] * 3 + [(None, 5 * MANY)]
    assert not window(baseline, [(None, MANY)]).are_enough(4, 1e8)
    assert window(baseline, [(None, MANY)] * 3 + [(None, 5 * MANY)]).are_enough(5, 1e8)


def test_what_is_not_known_keeps_the_plan():
    step = (4096, MANY)
    assert not window([step], [step]).are_enough(3, 1e8), "one step says nothing of others"
    assert not window([step] * 20, []).are_enough(3, 1e8)
    assert not window([(4096, 0)] * 20, [(4096, 0)]).are_enough(3, 1e8), "compiled, or a torch that does not count"
    assert not window([step] * 20, [(None, MANY)]).are_enough(3, 1e8)


def test_ops_are_those_that_autograd_follows():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones(3, requires_grad=True)
    ops_followed = ops_counter()
    before = ops_followed()
    (x * 2 + 1).sum().backward()
    with torch.no_grad():
        _ = x * 2
    assert ops_followed() - before == 3

"""Phases of a step with two losses, each with an optimizer of its own, on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded

from gpuprof.timeline.phases import FORWARD, OPTIMIZER


@pytest.mark.parametrize("clears_first", [True, False])
def test_what_comes_before_the_second_backward_pass_is_forward(tmp_path: Path, clears_first: bool):
    """Whether its gradients are cleared before the loss is computed, or just before its backward pass."""
    import torch

    judge, generator = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, generator)]

    def step(_: int) -> None:
        for optimizer in optimizers:
            if clears_first:
                optimizer.zero_grad()
            loss = judge(generator(torch.ones(2, 4))).cosh().mean()
            if not clears_first:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    phase = case.timeline.host.op
    assert set(phase[case.ops_named("aten::cosh".__eq__)].tolist()) == {FORWARD}
    stepping = case.ops_named(lambda name: name.startswith("Optimizer.step#"))
    assert np.unique(phase[case.ops_within(stepping)]).tolist() == [OPTIMIZER]

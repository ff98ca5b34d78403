"""Penalties on a discriminator's gradient, with real autograd on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded

from gpuprof.calibration import recompute as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.repeated.gradient_penalties import find_penalties
from gpuprof.diagnosis.findings import repeated_backward
from gpuprof.replay.stretches import place
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE

STEPS = 2


def judged(kind: str):
    """A discriminator's step on 8 pictures. kind: what its gradient is for."""
    import torch
    from torch import nn

    layers = [part for _ in range(3) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())]
    judge = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), *layers, nn.Flatten(), nn.Linear(8 * 64, 1))
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.01)
    real, fake, target = (torch.randn(4, 3, 8, 8) for _ in range(3))

    def step(_: int) -> None:
        optimizer.zero_grad()
        between = torch.lerp(real, fake, 0.5).requires_grad_()
        score = judge(between)
        loss = score.mean()
        if kind != "learned":
            loss = loss + judge(fake).mean() - judge(real).mean()
        if kind != "none":
            (slope,) = torch.autograd.grad(score.sum(), between, create_graph=True)
            loss = loss + ((slope - target) if kind == "learned" else slope).square().mean()
        loss.backward()
        optimizer.step()

    return step


def recording(path: Path, kind: str) -> Analysis:
    return case_of(recorded(path / f"{kind}.json", judged(kind), count=STEPS), as_recorded=True)


def nodes(case: Analysis) -> np.ndarray:
    """Rows of autograd's nodes."""
    (low, high), ops = case.timeline.window, case.trace.ops
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE))
    return np.flatnonzero(engine & (ops.start_ns >= low) & (ops.start_ns < high))


def test_what_a_penalty_costs_is_what_a_step_without_it_saves(tmp_path):
    without, case = recording(tmp_path, "none"), recording(tmp_path, "penalty")
    found, ops = find_penalties(case), case.trace.ops
    assert found is not None and (found.times, found.shape) == (1.0, (4, 3, 8, 8))
    rows = nodes(case)
    gone = place(found.work, ops.thread[rows].astype(np.int64), ops.start_ns[rows]) >= 0
    # Those of the penalty's own few ops stay, and sums of gradients.
    assert (~gone).sum() == pytest.approx(len(nodes(without)), abs=8 * STEPS)
    assert gone.sum() > 20 * STEPS
    (proposal,) = (one for one in repeated_backward.find(case) if one.key == "penalty")
    assert proposal.changes and proposal.odds == calibrated.RARE_PENALTY_ODDS.value
    assert case.step_of(proposal.change(case.graph)) < case.step_ns


@pytest.mark.parametrize("kind", ["none", "learned"])
def test_a_gradient_that_is_learned_is_no_penalty(tmp_path, kind: str):
    assert find_penalties(recording(tmp_path, kind)) is None

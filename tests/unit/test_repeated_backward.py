"""Several backward passes through one graph, with real autograd on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.case import case_of, only
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import repeated_backward

WIDTH, LAYERS, HEADS = 16, 12, 3


def step_of(backward: Callable[..., None]) -> Callable[[int], object]:
    """Heads on an encoder, whose losses go back as `backward` says."""
    from torch import nn, randn

    encoder = nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    heads = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(HEADS))
    x = randn(4, WIDTH)

    def step(_: int) -> None:
        features = encoder(x)
        backward([head(features).square().mean() for head in heads], list(encoder.parameters()))
        encoder.zero_grad()
        heads.zero_grad()

    return step


def each(losses, _):
    for loss in losses:
        loss.backward(retain_graph=True)


def summed(losses, _):
    import torch

    torch.stack(losses).sum().backward()


def apart(losses, weights):
    """As for projected gradients, those of each loss are kept separately."""
    kept = []
    for loss in losses:
        loss.backward(retain_graph=True)
        kept.append([one.grad.clone() for one in weights])


def alone(losses, weights):
    """Gradients that are not added to the weights'."""
    import torch

    for loss in losses:
        torch.autograd.grad(loss, weights, retain_graph=True)


CASES = [
    pytest.param(each, True, id="each"),
    pytest.param(summed, False, id="summed"),
    pytest.param(apart, False, id="apart"),
    pytest.param(alone, False, id="alone"),
]


@pytest.mark.parametrize(("backward", "found"), few(CASES, ["each", "apart"]))
def test_losses_that_are_only_added_need_one_pass(tmp_path: Path, backward, found: bool):
    case = case_of(recorded(tmp_path / "trace.json", step_of(backward)), as_recorded=True)
    if not found:
        assert not list(repeated_backward.find(case))
        return
    proposal = only(repeated_backward, case)
    assert f"run {HEADS} times a step" in proposal.evidence[0].text
    left = proposal.change(case.graph).duration_ns > 0
    before, after = (int((case.graph.on_gpu & mask).sum()) / case.steps for mask in (left | True, left))
    # Of the encoder's backward pass, two matmuls a layer but one in the first, which no input needs, one time is left.
    assert before - after == (HEADS - 1) * (2 * LAYERS - 1)

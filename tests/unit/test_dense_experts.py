"""Mixtures that compute all experts for all tokens; not mixtures without a choice, experts of their own tokens, heads
of an attention, or layers after a router."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import expert_loop

WIDTH, EXPERTS, CHOSEN, SAMPLES, LENGTH = 16, 8, 2, 3, 6


def gates(scores, chosen: int = CHOSEN):
    """Weights of the chosen experts, 0 for the others."""
    import torch

    best = scores.softmax(-1).topk(chosen, -1)
    return torch.zeros_like(scores).scatter(-1, best.indices, best.values)


def summed(x, router, experts, _):
    weights = gates(router(x))
    total = 0
    for at, expert in enumerate(experts):
        total = total + weights[..., at : at + 1] * expert(x)
    return total


def stacked(x, router, experts, _):
    """The experts come before the choice."""
    import torch

    every = torch.stack([expert(x) for expert in experts], -2)
    return (gates(router(x)).unsqueeze(-1) * every).sum(-2)


def batched(x, router, _, matrices):
    import torch

    flat = x.reshape(-1, WIDTH)
    every = torch.bmm(flat.expand(EXPERTS, *flat.shape), matrices).relu()
    return (gates(router(flat)).T.unsqueeze(-1) * every).sum(0).view(x.shape)


def by_einsum(x, router, _, matrices):
    import torch

    return torch.einsum("bte,ebtd->btd", gates(router(x)), torch.einsum("btd,edf->ebtf", x, matrices).relu())


def without_choice(x, router, experts, _):
    weights = router(x).softmax(-1)
    return sum(weights[..., at : at + 1] * expert(x) for at, expert in enumerate(experts))


def most(x, router, experts, _):
    weights = gates(router(x), EXPERTS - 1)
    return sum(weights[..., at : at + 1] * expert(x) for at, expert in enumerate(experts))


def routed(x, router, experts, _):
    """Each expert for its own tokens."""
    import torch

    flat = x.reshape(-1, WIDTH)
    best = router(flat).softmax(-1).topk(CHOSEN, -1)
    total = torch.zeros_like(flat)
    for at, expert in enumerate(experts):
        rows, place = (best.indices == at).nonzero(as_tuple=True)
        total.index_add_(0, rows, expert(flat[rows]) * best.values[rows, place].unsqueeze(-1))
    return total.view(x.shape)


def layers(x, router, experts, _):
    """As many layers as there are experts, each with a router and a multiplication of all tokens."""
    import torch

    for one in experts:
        gates(router(x))
        x = one(torch.nn.functional.layer_norm(x, (WIDTH,)))
    return x


def with_places(x, router, _, matrices):
    """A number of places for each expert, with as many in all as there are tokens."""
    flat = x[:2, :4].reshape(-1, WIDTH)
    gates(router(flat))
    return (flat.view(EXPERTS, -1, WIDTH) @ matrices).view(2, 4, WIDTH)


def heads(x, router, experts, _):
    """An attention of one sample with a head for each expert, after a choice that nothing is computed for."""
    x = x[:1]
    gates(router(x))
    each = x[0].view(-1, EXPERTS, WIDTH // EXPERTS).transpose(0, 1)
    return ((each @ each.transpose(1, 2)).softmax(-1) @ each).transpose(0, 1).reshape(x.shape) + experts[0](x)


CASES = [
    pytest.param(summed, 1, id="summed"),
    pytest.param(stacked, 1, id="stacked"),
    pytest.param(batched, 1, id="batched"),
    pytest.param(by_einsum, 1, id="einsum"),
    pytest.param(without_choice, 0, id="without a choice"),
    pytest.param(most, 0, id="most are chosen"),
    pytest.param(routed, 0, id="their own tokens"),
    pytest.param(layers, 0, id="layers"),
    pytest.param(with_places, 0, id="places"),
    pytest.param(heads, 0, id="heads"),
]


def step_of(mixture: Callable[..., object]) -> Callable[[int], object]:
    import torch
    from torch import nn

    router = nn.Linear(WIDTH, EXPERTS)
    experts = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(8)]
    matrices = torch.randn(EXPERTS, WIDTH, WIDTH, requires_grad=True)
    x = torch.randn(SAMPLES, LENGTH, WIDTH)

    def step(_: int) -> None:
        mixture(x, router, experts, matrices).square().mean().backward()  # type: ignore[attr-defined]

    return step


@pytest.mark.parametrize(("mixture", "found"), few(CASES, ["summed", "batched", "without a choice", "heads"]))
def test_all_experts_for_all_tokens(tmp_path: Path, mixture, found: int):
    case = case_of(recorded(tmp_path / "trace.json", step_of(mixture)), as_recorded=True)
    proposals = [one for one in expert_loop.find(case) if one.key == "dense"]
    assert len(proposals) == found
    for one in proposals:
        assert f"all of {EXPERTS} experts for every token, of which a router chooses {CHOSEN}" in one.evidence[0].text
        after, before = (float(graph.duration_ns[graph.on_gpu].sum()) for graph in (one.change(case.graph), case.graph))
        assert 0.2 * before < after < 0.85 * before

"""A backward pass that is differentiated again is part of the loss, neither a repeated forward pass nor a
micro-batch."""

from __future__ import annotations

import pytest
from helpers.installed import need
from helpers.started import finished
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.timeline.phases import RECOMPUTE
from gpuprof.timeline.timeline import build_timeline

SCRIPT = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

def forces(model, x):
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return model(x).mean() + slope.pow(2).mean()

def checkpointed(model, x, reentrant):
    for layer in model:
        x = checkpoint(layer, x, use_reentrant=reentrant)
    return x.sum()

losses = {
    "forces": forces,
    "plain": lambda model, x: model(x).sum(),
    "reentrant": lambda model, x: checkpointed(model, x, True),
    "hooks": lambda model, x: checkpointed(model, x, False),
}
for name in sys.argv[2:]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 16), torch.nn.SiLU())
    optimizer = torch.optim.AdamW(model.parameters())
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as p:
        for _ in range(6):
            x = torch.randn(8, 16, requires_grad=True)
            losses[name](model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            p.step()
    p.export_chrome_trace(f"{sys.argv[1]}/{name}.json")
"""
NAMES = ("forces", "plain", "reentrant", "hooks")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    need("torch")
    folder = tmp_path_factory.mktemp("derivatives")
    (folder / "record.py").write_text(SCRIPT)
    finished([warm_python(), folder / "record.py", folder, *NAMES], timeout=240).check_returncode()
    found = {name: build_timeline(gpuprof.load(folder / f"{name}.json")) for name in NAMES}
    return {name: timeline.host for name, timeline in found.items() if timeline is not None}


def test_a_gradient_in_the_loss_is_no_repeated_forward_pass(hosts):
    assert len(hosts["forces"].differentiable) == 3
    assert len(hosts["forces"].backward) == 6
    assert not (hosts["forces"].op == RECOMPUTE).any()


@pytest.mark.parametrize("name", ["reentrant", "hooks"])
def test_checkpoints_of_single_layers_stay_repetitions(hosts, name):
    assert len(hosts[name].differentiable) == 0
    assert (hosts[name].op == RECOMPUTE).sum() >= 3 * 2


def test_a_plain_pass_is_neither(hosts):
    assert len(hosts["plain"].differentiable) == 0
    assert not (hosts["plain"].op == RECOMPUTE).any()

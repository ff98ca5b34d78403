"""Backward passes that compute gradients which are not used, with real autograd and optimizers on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import case_of, run_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import discarded_gradients

LAYERS = 6


def net(width: int):
    from torch import nn

    layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, width), *layers, nn.Linear(width, 8))


def two_nets(detached: bool, joint: bool = False):
    """A generator and a discriminator; joint: one optimizer updates both after both passes."""
    import torch

    generator, judge = net(12), net(16)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, generator)]
    x = torch.randn(4, 8)

    def step(_: int) -> None:
        for number, optimizer in enumerate(optimizers):
            if not joint or not number:
                for one in optimizers:
                    one.zero_grad()
            fake = generator(x)
            judge(fake.detach() if detached and not number else fake).mean().backward()
            if not joint:
                optimizer.step()
        if joint:
            for optimizer in optimizers:
                optimizer.step()

    return step


def frozen_below(wants: bool):
    """A trained head on frozen layers, whose input requires a gradient or not."""
    import torch

    table, body, head = torch.nn.Embedding(10, 8), net(12).requires_grad_(False), torch.nn.Linear(8, 3)
    table.requires_grad_(False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    tokens = torch.randint(0, 10, (4, 5))

    def step(_: int) -> None:
        head(body(table(tokens).requires_grad_(wants))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CASES = [
    pytest.param(lambda: two_nets(False), 2 * (LAYERS + 2), id="generator"),
    pytest.param(lambda: two_nets(True), 0, id="detached"),
    pytest.param(lambda: two_nets(False, joint=True), 0, id="both are used"),
    pytest.param(lambda: frozen_below(True), 1, id="input"),
    pytest.param(lambda: frozen_below(False), 0, id="frozen"),
]


@pytest.mark.parametrize(("make", "gradients"), few(CASES, ["generator", "both are used"]))
def test_what_comes_after_the_last_used_gradient(tmp_path: Path, make, gradients: int):
    case = case_of(recorded(tmp_path / "trace.json", make()), as_recorded=True)
    found = [one for one in discarded_gradients.find(case) if one.key != discarded_gradients.PASSED]
    assert len(found) == bool(gradients)
    if found:
        assert f"continue to {gradients} gradients" in found[0].evidence[0].text
        gone = case.graph.on_gpu & (found[0].change(case.graph).duration_ns == 0)
        assert gone.sum() >= LAYERS * case.steps, "at least a matmul for each layer"


@pytest.mark.parametrize(("tensors", "idle", "gradients"), [(2, 0, 1), (3, 0, 0), (1, 0, 0), (2, 8, 0), (2, None, 0)])
def test_without_shapes_the_number_of_trained_weights_decides(
    tmp_path: Path, tensors: int, idle: int | None, gradients: int
):
    """A pass makes 3 gradients: of the head's weight and bias, and of the input far below them."""
    path = recorded(tmp_path / "trace.json", frozen_below(True))
    whole = json.loads(path.read_text(encoding="utf-8"))
    for event in whole["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    path.write_text(json.dumps(whole), encoding="utf-8")
    optimizer = {"tensors": tensors} | ({} if idle is None else {"idle_gradients": idle})
    case = case_of(path, as_recorded=True, run=replace(run_of(), optimizer=optimizer))
    found = list(discarded_gradients.find(case))
    assert len(found) == bool(gradients)
    if found:
        gone = case.graph.on_gpu & (found[0].change(case.graph).duration_ns == 0)
        assert gone.sum() >= LAYERS * case.steps, "at least a matmul for each layer"

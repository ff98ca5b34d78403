"""Micro-batches of a model in CUDA graphs: nothing is used after a replay has overwritten it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprof.record.patches.graph_replays import keep_between_replays

torch = pytest.importorskip("torch")


class Replayed(torch.autograd.Function):
    """weight × value; output and gradient always lie in the same memory, as those of a CUDA graph do."""

    output, gradient = torch.empty(3), torch.empty(3)

    @staticmethod
    def forward(ctx: Any, weight: Any, value: Any) -> Any:
        ctx.save_for_backward(value)
        Replayed.gradient.fill_(float("nan"))
        return Replayed.output.copy_(weight.detach() * value).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (value,) = ctx.saved_tensors
        return Replayed.gradient.copy_(gradients[0] * value).detach(), None


class Model(torch.nn.Module):
    """A module whose compiled code is `Replayed`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self._compiled_call_impl = lambda value: {"y": Replayed.apply(self.weight, value)}


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was marked as the beginning of a replay."""
    found: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: found.append("begin"))
    return found


def test_gradients_of_micro_batches_add_up(marks: list[str]):
    model = Model()
    keep_between_replays(model)
    for step in range(2):
        outputs = []
        for number in range(1, 5):
            outputs.append(model(torch.full((3,), float(number)))["y"])
            outputs[-1].sum().backward()
        assert [float(one[0].detach()) for one in outputs] == [1.0, 2.0, 3.0, 4.0]
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [10.0] * 3, step
        model.weight.grad = None
    assert len(marks) == 8


def test_a_pass_before_the_backward_pass_of_another_begins_no_replay(marks: list[str]):
    model = Model()
    keep_between_replays(model)
    first, second = model(torch.ones(3))["y"], model(torch.ones(3))["y"]
    assert len(marks) == 1
    (first + second).sum().backward()
    model(torch.ones(3))
    assert len(marks) == 2

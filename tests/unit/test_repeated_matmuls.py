"""Matrix multiplications that are computed twice with the same tensors, with real torch on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from helpers.case import case_of, only
from helpers.cpu_recording import KERNEL_US, recorded

from gpuprof.diagnosis.findings import redundant_forward
from gpuprof.record.base.ranges import Ranges
from gpuprof.record.model.repeated_matmuls import RepeatedMatmulMarker, repeated_matmuls

LAYERS = 6


class Adapted(torch.nn.Module):
    """A frozen layer with an adapter that multiplies by the layer's weight again, or is given the result."""

    def __init__(self, width: int, again: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False).requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.again, self.dropout = again, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base(x)
        if self.again:
            x = torch.nn.functional.dropout(x, self.dropout, self.training)
            return result + (self.scale - 1) * torch.nn.functional.linear(x, self.base.weight)
        return result + (self.scale - 1) * result


def net(again: bool, dropout: float = 0.0) -> torch.nn.Sequential:
    first = torch.nn.Linear(8, 8)
    return torch.nn.Sequential(first, *(Adapted(8, again, dropout) for _ in range(LAYERS)))


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_a_product_of_the_same_tensors_is_found(shape):
    found = repeated_matmuls(net(again=True)(torch.randn(shape)).sum().grad_fn)
    assert len(found) == LAYERS
    assert not repeated_matmuls(net(again=False)(torch.randn(shape)).sum().grad_fn)


def test_other_operands_are_no_repetition():
    x = torch.randn(4, 8, requires_grad=True)
    assert not repeated_matmuls(net(again=True, dropout=0.5)(x).sum().grad_fn), "an input that dropout changed"
    assert not repeated_matmuls((x @ torch.randn(8, 8) + x @ torch.randn(8, 8)).sum().grad_fn)
    square = torch.randn(8, 8)
    assert not repeated_matmuls((x @ square + x @ square.t()).sum().grad_fn), "the same storage, transposed"
    loose = torch.randn(4, 8)
    trained = torch.randn(8, 8, requires_grad=True)
    assert repeated_matmuls((loose @ trained + loose @ trained).sum().grad_fn)
    assert not repeated_matmuls((loose @ trained + loose @ trained.t()).sum().grad_fn)
    assert not repeated_matmuls((loose[:, :4] @ trained[:4] + loose[:, 4:] @ trained[4:]).sum().grad_fn)


def test_operands_without_a_storage_are_unknown():
    x = torch.randn(4, 4).to_sparse()
    weight = torch.randn(4, 4, requires_grad=True)
    assert not repeated_matmuls((torch.mm(x, weight) + torch.mm(x, weight)).sum().grad_fn)


def test_checkpointed_parts_are_not_computed_again():
    calls: list[str] = []
    model = net(again=True)

    def part(x: torch.Tensor) -> torch.Tensor:
        calls.append("computed")
        return model(x)

    x = torch.randn(4, 8, requires_grad=True)
    repeated_matmuls(torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum().grad_fn)
    assert calls == ["computed"]


def test_each_is_computed_once_forward_and_backward(tmp_path):
    model, ranges = net(again=True), Ranges()
    watch = RepeatedMatmulMarker(ranges.open)
    watch.new_step()

    def step(number: int) -> None:
        ranges.record(number > 0)
        loss = model(torch.randn(2, 8, 8)).pow(2).mean()
        watch.backward(loss)
        loss.backward()
        watch.new_step()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    proposal = only(redundant_forward, case, "products")
    gone = (case.graph.duration_ns - proposal.change(case.graph).duration_ns)[case.graph.on_gpu].sum() / case.steps
    assert gone == pytest.approx(2 * LAYERS * KERNEL_US * 1e3, rel=1e-3), "weights that are frozen have no gradient"
    assert f"{LAYERS} matrix multiplications a step are computed twice" in proposal.evidence[0].text
    (part,) = redundant_forward.ledger_parts(case)
    assert "computed twice" in part.what and part.nodes.any()

"""Work that the loss multiplies by a constant zero, with real torch on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from helpers.above_reach import identity_holds
from helpers.case import case_of, only
from helpers.cpu_recording import KERNEL_US, recorded

from gpuprof.diagnosis.detect.repeated.zeroed_work import find_zeroed
from gpuprof.diagnosis.findings import redundant_forward
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.record.ranges import Ranges
from gpuprof.record.zeroed_work import ZeroedWork, zeroed

LAYERS = 12


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))


@pytest.fixture
def parts():
    return net(), net(), torch.randn(4, 8)


def test_a_tower_times_zero_is_found(parts):
    model, tower, x = parts
    loss = model(x).sum() + 0.0 * tower(x).mean()
    ((low, high),) = zeroed(loss.grad_fn)
    root = loss.grad_fn._sequence_nr()
    assert root - high == 1, "the multiplication is what the sum takes"
    assert high - low >= 2 * LAYERS - 1, "a transposition and a matmul a layer"
    assert zeroed((0 * tower(x).mean() + model(x).sum()).grad_fn), "whichever comes first"


def test_what_counts_in_another_way_or_by_another_number_is_not(parts):
    model, tower, x = parts
    assert not zeroed((model(x).sum() + 0.5 * tower(x).mean()).grad_fn)
    y = tower(x)
    assert not zeroed((model(y).sum() + 0.0 * y.mean()).grad_fn), "the loss depends on it through the model, too"
    weight = torch.zeros(())
    assert not zeroed((model(x).sum() + weight * tower(x).mean()).grad_fn), "a tensor may change"
    ddp = model(x).sum() + sum(0.0 * each.sum() for each in tower.parameters())
    assert not zeroed(ddp.grad_fn), "a few ops for each weight, so that each has a gradient"


def test_marks_come_in_the_steps_after_the_first_whole_one(parts):
    model, tower, x = parts
    seen: list[str] = []
    watch = ZeroedWork(lambda name: seen.append(name))

    def step():
        for factor in (1.0, 0.0):  # two backward passes, of which one is in vain in part
            watch.backward(loss := model(x).sum() + factor * tower(x).mean())
            loss.backward()

    step()
    watch.new_step()
    step()
    watch.new_step()
    assert not seen
    step()
    (mark,) = seen
    low, high = map(int, mark.removeprefix("multiplied by zero: ").split("-"))
    assert high - low >= 2 * LAYERS - 1


def with_tower(path, factor: float):
    """Steps of a model and a tower whose result is multiplied by a number."""
    model, tower, ranges = net(), net(), Ranges()
    watch = ZeroedWork(ranges.open)
    watch.new_step()

    def step(number: int) -> None:
        ranges.record(number > 0)
        x = torch.randn(16, 8)
        loss = model(x).pow(2).mean() + factor * tower(x).mean()
        watch.backward(loss)
        loss.backward()
        watch.new_step()

    return case_of(recorded(path, step), as_recorded=True)


def test_the_tower_goes_forward_and_backward(tmp_path):
    case = with_tower(tmp_path / "trace.json", 0.0)
    found = find_zeroed(case)
    assert found is not None
    assert found.stretches == case.steps
    # A matmul forward, and two backward: of the first layer one, whose input needs no gradient.
    kernels = 3 * LAYERS - 1
    assert int((found.nodes & case.graph.on_gpu).sum()) == case.steps * kernels
    proposal = only(redundant_forward, case, "zeroed")
    gone = (case.graph.duration_ns - proposal.change(case.graph).duration_ns)[case.graph.on_gpu].sum() / case.steps
    assert gone == pytest.approx(kernels * KERNEL_US * 1e3, rel=1e-3)
    assert "multiplied by a constant zero" in proposal.evidence[0].text
    ledger = above_reach(case, None, ("redundant_forward",))
    assert ledger is not None and identity_holds(ledger)
    items = [one for one in ledger.items if "multiplied by zero" in one.what]  # one for each place of the recording
    assert items and all(one.finding == "redundant_forward" and one.ns > 0 for one in items)


def test_a_tower_that_counts_stays(tmp_path):
    case = with_tower(tmp_path / "trace.json", 0.5)
    assert find_zeroed(case) is None
    assert not list(redundant_forward.find(case))


def test_nothing_that_went_through_a_hook_is_asked_for(parts):
    """A checkpointed part would be computed again for each multiplication in it, and kept."""
    model, tower, x = parts
    calls: list[str] = []

    def scaled(y: torch.Tensor) -> torch.Tensor:
        calls.append("computed")
        return model(y * model(y)) * 0.0

    loss = torch.utils.checkpoint.checkpoint(scaled, x.requires_grad_(), use_reentrant=False).sum() + model(x).sum()
    assert zeroed(loss.grad_fn), "the number zero itself is seen, also in a checkpointed part"
    assert calls == ["computed"]
    loss.backward()
    assert calls == ["computed"] * 2

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: calls.append("unpacked") or t):
        kept = (tower(x) * tower(x)).sum() + model(x).sum()
    assert not zeroed(kept.grad_fn)
    assert "unpacked" not in calls

"""A model that is called twice with the same inputs, and one whose gradients are not used, with real torch on the
CPU."""

from __future__ import annotations

import pytest
import torch
from helpers.above_reach import identity_holds
from helpers.case import case_of, only
from helpers.cpu_recording import KERNEL_US, recorded
from torch.utils.checkpoint import checkpoint

from gpuprof.diagnosis.findings import no_grad, redundant_forward
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.record.base.ranges import Ranges
from gpuprof.record.model.repeated_calls import RepeatedCalls, models_of_process
from gpuprof.record.phases.phase_names import REPEATED_RANGE
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.tracefile.trace import OP

LAYERS = 40
STEPS = 3
LONG_US = 1_000.0
"""Kernels that take most of the step, however busy the CPU of the tests is."""


class Net(torch.nn.Module):
    def __init__(self, layers: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))
        self.drop = torch.nn.Dropout(drop)

    def forward(self, x: torch.Tensor, hidden: bool = False) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * 1.5
        return self.drop(x)


class Watched:
    """A model, and how many of its calls were reported as repeated."""

    def __init__(self, model: Net) -> None:
        self.model, self.count = model, 0
        self.calls = RepeatedCalls(self.opened, [model])

    def opened(self, name: str):
        assert name == f"{REPEATED_RANGE}Net"
        self.count += 1
        return lambda: None

    def repeats(self, *args, **kwargs) -> bool:
        before = self.count
        self.model(*args, **kwargs)
        return self.count > before


@pytest.fixture
def watched():
    made = Watched(Net())
    yield made
    made.calls.remove()


def test_the_same_tensor_is_the_same_input(watched: Watched):
    x = torch.randn(4, 8)
    assert not watched.repeats(x)
    assert watched.repeats(x)
    assert watched.repeats(x, hidden=True), "what is returned may differ"
    assert watched.repeats(x.view(4, 8)), "another view of the same memory"


def test_other_memory_and_changed_memory_are_other_inputs(watched: Watched):
    x = torch.randn(4, 8)
    watched.repeats(x)
    assert not watched.repeats(x.clone())
    assert not watched.repeats(x[:2])
    x += 1
    assert not watched.repeats(x)


def test_a_batch_that_takes_the_place_of_another_is_none_of_its_repetitions(watched: Watched):
    for _ in range(50):  # the allocator gives out the same address again and again
        assert not watched.repeats(torch.randn(4, 8))


def test_steps_and_weights_end_it(watched: Watched):
    x = torch.randn(4, 8)
    watched.repeats(x)
    watched.calls.new_step()
    assert not watched.repeats(x)
    with torch.no_grad():
        next(watched.model.parameters()).add_(1)
    assert not watched.repeats(x)


def test_dropout_makes_two_calls_differ():
    x = torch.randn(4, 8)
    made = Watched(Net(drop=0.1))
    assert not made.repeats(x)
    assert not made.repeats(x)
    made.model.eval()
    assert not made.repeats(x)
    assert made.repeats(x)


def test_adapters_that_are_switched_off_make_another_model():
    """DPO with LoRA scores one batch twice with one module: unchanged, and without adapters as the reference."""
    x, model = torch.randn(4, 8), Net()
    for layer in model.layers:
        layer._disable_adapters = False  # type: ignore[assignment]  # as peft's layers have it
    made = Watched(model)
    assert not made.repeats(x)
    for layer in model.layers:
        layer._disable_adapters = True  # type: ignore[assignment]
    assert not made.repeats(x)


def test_a_checkpoint_that_is_computed_again_is_no_repetition(watched: Watched):
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(watched.model, x, use_reentrant=False).sum().backward()
    assert watched.count == 0


def test_nothing_stays_on_the_models():
    model, x = Net(), torch.randn(4, 8)
    made = Watched(model)
    made.calls.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    made.repeats(x)
    assert not made.repeats(x)


def test_the_models_of_a_process_are_the_outermost():
    outer = torch.nn.Sequential(Net(), torch.nn.Linear(8, 8))
    found = models_of_process()
    assert any(one is outer for one in found)
    assert not any(one is outer[0] for one in found)


def twice(path, *, again: bool = True, frozen: bool = False, kernel_us: float = KERNEL_US):
    """Recorded steps of a student whose teacher is called twice, or once, with gradients or without."""
    teacher, student = Net(LAYERS), Net(LAYERS // 4)
    ranges = Ranges()
    calls = RepeatedCalls(ranges.open, [teacher, student])

    def step(_: int) -> None:
        calls.new_step()
        ranges.record(True)
        x = torch.randn(16, 8)
        with torch.set_grad_enabled(not frozen):
            seen = teacher(x)
            states = teacher(x, hidden=True) if again else seen
        loss = (student(x) - seen.detach() - states.detach()).pow(2).mean()
        loss.backward()

    try:
        return case_of(recorded(path, step, STEPS, kernel_us), as_recorded=True)
    finally:
        calls.remove()


def test_a_teacher_that_runs_twice(tmp_path):
    case = twice(tmp_path / "trace.json", kernel_us=LONG_US)
    found = redundant_forward.find_repeated(case)
    assert found is not None
    assert found.calls == case.steps  # torch's first step may be long, and then counts as start-up
    assert found.models == ("Net",)
    assert int((found.nodes & case.graph.on_gpu).sum()) == case.steps * LAYERS
    proposal = only(redundant_forward, case)
    after = proposal.change(case.graph)
    assert float(after.duration_ns[found.nodes].sum()) == 0
    gone = (case.graph.duration_ns - after.duration_ns)[case.graph.on_gpu].sum() / case.steps
    assert gone == pytest.approx(LAYERS * LONG_US * 1e3, rel=1e-3)
    ledger = above_reach(case, None, ("redundant_forward",))
    assert ledger is not None
    assert identity_holds(ledger)
    (item,) = [one for one in ledger.items if one.finding == "redundant_forward"]
    assert item.ns == pytest.approx(LAYERS * LONG_US * 1e3, rel=0.2)


def test_a_teacher_that_runs_once_is_left_alone(tmp_path):
    assert redundant_forward.find_repeated(twice(tmp_path / "trace.json", again=False)) is None


def test_a_marked_call_with_other_matmuls_is_not_believed(tmp_path):
    """The trace has to show the same multiplications, whatever the range says."""
    model, ranges = Net(8), Ranges()

    def step(_: int) -> None:
        ranges.record(True)
        model(torch.randn(16, 8))
        close = ranges.open(f"{REPEATED_RANGE}Net")
        model(torch.randn(4, 8))
        if close is not None:
            close()
        model(torch.randn(16, 8)).sum().backward()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    assert redundant_forward.find_repeated(case) is None


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_attention_that_drops_is_not_the_same_twice(tmp_path, drop):
    """A dropout that is neither a module nor a setting, so that only the trace shows it."""

    class Attention(Net):
        def forward(self, x: torch.Tensor, hidden: bool = False) -> torch.Tensor:
            x = super().forward(x).view(1, 1, -1, 8)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=drop)

    model, ranges = Attention(4), Ranges()
    calls = RepeatedCalls(ranges.open, [model])

    def step(_: int) -> None:
        calls.new_step()
        ranges.record(True)
        x = torch.randn(16, 8)
        (model(x) + model(x)).sum().backward()

    case = case_of(recorded(tmp_path / "trace.json", step), as_recorded=True)
    calls.remove()
    assert (redundant_forward.find_repeated(case) is None) == (drop > 0)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_that_nobody_uses(tmp_path, frozen):
    """The teacher's ops are recorded for autograd in vain; the student's, and those without gradients, are not."""
    case = twice(tmp_path / "trace.json", again=False, frozen=frozen)
    found = no_grad.find_unused(case)
    assert (found is None) == frozen
    if found is not None:
        ops = case.trace.ops
        assert found.stretches == case.steps
        # Per layer a transposition, a matmul, a tanh and a multiplication.
        assert found.ops.sum() / case.steps == pytest.approx(4 * LAYERS, abs=LAYERS)
        assert (ops.kind[found.ops] == OP).all()
        proposal = only(no_grad, case)
        saved = case.graph.duration_ns.sum() - proposal.change(case.graph).duration_ns.sum()
        pace, _ = pace_and_spread(case.timeline)
        assert 0 < saved <= 1.01 * pace * 1_500 * found.ops.sum()

"""The clock of steps that recordings and trials share: who says that a step has ended, and where it listens."""

from __future__ import annotations

import threading

import pytest

from gpuprof.record.base.hooks import patch_backward
from gpuprof.record.steps.step_clock import StepClock

torch = pytest.importorskip("torch")


class Listening:
    """A clock that listens to a real training in the way that sessions and trials do."""

    def __init__(self, source: str = "optimizer") -> None:
        self.ends: list[int] = []
        self.met: list[object] = []
        self.tape = None
        self.clock = StepClock(source, lambda: self.ends.append(self.clock.step), self.met.append)

    def on_backward(self, _: object):
        if not self.clock.is_here():
            return None
        self.clock.backward_begins()
        return self.clock.backward_ends

    def __enter__(self) -> Listening:
        self._patch = patch_backward(self)
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(lambda optimizer, *_: self.clock.optimizer_ended(optimizer))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self._hook.remove()


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def loss(net):
    return net(torch.ones(2, 4)).sum()


def test_a_step_ends_with_the_last_of_its_optimizers():
    net = model()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in net)
    with Listening() as found:
        for _ in range(4):
            loss(net).backward()
            first.step()
            second.step()
    # The first optimizer stands alone until the second is met.
    assert found.ends[-3:] == [3, 4, 5] and found.clock.step == 5
    assert found.met[:2] == [first, second]


def test_micro_steps_are_one_step():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Listening() as found:
        for _ in range(3):
            for _ in range(4):
                loss(net).backward()
            optimizer.step()
    assert found.ends == [1, 2, 3] and not found.clock.needs_backwards


def test_optimizers_inside_of_a_backward_pass_end_one_step_at_its_end():
    net = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
    inside: list[int] = []
    with Listening() as found:

        def step(parameter) -> None:
            optimizers[parameter].step()
            inside.append(found.clock.step)

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for number in range(1, 4):
            loss(net).backward()
            assert found.clock.step == number
    assert found.ends == [1, 2, 3]
    assert inside == [n for n in range(3) for _ in optimizers], "no step ends inside"
    assert found.clock.needs_backwards


def test_who_counts_the_steps_goes_before_the_optimizers():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Listening() as found:
        clock = found.clock
        loss(net).backward()
        optimizer.step()
        clock.counted_by("trainer", 10)
        assert (clock.source, clock.total, clock.step) == ("trainer", 11, 1)
        for _ in range(3):
            loss(net).backward()
            optimizer.step()
        assert clock.step == 1
        clock.counted()
        clock.counted()
        assert clock.step == 3
        clock.left_alone()
        loss(net).backward()
        optimizer.step()
    assert found.ends == [1, 2, 3, 4] and clock.total is None


def test_another_thread_is_not_the_training():
    found = Listening("trainer")
    other = threading.Thread(target=found.clock.counted)
    other.start()
    other.join()
    assert found.ends == []
    found.clock.counted()
    assert found.ends == [1]


def test_a_clock_can_begin_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch):
    """torch imports its loaders, whose hooks create a clock, before its back ends."""
    known = torch.backends.cuda.is_built()
    monkeypatch.delattr(torch, "backends")
    assert StepClock("optimizer", lambda: None).may_capture == known

"""The notes of a step's events are bounded, and can be ended from any thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers.installed import need


def tape_of(left: int, full: list[Any]) -> Any:
    need("torch")
    from gpuprof.record.steps.step_clock import OPTIMIZER, StepClock
    from gpuprof.record.steps.step_meter import StepMeter
    from gpuprof.record.steps.tape import Tape

    class Owner:
        def fail(self, error: Exception) -> None:
            raise AssertionError from error

    meter, lines = StepMeter(), list[Any]()
    meter.begin(1)
    clock = StepClock(OPTIMIZER, lambda: None)
    tape = Tape(
        Owner(), meter, clock, None, left, False, [], lambda *line: lines.append((meter.fetch_ns, *line)),
        lambda: full.append(tape.work_out()),
    )  # fmt: skip
    return tape, meter, lines


def test_a_step_of_very_many_events_hands_them_over_before_it_ends(monkeypatch: pytest.MonkeyPatch):
    full: list[Any] = []
    tape, meter, lines = tape_of(1, full)
    from gpuprof.record.steps import tape as module

    monkeypatch.setattr(module, "MOST_OF_STEP", 10)
    most = 0
    for _ in range(100):
        tape.fetched(0, None, None)
        tape.called(({}, ()))
        most = max(most, len(tape._events))
    fetched_ns = meter.fetch_ns
    assert most <= 11 and fetched_ns > 0 and not lines
    tape.end_step(2)
    assert len(full) == 1 and len(lines) == 1 and lines[0][0] >= fetched_ns


def test_another_thread_ends_it_at_the_end_of_the_step():
    full: list[Any] = []
    tape, _, lines = tape_of(100, full)
    tape.end_step(2)
    assert not full
    thread = threading.Thread(target=tape.end_soon)
    thread.start()
    thread.join()
    assert not full and not lines
    tape.end_step(3)
    assert len(full) == 1 and len(lines) == 2

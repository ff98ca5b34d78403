"""Recurrences in Python: a cell that is called for each frame, against layers and micro-batches, which look alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import MS, US, Program

from gpuprof import diagnose
from gpuprof.diagnosis.detect.recurrent_loops import find_recurrent_loops
from gpuprof.diagnosis.findings import recurrent_loop

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "programs"


def module(made: Program, name: str, host: int = 40 * US, shape: int = 64) -> None:
    """A call of a module that multiplies once."""
    start = made.now
    made.now += 2 * US
    made.op("aten::linear", "kernel", 2 * US, [[4, shape], [64, shape]], host=host)
    made.now += 2 * US
    made.trace.annotation(f"nn.Module: {name}", start, made.now, made.tid)


def steps(folder: Path, body):
    made = Program()
    for _ in range(3):
        made.step(lambda: [body(made), *(made.small_mm() for _ in range(20))])
    return made.case(folder)


def test_the_same_cells_round_after_round_are_a_recurrence(tmp_path):
    def frames(made: Program) -> None:
        for _ in range(50):
            module(made, "LSTMCell_0")
            module(made, "LSTMCell_1")

    case = steps(tmp_path, frames)
    loops = find_recurrent_loops(case)
    assert loops is not None and loops.rounds.tolist() == [50, 50, 50]
    fix = only(recurrent_loop, case)
    # Of 100 calls of 40 µs two rounds of two are left; Python between the ops goes with them.
    gone = case.step_ns - case.step_of(fix.change(case.graph))
    assert gone == pytest.approx(4.4 * MS * 48 / 50, rel=0.08)
    assert "50 steps of linear" in fix.evidence[0].text


def test_layers_lengths_and_small_ops_are_none(tmp_path):
    """Layers are modules of their own; blocks of other shapes are no steps; a loop without a multiplication is
    another finding's."""
    bodies = {
        "layers": lambda made: [module(made, f"Linear_{k}") for k in range(100)],
        "shapes": lambda made: [module(made, "Cell_0", shape=64 + k) for k in range(100)],
        "few": lambda made: [module(made, "Cell_0") for _ in range(12)],
        "small": lambda made: [
            module(made, "Cell_0"), *(made.op("aten::add_", "kernel", host=20 * US) for _ in range(100))
        ],
    }  # fmt: skip
    for name, body in bodies.items():
        (tmp_path / name).mkdir()
        assert find_recurrent_loops(steps(tmp_path / name, body)) is None, name


def test_cells_of_a_measured_program():
    """As torch.nn.LSTM the same training took 15.7 ms, measured in turns: 7.7 to 9.7 times as fast. The program was
    known when this was written."""
    found = diagnose(SCENARIOS / "lstm_cells" / "recording")
    fix = next(one for one in found.findings if one.id == "recurrent_loop")
    assert fix.speedup.low <= 7.66 and fix.speedup.high >= 9.65
    assert found.above_reach is not None and found.above_reach.largest[0].finding == "recurrent_loop"
    assert "torch.nn.LSTM" in str(fix.fix)

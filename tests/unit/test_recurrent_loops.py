"""Recurrences in Python: a cell that is called for each frame, distinguished from layers and micro-batches, which look
similar."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.diagnosed import diagnosed
from helpers.program import MS, US, Program

from gpuprof.diagnosis.detect.loops.recurrent_loops import find_branches, find_recurrent_loops
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
    # Two rounds of two are left of 100 calls of 40 µs; the Python between the ops goes too.
    gone = case.step_ns - case.step_of(fix.change(case.graph))
    assert gone == pytest.approx(4.4 * MS * 48 / 50, rel=0.08)
    assert "50 rounds of linear" in fix.evidence[0].text


def test_layers_lengths_and_small_ops_are_none(tmp_path):
    """Layers are modules of their own; blocks of other shapes are no steps; a loop without a multiplication is
    another finding's."""
    bodies = {
        "layers": lambda made: [module(made, f"Linear_{k}") for k in range(100)],
        "shapes": lambda made: [module(made, "Cell_0", shape=64 + k) for k in range(100)],
        "few": lambda made: [module(made, "Cell_0") for _ in range(7)],
        "small": lambda made: [
            module(made, "Cell_0"), *(made.op("aten::add_", "kernel", host=20 * US) for _ in range(100))
        ],
    }  # fmt: skip
    for name, body in bodies.items():
        (tmp_path / name).mkdir()
        assert find_recurrent_loops(steps(tmp_path / name, body)) is None, name


def one_module(made: Program, names: tuple[str, ...], rounds: int) -> None:
    """A module that itself loops over some ops, without ranges inside."""
    start = made.now
    for name in names * rounds:
        made.op(f"aten::{name}", "kernel", 2 * US, [[64, 64], [64, 64]])
    made.now += 2 * US
    made.trace.annotation("nn.Module: Block_0", start, made.now, made.tid)


def test_heads_one_after_another_are_one_attention(tmp_path):
    heads = ("select", "matmul", "div", "softmax", "matmul", "add_")
    case = steps(tmp_path, lambda made: one_module(made, heads, 12))
    fix = only(recurrent_loop, case)
    assert "12 rounds of select, matmul, div, softmax" in fix.evidence[0].text and fix.odds < 0.9
    assert fix.title == "all heads in one attention" and "scaled_dot_product_attention" in str(fix.fix)


def branch(made: Program, number: int, ops: tuple[tuple[str, list], ...]) -> None:
    """A separate module with some ops."""
    start = made.now
    for name, dims in ops:
        made.op(f"aten::{name}", "kernel", 2 * US, dims)
    made.now += 2 * US
    made.trace.annotation(f"nn.Module: Head_{number}", start, made.now, made.tid)


WIDE, NARROW = [4, 64, 96], [4, 64, 16]
HEAD = (
    ("linear", [WIDE, [16, 96], []]), ("linear", [WIDE, [16, 96], []]), ("transpose", [NARROW]),
    ("matmul", [NARROW, [4, 16, 64]]), ("softmax", [[4, 64, 64]]), ("matmul", [[4, 64, 64], NARROW]),
)  # fmt: skip
MEMBER = (
    ("linear", [[8, 96], [96, 96], [96]]), ("relu", [[8, 96]]), ("linear", [[8, 96], [10, 96], [10]]),
    ("cross_entropy_loss", [[8, 10], [8]]), ("add", [[], []]),
)  # fmt: skip
SIMILAR = (
    ("matmul", [[9, 96], [96, 25]]), ("max", [[9, 25], [], []]), ("sum", [[9], []]),
)  # fmt: skip
CONTEXT = (("matmul", [[9, 96], [96, 96]]), ("sum", [[9, 96], [], [], []]), ("add", [[96], [96]]))
LAYER = (("linear", [[8, 96], [384, 96], [384]]), ("relu", [[8, 384]]), ("linear", [[8, 384], [96, 384], [96]]))
CELL = (
    ("linear", [[8, 32], [256, 32], [256]]), ("linear", [[8, 64], [256, 64], [256]]), ("add", [[8, 256], [8, 256]]),
    ("tanh", [[8, 64]]), ("mul", [[8, 64], [8, 64]]),
)  # fmt: skip
TABLE = (("select", [[8, 26]]), ("embedding", [[100, 16], [8]]))


@pytest.mark.parametrize(
    ("ops", "rounds", "title"),
    [
        (HEAD, 6, "all heads in one attention"),
        (MEMBER, 6, "one call for all rounds of a branch"),
        (TABLE, 12, "one table for all lookups"),
        (SIMILAR, 12, "one call for all rounds of a branch"),
        (CONTEXT, 12, None),
        (LAYER, 12, None),
        (CELL, 12, None),
    ],
    ids=["heads", "an ensemble", "tables", "similarities", "contexts", "layers", "cells"],
)
def test_modules_of_one_class_that_do_not_feed_each_other(tmp_path, ops, rounds: int, title: str | None):
    case = steps(tmp_path, lambda made: [branch(made, k, ops) for k in range(rounds)])
    assert (find_branches(case) is not None) == (title is not None)
    assert [one.title for one in recurrent_loop.find(case)] == ([title] if title else [])


def test_a_head_that_judges_each_state_is_no_recurrence():
    """Called once on all states it took 1.48 to 1.65 times less, measured in turns, a little more than predicted; the
    program was known when the rule was written."""
    found = diagnosed(SCENARIOS / "spectral_heads" / "recording")
    fix = next(one for one in (*found.findings, *found.worth_trying) if one.id == "recurrent_loop")
    assert fix.title == "one call for all rounds of a branch" and fix.speedup.expected > 1.2


def test_layers_without_ranges_of_their_own_have_norms(tmp_path):
    layer = ("layer_norm", "linear", "softmax", "linear", "add", "linear")
    case = steps(tmp_path, lambda made: one_module(made, layer, 24))
    assert find_recurrent_loops(case) is None and not list(recurrent_loop.find(case))


def test_cells_of_a_measured_program():
    """As torch.nn.LSTM the same training took 15.7 ms, measured in turns: 7.7 to 9.7 times as fast. The program was
    known when this was written."""
    found = diagnosed(SCENARIOS / "lstm_cells" / "recording")
    fix = next(one for one in found.findings if one.id == "recurrent_loop")
    assert fix.speedup.low <= 7.66 and fix.speedup.high >= 9.65
    assert found.above_reach is not None and found.above_reach.largest[0].finding == "recurrent_loop"
    assert "torch.nn.LSTM" in str(fix.fix)


def test_a_layer_called_for_each_step_takes_all_steps_at_once(tmp_path):
    """Each step's results are appended to the earlier ones: 2 / 21 of the copies of 20 rounds are left."""

    def decode(made: Program) -> None:
        start = made.now
        for step in range(20):
            made.op("aten::lstm", "kernel", 2 * US, [[4, 1, 64], [[1, 4, 64], [1, 4, 64]]])
            made.op("aten::linear", "kernel", 2 * US, [[4, 1, 64], [64, 64], []])
            made.op("aten::softmax", "kernel", 2 * US, [[4, 1, 64]])
            made.op("aten::cat", "kernel", 60 * US, [[[4, step, 64], [4, 1, 64]], []])
        made.trace.annotation("nn.Module: Decoder_0", start, made.now, made.tid)

    case = steps(tmp_path, decode)
    fix = only(recurrent_loop, case)
    assert fix.title == "the recurrent layer called once for all steps" and "known before" in fix.needs
    assert "20 rounds of lstm" in fix.evidence[0].text and "torch.cat copies all earlier rounds" in fix.evidence[0].text
    gpu = case.graph.on_gpu
    before, after = (float(graph.duration_ns[gpu].sum()) / 3 for graph in (case.graph, fix.change(case.graph)))
    assert before - after == pytest.approx(20 * 60 * US * (1 - 2 / 21) + 20 * 6 * US * 0.75, rel=0.02)


def test_a_decoder_trained_step_by_step():
    """Measured: 14.4 times as fast over whole sequences, which was known when this was written. With one token in each
    call it looks as if it generated, but a backward pass goes through it."""
    found = diagnosed(SCENARIOS / "grown_by_cat" / "recording")
    fix = next(one for one in found.worth_trying if one.id == "recurrent_loop")
    assert 10 < fix.speedup.high < 20
    assert found.above_reach is not None and found.above_reach.largest[0].finding == "recurrent_loop"

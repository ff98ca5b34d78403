"""Sequences of ops that repeat."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.program import MS, US, Program
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.loops.nested_loops import joined, loops_in, repeated, with_ends
from gpuprof.diagnosis.detect.loops.small_op_loops import find_small_loops

OPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=60)


def columns(ops: list[tuple[int, bool, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(names, numbers of the ranges around them, whether they are layers) of ops that open a range or not."""
    names = np.array([name for name, _, _ in ops], np.int64)
    family = np.cumsum(np.array([opens for _, opens, _ in ops], np.int64))
    return names, family, np.array([layer == 0 for _, _, layer in ops], bool)


def rounds_of(names: np.ndarray, family: np.ndarray, layers: np.ndarray) -> list[int]:
    """The rounds of each loop."""
    found = loops_in(names, family, layers)
    return [] if found is None else found.rounds.tolist()


@given(OPS)
def test_rounds_are_whole_and_alike_and_do_not_overlap(ops):
    names, family, layers = columns(ops)
    covered = np.zeros(len(names), int)
    for start, period, rounds in zip(*(c.tolist() for c in repeated(names, family, layers, 4, 3, 6)), strict=True):
        part = slice(start, start + period * rounds)
        covered[part] += 1
        assert rounds >= 3
        assert period * rounds >= 6
        assert (names[part].reshape(rounds, period) == names[start : start + period]).all()
        assert len(np.unique(family[part])) == 1
        assert not layers[part].any()
    assert covered.max(initial=0) <= 1


@given(st.permutations(range(1, 6)), st.integers(3, 9), st.lists(st.integers(10, 99), max_size=9, unique=True))
def test_a_loop_among_other_ops_is_found_whole(body, rounds, others):
    names = np.array([*others, *body * rounds, *others[::-1]], np.int64)
    same = np.ones(len(names), np.int64)
    first, period, found = repeated(names, same, np.zeros(len(names), bool), 8, 3, 6)
    assert (first.tolist(), period.tolist(), found.tolist()) == ([len(others)], [len(body)], [rounds])


@pytest.mark.parametrize("large", ["", "conv1d", "conv2d", "conv_transpose3d", "group_norm", "batch_norm", "rms_norm"])
def test_rounds_with_an_op_of_layers_are_layers(tmp_path, large: str):
    made = Program()

    def body() -> None:
        made.python(MS)
        for _ in range(12):
            for name in ("select", "mul", "add", "sum", *([large] if large else [])):
                made.plain(name, [64, 64], gpu=5 * US)

    for _ in range(3):
        made.step(body)
    found = find_small_loops(made.case(tmp_path))
    assert (found is None) == bool(large)


@pytest.mark.parametrize(
    ("sides", "is_loop"), [(([64], [64]), True), (([64], [64, 8]), False), (([8, 64], [64, 1]), False)]
)
def test_a_product_of_two_vectors_is_no_layer(tmp_path, sides: tuple[list[int], list[int]], is_loop: bool):
    made = Program()

    def body() -> None:
        made.python(MS)
        for _ in range(12):
            for name in ("select", "select", "matmul", "add"):
                made.plain(name, *sides, gpu=5 * US)

    for _ in range(3):
        made.step(body)
    assert (find_small_loops(made.case(tmp_path)) is not None) == is_loop


def test_a_loss_of_each_system_is_a_loop():
    """The published fix, measured on an H200: 1.18x."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "host_reads" / "recording")
    (found,) = [one for one in diagnosis.worth_trying if one.id == "python_loop"]
    assert found.speedup.low <= 1.18 <= found.speedup.high


def test_a_list_of_tensors_is_no_loop():
    """484 tensors are detached, and not copied, for one op over all of them; 80 integers are averaged one by one, which
    costs too little to be shown."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "ema_loop" / "fixed")
    case = analysis_of(diagnosis)
    assert case is not None
    found = find_small_loops(case)
    assert found is not None and set(found.rounds.tolist()) == {80}
    assert "python_loop" not in {one.id for one in (*diagnosis.findings, *diagnosis.worth_trying)}


def test_a_loop_in_a_loop_is_one():
    """Ten rounds of three ops, another branch in between (of two ops), and ten rounds again, four times; then one with
    other ops."""
    names = np.array(([1, 2, 3] * 10 + [1, 4]) * 4 + [1, 2, 5] * 12, np.int64)
    same, free = np.ones(len(names), np.int64), np.zeros(len(names), bool)
    found = repeated(names, same, free, 8, 8, 24)
    assert found[2].tolist() == [10, 10, 10, 10, 12]
    first, period, rounds, begin, last = (column.tolist() for column in joined(names, same, free, *found))
    assert (first, period, rounds) == ([0, 128], [3, 3], [40, 12])
    assert (begin, last) == ([123, 161], [125, 163])
    layers = names == 4  # an op of a layer in between
    assert joined(names, same, layers, *found)[2].tolist() == [10, 10, 10, 10, 12]


def test_a_loop_around_loops_is_the_loop():
    """Ten pictures: twelve ops, a loop over as many boxes as there are, and two ops; then one op."""
    boxes = [9, 12, 8, 20, 11, 2, 15, 10, 9, 14]
    before = list(range(10, 22))
    names = np.array([7, *(op for count in boxes for op in [*before, *[3, 4, 5] * count, 6, 8]), 9], np.int64)
    same, free = np.ones(len(names), np.int64), np.zeros(len(names), bool)
    found = loops_in(names, same, free)
    assert found is not None
    assert (found.first.tolist(), found.rounds.tolist()) == ([1], [len(boxes)])
    assert (found.begin.tolist(), found.last.tolist()) == ([len(names) - 1 - 14 - 3 * 14], [len(names) - 2])
    assert found.one_round == pytest.approx((14 + 3) / (14 * len(boxes) + 3 * sum(boxes)))
    assert (found.again_begin - found.again_first).tolist() == [3 * (count - 1) for count in boxes]
    layers = names == 8  # an op of a layer in each round: the images go through a model one after another
    inner = loops_in(names, same, layers)
    assert inner is not None and inner.rounds.tolist() == [count for count in boxes if 3 * count >= 32]


@given(OPS)
def test_loops_do_not_overlap_and_hold_those_within_them(ops):
    names, family, layers = columns([(name % 2, opens and layer == 1, layer) for name, opens, layer in ops] * 3)
    found = loops_in(names, family, layers)
    if found is None:
        return
    assert (found.first[1:] > found.last[:-1]).all() and (found.begin <= found.last).all()
    assert (found.first < found.begin).all() and (found.one_round < 1).all()
    inside = np.searchsorted(found.first, found.again_first, side="right") - 1
    assert (found.again_begin <= found.last[inside]).all()


def test_what_splits_and_joins_belongs_to_the_loop():
    names = np.array([5, 1, 1, *[2, 3] * 20, 4, 6], np.int64)
    same, free = np.ones(len(names), np.int64), np.zeros(len(names), bool)
    found = loops_in(names, same, free)
    assert found is not None
    first, last = with_ends(found, same, names == 1, names == 4)
    assert (first.tolist(), last.tolist()) == ([1], [len(names) - 2])
    assert with_ends(found, np.arange(len(names)), names == 1, names == 4)[0].tolist() == [3], "of another range"


def test_log_probabilities_row_by_row():
    """The slow code is TRL's. Measured: 3.5 to 3.9 times as fast in chunks of 512 rows. Splitting and joining the rows
    takes longer than two rounds of the loop do."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "row_log_probs" / "recording")
    (found,) = [one for one in diagnosis.worth_trying if one.id == "python_loop"]
    assert found.speedup.expected > 2 and found.speedup.high > 3


def test_a_loop_around_loops_of_different_length():
    """Pictures with 8 to 23 boxes each: three ops for each box among 60 for each picture. Without the 60 the loop is
    one over all boxes."""
    boxes = [8 + 5 * one % 16 for one in range(12)]
    around = np.arange(10, 70)
    names = np.concatenate([np.append(around, [1, 2, 3] * count) for count in boxes]).astype(np.int64)
    same, free = np.ones(len(names), np.int64), np.zeros(len(names), bool)
    found = loops_in(names, same, free)
    assert found is not None
    first, rounds, begin, last = (column.tolist() for column in found.columns[:4])
    assert (first, rounds, last) == ([0], [12], [len(names) - 1])
    assert begin == [len(names) - 60 - 3 * boxes[-1]]
    layers = names == 40  # a layer in each round: only the boxes of each image are left
    assert rounds_of(names, same, layers) == [count for count in boxes if 3 * count >= 32]
    pairs = np.concatenate([np.append([1, 2, 3] * count, 4) for count in boxes]).astype(np.int64)
    assert rounds_of(pairs, same[: len(pairs)], free[: len(pairs)])[0] > 100


def test_a_loss_of_all_pairs():
    """576 pairs, with another branch for every 25th. Measured: 11 to 15 times as fast in one matrix multiplication,
    which was known when this was written; the prediction is lower."""
    diagnosis = diagnosed(ROOT / "scenarios" / "programs" / "pairwise_loss" / "recording")
    (found,) = [one for one in diagnosis.worth_trying if one.id == "python_loop"]
    assert "552 rounds" in found.evidence[0].text and found.speedup.high > 8.5

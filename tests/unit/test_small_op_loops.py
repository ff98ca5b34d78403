"""Sequences of ops that repeat."""

from __future__ import annotations

import numpy as np
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.loops.small_op_loops import find_small_loops, found_loops, joined, repeated

OPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=60)


def columns(ops: list[tuple[int, bool, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(names, numbers of the ranges around them, whether they are layers) of ops that open a range or not."""
    names = np.array([name for name, _, _ in ops], np.int64)
    family = np.cumsum(np.array([opens for _, opens, _ in ops], np.int64))
    return names, family, np.array([layer == 0 for _, _, layer in ops], bool)


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


def test_a_loss_of_each_system_is_a_loop():
    """The published fix, measured on an H200: 1.18x."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "host_reads" / "recording")
    (found,) = [one for one in diagnosis.worth_trying if one.id == "python_loop"]
    assert found.speedup.low <= 1.18 <= found.speedup.high


def test_a_list_of_tensors_is_no_loop():
    """484 tensors are detached and moved nowhere for one op over all of them; 80 integers are averaged one by one,
    which is worth less than is shown."""
    diagnosis = diagnosed(ROOT / "scenarios" / "cases" / "ema_loop" / "fixed")
    case = analysis_of(diagnosis)
    assert case is not None
    found = find_small_loops(case)
    assert found is not None and set(found.rounds.tolist()) == {80}
    assert "python_loop" not in {one.id for one in diagnosis.worth_trying}


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


def test_a_loop_around_loops_of_different_length():
    """Pictures with 8 to 23 boxes each: three ops for each box among 60 for each picture. Without the 60 the loop is
    one over all boxes."""
    boxes = [8 + 5 * one % 16 for one in range(12)]
    around = np.arange(10, 70)
    names = np.concatenate([np.append(around, [1, 2, 3] * count) for count in boxes]).astype(np.int64)
    same, free = np.ones(len(names), np.int64), np.zeros(len(names), bool)
    first, rounds, begin, last = (column.tolist() for column in found_loops(names, same, free))
    assert (first, rounds, last) == ([0], [12], [len(names) - 1])
    assert begin == [len(names) - 60 - 3 * boxes[-1]]
    layers = names == 40  # a layer in each round: what is left are the boxes of each picture
    assert found_loops(names, same, layers)[1].tolist() == [count for count in boxes if 3 * count >= 32]
    pairs = np.concatenate([np.append([1, 2, 3] * count, 4) for count in boxes]).astype(np.int64)
    assert found_loops(pairs, same[: len(pairs)], free[: len(pairs)])[1].tolist()[0] > 100


def test_a_loss_of_all_pairs():
    """576 pairs, and another branch for each 25th. Measured: 11 to 15 times as fast in one matrix multiplication, which
    was known when this was written; the prediction is lower."""
    diagnosis = diagnosed(ROOT / "scenarios" / "programs" / "pairwise_loss" / "recording")
    (found,) = [one for one in diagnosis.worth_trying if one.id == "python_loop"]
    assert "552 rounds" in found.evidence[0].text and found.speedup.high > 8.5

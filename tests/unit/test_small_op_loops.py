"""Sequences of ops that repeat."""

from __future__ import annotations

import numpy as np
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.detect.small_op_loops import repeated

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

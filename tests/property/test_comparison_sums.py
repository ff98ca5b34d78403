"""The parts of a comparison sum to the whole, whatever differs."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
from helpers.compared import MS, make_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.diagnosis.comparison import mechanisms
from gpuprof.diagnosis.comparison.compare import (
    phase_differences,
    terms,
)
from gpuprof.diagnosis.comparison.comparison import ComparedWork
from gpuprof.diagnosis.comparison.kernel_differences import compare_kernels, compare_ops, difference
from gpuprof.diagnosis.comparison.mechanisms import explain
from gpuprof.diagnosis.detect.pair.cells import allot
from gpuprof.diagnosis.detect.pair.counts import Counts, OpTable
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.kernel_table import KernelTable
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.cpu.exclusive_time import exclusive_ns
from gpuprof.timeline.phases import PHASES


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.floats(0, 1e15, allow_nan=False, allow_subnormal=False), min_size=1, max_size=40),
)
def test_parts_sum_to_the_whole(whole, weights):
    parts = allot(whole, weights)
    assert sum(parts) == whole
    assert all(part * whole >= 0 for part in parts)
    total = sum(weights)
    if total > 0:
        assert all(abs(p - whole * (w / total)) <= 1 + 1e-12 * abs(whole) for p, w in zip(parts, weights, strict=True))


def test_no_parts_and_no_weights():
    assert allot(5, []) == []
    assert allot(5, [0.0, 0.0]) == [5, 0]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 2)), max_size=12))
def test_every_moment_belongs_to_somebody_once(rows):
    low, high = 5, 35
    start, end, level = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    found = exclusive_ns(start, end, level.astype(np.uint8), low, high)
    owned = np.zeros(len(rows))
    for t in range(low, high):
        running = [i for i, (a, b, _) in enumerate(rows) if a <= t < b]
        lowest = min((rows[i][2] for i in running), default=None)
        mine = [i for i in running if rows[i][2] == lowest]
        for i in mine:
            owned[i] += 1 / len(mine)
    assert np.allclose(found, owned)


CELL = st.one_of(
    st.tuples(st.just("busy"), st.sampled_from(CATEGORIES), st.sampled_from(PHASES)),
    st.tuples(st.just("idle"), st.sampled_from(CAUSES), st.sampled_from(PHASES)),
)
CELLS = st.dictionaries(CELL, st.integers(1, 10**12), min_size=1, max_size=30)
KEYED = st.dictionaries(st.tuples(st.sampled_from(PHASES), st.sampled_from(CATEGORIES)), st.floats(0, 1e4), max_size=12)
FEW_COUNTS = st.sampled_from([0.0, 1.0, 40.0, 900.0])


@st.composite
def any_facts(draw) -> Facts:
    kernels = draw(KEYED)
    counts = Counts(
        kernels=kernels, kernel_ns={key: value * 1000 for key, value in kernels.items()},
        launches=draw(FEW_COUNTS), graph_kernels=draw(FEW_COUNTS), compiled=draw(FEW_COUNTS),
        compiling_ns=draw(FEW_COUNTS) * MS, syncs=draw(FEW_COUNTS), blocking_copies=draw(FEW_COUNTS),
        allocator_calls=draw(FEW_COUNTS), pageable_bytes=draw(FEW_COUNTS) * MS, product_flops=None,
    )  # fmt: skip
    return make_facts(draw(CELLS), counts, tuple(draw(st.lists(st.sampled_from(["tf32", "adapter_casts"])))))


@given(CELLS, CELLS)
def test_terms_and_phases_sum_to_both_steps(a, b):
    for rows in (terms(a, b), phase_differences(a, b)):
        assert sum(row.a_ns for row in rows) == sum(a.values())
        assert sum(row.b_ns for row in rows) == sum(b.values())
        assert sum(row.difference_ns for row in rows) == sum(b.values()) - sum(a.values())


@given(any_facts(), any_facts(), st.sampled_from([None, 1.0, 8.0]))
@settings(deadline=None)
def test_mechanisms_and_the_rest_sum_to_the_difference(a, b, ratio):
    work = None if ratio is None else ComparedWork("tokens", 100.0, 100.0 * ratio, ratio, ratio == 1, 1.0, 1.0)
    found = explain(a, b, work)
    found_there = sum(sum(phases.values()) for _, phases in found.parts)
    assert found_there + found.rest_ns == b.side.step_ns - a.side.step_ns
    # Nothing that costs time is reported as a saving.
    assert all(one.more * sum(phases.values()) >= 0 for one, phases in found.parts)


@given(any_facts(), any_facts())
@settings(deadline=None)
def test_the_order_of_the_findings_makes_no_difference(a, b):
    def said():
        found = explain(a, b, None)
        return [(one.id, one.text, phases) for one, phases in found.parts], found.rest_ns

    as_registered = said()
    with patch.object(mechanisms, "declarations", lambda: BUILT_IN[::-1]):
        assert said() == as_registered


COUNT = st.one_of(st.just(0.0), st.floats(0.01, 1e5))


@given(COUNT, st.integers(0, 10**12), COUNT, st.integers(0, 10**12))
def test_a_kernel_changes_by_number_and_by_time(a_count, a_ns, b_count, b_ns):
    row = difference(("k", "gemm", None, None), a_count, a_ns, b_count, b_ns)
    back = difference(("k", "gemm", None, None), b_count, b_ns, a_count, a_ns)
    assert row.count_ns + row.duration_ns == row.difference_ns == b_ns - a_ns
    assert back.difference_ns == -row.difference_ns and abs(back.count_ns + row.count_ns) <= 1


def test_kernels_are_aligned_by_what_both_know():
    whole = KernelTable(2, {("k", "gemm", "aten::mm", "Linear"): 4, ("k", "gemm", "aten::mm", "Head"): 2}, {})
    whole = replace(whole, ns={key: n * 1000 for key, n in whole.count.items()})
    bare = KernelTable(1, {("k", "gemm", "aten::mm", None): 3}, {("k", "gemm", "aten::mm", None): 3000})
    unnamed = KernelTable(1, {("k", "other", None, None): 3}, {("k", "other", None, None): 3000})
    for other in (bare, unnamed):
        found = compare_kernels(whole, other, 10)
        assert (found.new, found.gone, found.both, found.difference_ns) == (0, 0, 1, 0)
    assert len(compare_kernels(whole, replace(whole, steps=1), 10).rows) == 2
    assert compare_ops(OpTable({}, {}), OpTable({("a", "forward"): 1.0}, {("a", "forward"): 5.0}), 3) == ()

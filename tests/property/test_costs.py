"""What kernels move and compute: limits that hold for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.present import present
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.costs.ceilings import ceilings
from gpuprof.costs.dtypes import CODE, UNKNOWN
from gpuprof.costs.formulas.cache import kept_bytes, rereads
from gpuprof.costs.formulas.gemm import traffic
from gpuprof.costs.split import NO_BOUND, split
from gpuprof.costs.work import KernelWork


@given(st.floats(1, 1e10), st.floats(1, 1e10), st.integers(1, 500), st.integers(1, 500), st.integers(1, 300))
def test_a_product_reads_its_factors_once_at_least(left, right, rows, columns, other_bytes):
    read = traffic(left, right, rows, columns, other_bytes, 50e6)
    assert read >= (left + right) * (1 - 1e-12)
    assert read <= left * columns + right * rows + left + right  # each tile separately
    if left + right <= 50e6 or rows * columns <= other_bytes:
        assert read == pytest.approx(left + right)


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_what_stays_in_the_cache_was_written_and_fits(read, write):
    assert 0 <= kept_bytes(read, write, 50e6) <= min(write, 25e6)
    assert rereads(write, read, 50e6) <= write


work_columns = st.lists(
    st.tuples(
        st.integers(-5, 10**9),  # duration
        st.one_of(st.just(math.nan), st.floats(0, 1e15)),  # FLOPs
        st.one_of(st.just(math.nan), st.floats(0, 1e13)),  # bytes
        st.sampled_from([UNKNOWN, CODE["bf16"], CODE["fp64"], CODE["fp32"]]),
        st.booleans(),
    ),
    max_size=20,
)


@given(work_columns)
def test_the_split_sums_to_the_duration(rows):
    duration = np.array([row[0] for row in rows], np.int64)
    flops, moved = (np.array([row[i] for row in rows], float) for i in (1, 2))
    work = KernelWork(
        flops, moved, moved, np.zeros(len(rows)), np.array([row[3] for row in rows], np.uint8),
        np.array([row[4] for row in rows], bool), ~np.isnan(moved), np.zeros(len(rows), bool),
    )  # fmt: skip
    found = split(duration, work, present(ceilings("NVIDIA H200", measurements={})))
    assert (np.sum(found.parts, axis=0) == duration.clip(0)).all()
    assert all((part >= 0).all() for part in found.parts)
    known = found.bound != NO_BOUND
    assert (found.unmodelled_ns[~known] == duration.clip(0)[~known]).all()
    assert np.isnan(found.efficiency[~known]).all()
    efficiency = found.efficiency[known & (duration > 0)]
    assert ((efficiency >= 0) & (efficiency <= 1)).all()

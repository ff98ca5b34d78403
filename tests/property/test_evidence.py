"""Stretches of a finding's evidence, compared with a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.detect.cpu.evidence import LANE_GAP_NS, _stretches

PIECES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 8), st.integers(0, 6)), min_size=1, max_size=30
)
"""(track, instance, start, length), times in halves of what parts two stretches."""


def one_by_one(pieces: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """(first piece, start, end) of each stretch."""
    found: list[tuple[int, int, int]] = []
    latest = 0
    for i, (track, instance, start, length) in enumerate(pieces):
        follows = i > 0 and pieces[i - 1][:2] == (track, instance)
        latest = max(latest, start + length) if follows else start + length
        before = found[-1][2] if follows else 0
        if follows and start - before <= LANE_GAP_NS:
            found[-1] = (*found[-1][:2], latest)
        else:
            found.append((i, start, latest))
    return found


@given(PIECES)
def test_stretches_are_those_of_a_plain_loop(drawn):
    half = LANE_GAP_NS // 2
    pieces = sorted((track, instance, start * half, length * half) for track, instance, start, length in drawn)
    track, instance, start, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    first, begun, end = _stretches(track, instance, start.astype(float), (start + length).astype(float))
    assert list(zip(first.tolist(), begun.tolist(), end.tolist(), strict=True)) == one_by_one(pieces)

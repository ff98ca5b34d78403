"""FLOPs, bytes and bounds of recordings."""

from __future__ import annotations

import pytest
from helpers.cpu_time import times_as_long
from helpers.paths import ROOT
from helpers.rooflines import examined, whole
from helpers.timeline import timeline_of
from helpers.traces import shared_trace

from benchmarks.roofline import UNMODELLED
from gpuprof.costs.roofline import category_bounds, roofline

PAIR = ROOT / "tests" / "data" / "roofline_pair.json.gz"


def test_the_committed_pair_sums_up():
    """What can be checked without counters: the split is exact, groups add up, and FLOPs are those of the model's
    layers."""
    timeline, found = examined(PAIR)
    events, rows = timeline.trace.gpu, timeline.members
    total = int((events.end_ns - events.start_ns)[rows].clip(0).sum())
    assert whole(found) == total
    assert sum(group.ns for group in found.by_category) == total
    assert sum(group.ns for group in found.by_name) == total
    assert all(sum(group.split_ns.values()) == group.ns for group in found.by_name)
    assert found.unmodelled_share < UNMODELLED
    # Two layers of width 4096 (14336 in the MLP, 1024 for keys and values), 32,000 words, 4096 tokens: the weights are
    # frozen, so that each is used in one matmul forward and one backward, except for the first layer's input.
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    forward = 2 * 4096 * (2 * per_layer + 4096 * 32_000)
    attention = 2 * 2 * 4 * 32 * (1024 * 1025 / 2) * 2 * 128 * (1 + 2)
    first_input = 2 * 4096 * (4096 * 4096 + 2 * 4096 * 1024)
    assert found.model_flops["bf16"] == pytest.approx(2 * forward - first_input + attention, rel=1e-6)
    assert category_bounds(found)["gemm"] == "compute"
    assert category_bounds(found)["elementwise"] == "memory"
    assert found.mfu(timeline.window[1] - timeline.window[0]) == pytest.approx(0.31, abs=0.02)


@pytest.mark.slow
def test_it_costs_less_than_reading_the_recording():
    """With 22,000 GPU events of few kinds, as in recordings: each kind is computed once."""
    path = shared_trace("h200/dense8b_lora_compute")
    timeline, _ = examined(path)
    assert times_as_long(lambda: roofline(timeline), lambda: timeline_of(path)) < 0.5

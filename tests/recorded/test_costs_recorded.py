"""FLOPs, bytes and bounds of recordings: beside hardware counters, and what is left unmodelled."""

from __future__ import annotations

import time

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.traces import shared_trace

from benchmarks.roofline import BOUND, BYTES, ELEMENTWISE, GEMM_OVER, UNMODELLED, compare, counters
from gpuprof.costs.roofline import Roofline, category_bounds, roofline
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.kineto.reader import read_kineto

PAIR = ROOT / "tests" / "data" / "roofline_pair.json.gz"


def examined(path) -> tuple[Timeline, Roofline]:
    timeline = build_timeline(read_kineto(path, path.stat().st_size, small_bytes=1 << 28))
    assert timeline is not None
    found = roofline(timeline)
    assert found is not None
    return timeline, found


def whole(found: Roofline) -> int:
    parts = (found.compute_ns, found.memory_ns, found.latency_ns, found.inefficient_ns, found.unmodelled_ns)
    return sum(parts)


def test_beside_hardware_counters():
    shared = shared_trace("h200/roofline_pair")
    agreement = compare(*examined(PAIR), counters(shared.with_name("roofline_pair.ncu.csv.gz")))
    assert agreement.gemm_flops_low == 1
    assert agreement.gemm_flops_high <= 1 + GEMM_OVER
    assert agreement.elementwise_error <= ELEMENTWISE
    assert agreement.bytes_ratio == pytest.approx(1, abs=BYTES)
    assert agreement.bound_share >= BOUND
    assert agreement.judged_share > 0.9  # latency does not hide what could be wrong
    assert agreement.holds


def test_the_committed_pair_sums_up():
    """What holds without counters: the split is exact, groups add up, and FLOPs are those of the model's layers."""
    timeline, found = examined(PAIR)
    events, rows = timeline.trace.gpu, timeline.members
    total = int((events.end_ns - events.start_ns)[rows].clip(0).sum())
    assert whole(found) == total
    assert sum(group.ns for group in found.by_category) == total
    assert sum(group.ns for group in found.by_name) == total
    assert all(sum(group.split_ns.values()) == group.ns for group in found.by_name)
    assert found.unmodelled_share < UNMODELLED
    # Two layers of width 4096 (14336 in the MLP, 1024 for keys and values), 32,000 words, 4096 tokens: the weights are
    # frozen, so that each is multiplied forward and once backward, but not for the first layer's input.
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    forward = 2 * 4096 * (2 * per_layer + 4096 * 32_000)
    attention = 2 * 2 * 4 * 32 * (1024 * 1025 / 2) * 2 * 128 * (1 + 2)
    first_input = 2 * 4096 * (4096 * 4096 + 2 * 4096 * 1024)
    assert found.model_flops["bf16"] == pytest.approx(2 * forward - first_input + attention, rel=1e-6)
    assert category_bounds(found)["gemm"] == "compute"
    assert category_bounds(found)["elementwise"] == "memory"
    assert found.mfu(timeline.window[1] - timeline.window[0]) == pytest.approx(0.31, abs=0.02)


@pytest.mark.parametrize(
    "name",
    [
        "ddp_straggler_rank0", "ddp_straggler_rank1", "dense8b_lora_compute", "hf_trainer_lora",
        "moe_gptoss_expert_loop", "roofline_pair", "tiny_lora_dataloader", "tiny_lora_small_batch", "unsloth_llama1b",
    ],
)  # fmt: skip
def test_little_is_left_unmodelled(name):
    timeline, found = examined(shared_trace(f"h200/{name}"))
    assert found.unmodelled_share <= UNMODELLED
    known = found.split.efficiency[~np.isnan(found.split.efficiency)]
    assert len(known)
    # A roof that many kernels beat would be no roof.
    rows = timeline.members[found.work.model[timeline.members]]
    duration = (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns)[rows]
    roof = found.work.traffic_bytes[rows] / found.ceilings.memory_bytes_per_s * 1e9
    roof = np.where(found.work.over_link[rows], 0, roof)
    assert (roof - duration).clip(0).sum() < 0.03 * duration.sum()


def test_a_dense_model_is_half_tensor_work_and_the_rest_memory():
    timeline, found = examined(shared_trace("h200/dense8b_lora_compute"))
    total = whole(found)
    tensor = [g for g in found.by_category if category_name(g.key) in ("gemm", "attention")]
    assert sum(g.ns for g in tensor) / total == pytest.approx(0.53, abs=0.05)
    streaming = [g for g in found.by_category if category_name(g.key) in ("elementwise", "cast/copy")]
    assert sum(g.ns for g in streaming) / total == pytest.approx(0.43, abs=0.05)
    assert {g.bound for g in streaming} == {"memory"}
    step = (timeline.window[1] - timeline.window[0]) / len(timeline.steps.start_ns)
    mfu, hfu = found.mfu(step), found.hfu(step)
    assert mfu is not None and hfu is not None
    # Frozen weights under checkpointing: forward, recomputed forward, one product backward.
    assert hfu / mfu == pytest.approx(1.5, abs=0.05)


def category_name(key: int) -> str:
    from gpuprof.timeline.categories import CATEGORIES

    return CATEGORIES[key]


def test_it_is_quick():
    """Less than 10 µs a GPU event; the recording has 22,000, of few kinds as recordings have."""
    path = shared_trace("h200/dense8b_lora_compute")
    timeline, _ = examined(path)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        roofline(timeline)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 10e-6 * len(timeline.trace.gpu)

"""FLOPs, bytes and bounds of recordings: against hardware counters, and what is left unmodelled."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.rooflines import examined, whole
from helpers.traces import each_shared, shared_trace

from benchmarks.roofline import BOUND, BYTES, ELEMENTWISE, GEMM_OVER, UNMODELLED, compare, counters
from gpuprof.timeline.categories import CATEGORIES

PAIR = ROOT / "tests" / "data" / "roofline_pair.json.gz"


def test_against_hardware_counters():
    shared = shared_trace("h200/roofline_pair")
    agreement = compare(*examined(PAIR), counters(shared.with_name("roofline_pair.ncu.csv.gz")))
    assert agreement.gemm_flops_low == 1
    assert agreement.gemm_flops_high <= 1 + GEMM_OVER
    assert agreement.elementwise_error <= ELEMENTWISE
    assert agreement.bytes_ratio == pytest.approx(1, abs=BYTES)
    assert agreement.bound_share >= BOUND
    assert agreement.judged_share > 0.9  # long enough that latency hides no error
    assert agreement.holds


@pytest.mark.parametrize(
    "name",
    each_shared(
        "ddp_straggler_rank0", "ddp_straggler_rank1", "dense8b_lora_compute", "hf_trainer_lora",
        "moe_gptoss_expert_loop", "roofline_pair", "tiny_lora_dataloader", "tiny_lora_small_batch", "unsloth_llama1b",
        slow=False,
    ),
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
    # Frozen weights under checkpointing: forward, recomputed forward, one matmul backward.
    assert hfu / mfu == pytest.approx(1.5, abs=0.05)


def category_name(key: int) -> str:
    return CATEGORIES[key]

"""The replay of the shared recordings of an H200, against how they ran."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.timeline import timeline_of
from helpers.traces import each_shared, shared_trace

from gpuprof.diagnosis.recorded.replayed import replay_error
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.simulate import simulate
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler

H200 = (
    "dense8b_lora_compute", "tiny_lora_small_batch", "tiny_lora_small_batch_stack", "moe_gptoss_expert_loop",
    "tiny_lora_dataloader", "unsloth_llama1b", "hf_trainer_lora", "ddp_straggler_rank0", "ddp_straggler_rank1",
    "roofline_pair",
)  # fmt: skip


@pytest.mark.parametrize("name", each_shared(*H200, slow=False))
def test_the_untouched_replay(name):
    graph = build(timeline_of(shared_trace(f"h200/{name}")))
    for one in (graph, model_collectives(carried_over(graph))):
        assert replay_error(one) <= 0.001
        schedule = simulate(one)
        gpu = one.on_gpu
        step = (one.recorded_end_ns.max() - one.recorded_start_ns.min()) / one.steps
        off = np.abs(schedule.end_ns - one.recorded_end_ns)[gpu]
        assert np.median(off) <= 0.001 * step


def test_a_measured_step_is_met():
    for name, ms in (
        ("tiny_lora_small_batch", 81.0),
        ("moe_gptoss_expert_loop", 134.0),
        ("dense8b_lora_compute", 631.0),
    ):
        removal = remove_profiler(build(timeline_of(shared_trace(f"h200/{name}"))), ms * 1e6)
        assert removal.fitted
        assert removal.step_ns == pytest.approx(ms * 1e6, rel=0.002)

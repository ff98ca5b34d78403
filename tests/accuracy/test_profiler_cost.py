"""What the profiler costs, where nothing is replayed, against runs that were also timed without it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.timeline import timeline_of
from helpers.traces import shared_trace, shared_truth

from gpuprof.diagnosis.idle.gaps import find_gaps
from gpuprof.diagnosis.recorded.shares import devices, profiler_cost


@pytest.mark.parametrize("name", ["tiny_lora_small_batch", "moe_gptoss_expert_loop", "unsloth_llama1b"])
def test_the_cost_of_recording_covers_what_a_host_bound_step_lost_to_it(name: str):
    timeline = timeline_of(shared_trace(f"h200/{name}"))
    cost = profiler_cost(timeline, devices(timeline, find_gaps(timeline)))
    assert cost is not None
    recorded = float(np.median(timeline.steps.end_ns - timeline.steps.start_ns))
    least, most = sorted(recorded - ms * 1e6 for ms in shared_truth()[name]["unprofiled_ms"])
    assert cost.low_ns <= most
    assert cost.high_ns >= least
    assert cost.typical_ns == pytest.approx((least + most) / 2, rel=0.2)

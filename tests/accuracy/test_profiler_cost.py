"""What the profiler costs an event, against runs that were also timed without it."""

from __future__ import annotations

from helpers.traces import shared_trace, shared_truth

import gpuprof
from gpuprof.diagnosis.shares import EVENT_COST_NS


def test_the_profilers_cost_per_event_covers_what_was_measured():
    """The range that `EVENT_COST_NS` states, re-derived from every run that was also timed without a profiler."""
    shared_trace("h200/tiny_lora_small_batch")
    truth = shared_truth()
    costs = {}
    for name in ("tiny_lora_small_batch", "moe_gptoss_expert_loop", "unsloth_llama1b", "tiny_lora_dataloader"):
        diagnosis = gpuprof.diagnose(shared_trace(f"h200/{name}"))
        middle = sum(truth[name]["unprofiled_ms"]) / 2
        extra = diagnosis.steps.recorded_ns - middle * 1e6
        costs[name] = extra / diagnosis.profiler.events_per_step
    low, typical, high = EVENT_COST_NS
    assert all(low <= cost <= high for cost in costs.values()), costs
    assert min(costs.values()) < typical < max(costs.values())

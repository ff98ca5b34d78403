"""Phases and links of recorded traces."""

from __future__ import annotations

from helpers.paths import ROOT
from helpers.timeline import timeline_of
from helpers.traces import shared_trace

from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline


def test_recompute_on_recordings():
    """Checkpointed runs recompute about a forward; runs without checkpointing recompute nothing."""

    def shares(timeline: Timeline) -> dict[str, int]:
        gpu = timeline.trace.gpu
        ns = (gpu.end_ns - gpu.start_ns)[timeline.members]
        return {name: int(ns[timeline.phase[timeline.members] == i].sum()) for i, name in enumerate(PHASES)}

    checkpointed = shares(timeline_of(ROOT / "tests" / "data" / "unsloth_llama1b.json.gz"))
    assert 0.5 < checkpointed["recompute"] / checkpointed["forward"] < 1.1
    assert shares(timeline_of(ROOT / "gpuprof" / "data" / "demo.json.gz"))["recompute"] == 0
    dense = shares(timeline_of(shared_trace("h200/dense8b_lora_compute")))
    assert 0.8 < dense["recompute"] / dense["forward"] < 1.05


def test_every_kernel_of_a_healthy_recording_has_a_launch_and_an_op():
    timeline = timeline_of(ROOT / "gpuprof" / "data" / "demo.json.gz")
    assert (timeline.links.call >= 0).all()
    assert (timeline.links.op >= 0).mean() > 0.99
    assert (timeline.links.launched_ns <= timeline.trace.gpu.start_ns).all()

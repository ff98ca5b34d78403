"""GPUs of one process that take turns: told from those that work together, and what a process per GPU would gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.make_trace import TraceBuilder

import gpuprof
from gpuprof.diagnosis.findings import naive_pipeline
from gpuprof.timeline.timeline import build_timeline
from gpuprof.timeline.turns import take_turns
from gpuprof.tracefile.read import read_recording
from scenarios.catalogue import scenario

US = 1_000
RECORDING = scenario("two_gpus_one_process").recording


def two_gpus(tmp_path, shift: int, second: int = 100 * US):
    """Ten kernels of 100 µs on GPU 0, each with one on GPU 1 that begins `shift` later."""
    trace = TraceBuilder()
    now = 10 * US
    for _ in range(10):
        for device, begin, ns in ((0, now + 10 * US, 100 * US), (1, now + 10 * US + shift, second)):
            trace.launch("kernel", (now, now + 4 * US), (begin, begin + ns), stream=7 + 8 * device, device=device)
        now += 250 * US
    timeline = build_timeline(read_recording(str(trace.write(tmp_path / "t.json"))).trace)
    assert timeline is not None
    return timeline


@pytest.mark.parametrize(
    ("shift", "second", "gpus"),
    [(100, 100, 2), (85, 100, 2), (50, 100, 0), (0, 100, 0), (100, 5, 0)],
    ids=["one after the other", "a little at once", "a pipeline", "together", "one that hardly works"],
)
def test_gpus_take_turns_where_hardly_any_time_both_work(tmp_path, shift: int, second: int, gpus: int):
    assert take_turns(two_gpus(tmp_path, shift * US, second * US)) == gpus


@pytest.mark.skipif(RECORDING is None, reason="not recorded")
def test_a_process_per_gpu_does_the_work_of_both_in_the_step_of_one():
    """Measured: with all layers on one GPU, and the other free, a step takes as long."""
    told = scenario("two_gpus_one_process")
    diagnosis = gpuprof.diagnose(told.recording)
    assert "take turns" in diagnosis.verdict.summary
    assert diagnosis.verdict.bound in ("compute", "memory", "balanced"), "the host is not what the GPUs wait for"
    (found,) = (one for one in diagnosis.findings if one.id == "naive_pipeline")
    low, high = told.measured_ms("one_gpu")
    assert found.work == 2
    assert diagnosis.findings[0] is found, "it gains most"
    assert found.step_ns.low <= high * 1e6 and low * 1e6 <= found.step_ns.high


@pytest.mark.skipif(RECORDING is None, reason="not recorded")
@pytest.mark.parametrize(
    ("peak_gib", "says", "wider"),
    [(40, "DistributedDataParallel", 1.0), (60, "fully_shard", 1.15), (None, "its memory was not recorded", 1.0)],
    ids=["one GPU holds it", "none does", "not known"],
)
def test_what_takes_the_place_of_turns_hangs_on_the_memory_of_one_gpu(peak_gib: int | None, says: str, wider: float):
    """Two such peaks and a quarter are 100 and 150 GiB, of which an H200 gives out 126."""
    case = gpuprof.diagnose(RECORDING)._case
    assert case is not None and case.run is not None
    memory = replace(case.run.memory, peak_bytes=peak_gib and peak_gib << 30)
    (found,) = naive_pipeline.find(replace(case, run=replace(case.run, memory=memory)))
    assert says in found.fix and found.work == 2
    # The gradients of its 10.5 million trained parameters, 42 MB over 450 GB/s, are hardly a thousandth of the step.
    assert found.spread == pytest.approx(wider, rel=0.002)

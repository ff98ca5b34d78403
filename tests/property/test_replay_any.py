"""Any recording can be replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.budgets import budget
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import (
    NEVER,
)
from gpuprof.replay.simulate import simulate
from gpuprof.replay.transform import scale
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.read import read_trace

BACKWARD: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 1}


@st.composite
def any_recordings(draw: st.DrawFn) -> TraceBuilder:
    """Calls, work and ops at any times, on any threads, streams and devices, as no program would produce them."""
    at = st.integers(0, 300)
    trace = TraceBuilder(gpus=2)
    for number in range(draw(st.integers(0, 2))):
        trace.step(number, number * 150, number * 150 + 150)
    names = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cudaDeviceSynchronize", "cudaStreamSynchronize",
             "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaGraphLaunch",
             "cudaFree")  # fmt: skip
    for _ in range(draw(st.integers(1, 14))):
        begin, took, tid = draw(at), draw(st.integers(-2, 80)), draw(st.sampled_from((MAIN, AUTOGRAD, 300)))
        if draw(st.integers(0, 3)) == 3:
            trace.op("MmBackward0" if tid == AUTOGRAD else "aten::mm", begin, begin + took, tid, **BACKWARD)
            continue
        number = draw(st.integers(1, 12))
        trace.call(draw(st.sampled_from(names)), begin, begin + took, tid, number)
        for _ in range(draw(st.integers(0, 2))):
            start, name = (
                draw(at),
                draw(st.sampled_from(("gemm", "Memcpy DtoH (Device -> Pageable)", "ncclDevKernel_AllReduce"))),
            )
            stream, device = draw(st.sampled_from((7, 13))), draw(st.integers(0, 1))
            lost = draw(st.integers(0, 3)) == 3
            trace.gpu(
                name, start, start + draw(st.integers(-2, 90)), stream=stream, device=device,
                correlation=0 if lost else number, cat="gpu_memcpy" if name.startswith("Memcpy") else "kernel",
            )  # fmt: skip
    return trace


def check_total(trace: TraceBuilder, folder: Path) -> None:
    """Checks that any recording has a graph with valid times and without negative durations."""
    timeline = build_timeline(read_trace(trace.write(folder / "trace.json")))
    if timeline is None:
        return
    graph = build(timeline)
    assert (graph.duration_ns >= 0).all()
    if not len(graph):
        return
    for one in (graph, carried_over(graph), scale(graph, host=0.5, device=0.5), scale(graph, device=2)):
        looped = simulate(one, 2)
        assert np.isfinite(looped.start_ns).all()
        assert np.isfinite(looped.end_ns).all()
        assert np.isfinite(looped.finished_ns).all()
        assert (looped.end_ns > NEVER / 2).all()


@given(trace=any_recordings())
@budget(60)
def test_any_recording_replays(tmp_path_factory: pytest.TempPathFactory, trace: TraceBuilder):
    check_total(trace, tmp_path_factory.mktemp("any"))


@pytest.mark.slow
@given(trace=any_recordings())
@settings(max_examples=5000)
def test_thousands_of_any_recordings_replay(tmp_path_factory: pytest.TempPathFactory, trace: TraceBuilder):
    check_total(trace, tmp_path_factory.mktemp("any"))

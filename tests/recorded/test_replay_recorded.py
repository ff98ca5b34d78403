"""The replay of real recordings: unchanged it matches the recording, and slowing something down shows what it
limits."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.timeline import timeline_of
from helpers.traces import COMMITTED, shared_trace

from benchmarks import replay as benchmark
from gpuprof.diagnosis.recorded.replayed import replay_error
from gpuprof.diagnosis.recorded.representative_steps import representative
from gpuprof.replay.build.build import build
from gpuprof.replay.graph import DEVICE, Graph
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.transform import scale
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler


def slower_kernels(graph: Graph) -> float:
    """How many times as long a step takes when all kernels take twice as long."""
    before = simulate(graph, ROUNDS).step_ns
    return simulate(scale(graph, device=2.0), ROUNDS).step_ns / before


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name.split(".")[0])
def test_the_untouched_replay_of_what_is_committed(path):
    assert replay_error(build(timeline_of(path))) <= 0.001


def test_kernels_twice_as_long():
    """A dense model on a busy GPU takes twice as long; one that waits for its host hardly changes."""
    assert slower_kernels(build(timeline_of(shared_trace("h200/dense8b_lora_compute")))) >= 1.9
    tiny = build(timeline_of(shared_trace("h200/tiny_lora_small_batch")))
    assert slower_kernels(tiny) <= 1.1
    assert slower_kernels(remove_profiler(tiny).graph) <= 1.1


def test_steps_that_stand_for_all():
    timeline = timeline_of(shared_trace("h200/tiny_lora_small_batch"))
    assert representative(timeline) is timeline
    long = timeline_of(shared_trace("public/kineto_v100_oldschema_resnet50_nw0.pt.trace"))
    some = representative(long, most_events=1)
    assert len(some.steps.start_ns) == 2 < len(long.steps.start_ns)
    assert replay_error(build(some)) <= 0.001
    assert simulate(build(some), ROUNDS).step_ns == pytest.approx(simulate(build(long), ROUNDS).step_ns, rel=0.1)
    low, high = some.window
    begun = some.links.begun_ns[some.members]
    assert ((begun >= low) & (begun < high)).all()
    assert sum(d.compute_ns + d.communication_ns + d.copy_ns + d.idle_ns for d in some.devices) == high - low


@pytest.mark.measures_time
def test_it_is_fast():
    """The goal is a million events per second, and 25 what-ifs of 100,000 events in 5 s; it is many times faster."""
    found = benchmark.measure(timeline_of(shared_trace("h200/tiny_lora_small_batch")))
    assert found["events"] / found["simulate_s"] > 1e6
    assert found["what_ifs_s"] * 100_000 / found["events"] < 5


def test_the_device_keeps_its_work():
    graph = build(timeline_of(COMMITTED[0]))
    removal = remove_profiler(graph)
    kernels = graph.resource == DEVICE
    assert np.array_equal(graph.duration_ns[kernels], removal.graph.duration_ns[kernels])
    assert (removal.graph.duration_ns <= graph.duration_ns + 1e-6).all()
    assert (removal.graph.duration_ns >= 0).all()
    assert removal.low_ns <= removal.step_ns <= removal.high_ns

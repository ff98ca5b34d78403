"""Replays without what the profiler cost, and how long a replay takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_time import times_as_long
from helpers.make_trace import TraceBuilder
from helpers.replayed import graph_of, loop

from gpuprof.replay.build.latencies import prompt
from gpuprof.replay.simulate import simulate
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, without
from gpuprof.replay.unprofiled.profiler_fit import FIT_TOLERANCE, UNFITTED_DIFFERENCE, at_step, remove_profiler

US = 1_000


# ---- the profiler's cost


def recorded_steps(kernel_ns: int, ops: int = 200, op_ns: int = 20 * US, steps: int = 2) -> TraceBuilder:
    """Ops that follow each other, each with a launch of 6 µs in its middle; the kernels are queued or done at once."""
    trace, free = TraceBuilder(), 0
    for number in range(steps):
        trace.step(number, number * ops * op_ns, (number + 1) * ops * op_ns)
    for k in range(steps * ops):
        begin = k * op_ns
        trace.op("aten::mm", begin, begin + op_ns)
        start = max(begin + 16 * US, free + US)
        free = start + kernel_ns
        trace.launch("gemm", (begin + 7 * US, begin + 13 * US), (start, free))
    return trace


def test_a_host_bound_step_loses_what_its_events_cost(tmp_path: Path):
    graph = graph_of(recorded_steps(kernel_ns=3 * US), tmp_path)
    found = remove_profiler(graph)
    assert not found.fitted
    # 200 ops and 200 calls in a step of 4 ms, 2.3 µs each.
    assert found.cost_ns == pytest.approx(400 * 2_300, rel=0.01)
    assert found.step_ns == pytest.approx(4_000 * US - 400 * 2_300, rel=0.01)
    assert found.low_ns < found.step_ns < found.high_ns < 4_200 * US


@pytest.mark.parametrize("by", [0.8, 1.3])
def test_a_step_that_other_recordings_give_is_met_and_stays_as_uncertain(by: float, tmp_path: Path):
    graph = graph_of(recorded_steps(kernel_ns=3 * US), tmp_path)
    alone = remove_profiler(graph)
    found = at_step(graph, alone, by * alone.step_ns)
    assert not found.fitted
    assert found.step_ns == pytest.approx(by * alone.step_ns, rel=FIT_TOLERANCE)
    assert found.low_ns / found.step_ns == pytest.approx(alone.low_ns / alone.step_ns)
    assert found.high_ns / found.step_ns == pytest.approx(alone.high_ns / alone.step_ns)
    ends = [simulate(one, 3).step_ns / one_step for one, one_step in (
        (found.quicker, found.step_ns), (alone.quicker, alone.step_ns), (found.slower, found.step_ns),
        (alone.slower, alone.step_ns),
    )]  # fmt: skip
    assert ends[0] == pytest.approx(ends[1], rel=0.02) and ends[0] < 0.95
    assert ends[2] == pytest.approx(ends[3], rel=0.02) and ends[2] > 1.05
    assert at_step(graph, alone, (1 + UNFITTED_DIFFERENCE / 2) * alone.step_ns) is alone


@pytest.mark.parametrize("kernel_us", [3, 15, 30])
def test_a_measured_step_is_met(kernel_us: int, tmp_path: Path):
    """Host-bound, nearly balanced and GPU-bound, down to steps that no removal explains but another clock does."""
    graph = graph_of(recorded_steps(kernel_us * US), tmp_path)
    recorded = simulate(graph, 3).step_ns
    removed_ns = []
    for share in (1.2, 1.0, 0.95, 0.85, 0.7, 0.4):
        found = remove_profiler(graph, share * recorded, (share * recorded * 0.99, share * recorded * 1.01))
        assert found.fitted
        assert found.step_ns == pytest.approx(share * recorded, rel=FIT_TOLERANCE)
        assert found.low_ns <= found.step_ns <= found.high_ns
        assert simulate(found.quicker, 3).step_ns <= found.step_ns + 1
        assert found.step_ns <= simulate(found.slower, 3).step_ns + 1
        removed_ns.append(found.cost_ns)
    assert removed_ns == sorted(removed_ns), "a shorter step leaves the profiler more to answer for"
    if kernel_us < 30:
        assert removed_ns[:2] == pytest.approx([0, 0], abs=100)
    else:
        assert removed_ns == pytest.approx([400 * 2_300] * 6, rel=0.01), "a step that the GPU binds tells nothing of it"


@pytest.mark.parametrize("kernel_us", [3, 15, 30])
def test_taking_more_out_never_takes_longer(kernel_us: int, tmp_path: Path):
    graph = graph_of(recorded_steps(kernel_us * US), tmp_path)
    events = recorded_events(graph)
    reduced = [without(graph, events.cost_ns(s)) for s in (0, 0.25, 0.5, 1, 1.5, 2, 4)]
    steps = [simulate(one, 3).step_ns for one in reduced]
    assert steps[0] == simulate(graph, 3).step_ns
    assert all(after <= before + 1e-3 for before, after in pairwise(steps))
    on_gpu = graph.on_gpu
    for one in reduced:
        assert np.array_equal(one.duration_ns[on_gpu], graph.duration_ns[on_gpu]), "the device ran as it does anyway"
        assert (one.duration_ns >= 0.1 * graph.duration_ns - 1e-6).all()


# ---- speed


def test_a_million_nodes_take_less_than_python_needs_to_add_their_durations():
    graph = loop(host=2, device=3, queue=1000, kernels=350_000)
    simulate(graph)  # compiled by now
    durations_ns = graph.duration_ns.tolist()

    def add() -> float:
        total_ns = 0.0
        for duration_ns in durations_ns:
            total_ns = max(total_ns, total_ns + duration_ns)
        return total_ns

    assert times_as_long(lambda: simulate(graph), add) < 2


def test_prompt_starts_are_found_by_the_recording_s_own_latencies():
    """A host's and a device's clock may differ by more than any launch takes; a wait of unknown cause is no latency."""
    latency = np.array([3.0, 4.0, 4.0, 5.0, 900.0, np.nan]) * 1000
    clear = np.ones(len(latency), bool)
    assert prompt(latency, clear).tolist() == [True] * 4 + [False] * 2
    assert prompt(latency + 60_000, clear).tolist() == [True] * 4 + [False] * 2
    assert prompt(latency[:3], clear[:3]).tolist() == [True] * 3, "too few to tell"

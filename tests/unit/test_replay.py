"""The replay on programs small enough to follow by hand, on recordings that lack something, and at speed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.make_trace import AUTOGRAD, TraceBuilder
from helpers.replayed import graph_of, loop

from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import (
    HANDOVER,
    LANE,
    NEVER,
    SYNC,
    UNBOUND,
    Graph,
    edges_of,
)
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.simulate import simulate
from gpuprof.replay.transform import removed, scale, scaled, without_edges, without_waits
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler

US = 1_000
FORWARD: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 0}
BACKWARD: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 1}
ORIGIN = 1_700_000_000_000_000_000
"""Recorded times are Unix times: so large that a float no longer tells single nanoseconds apart."""


def gpu_nodes(graph: Graph) -> np.ndarray:
    """The node of every GPU event, in the order of the trace."""
    nodes = np.flatnonzero(graph.on_gpu)
    return nodes[np.argsort(graph.gpu_row[nodes])]


def starts(graph: Graph, rounds: int = 1) -> list[float]:
    return simulate(graph, rounds).start_ns[gpu_nodes(graph)].tolist()


# ---- by hand


def idle_kernels(ends: int = 500 * US) -> TraceBuilder:
    """Two kernels that nothing waits for, and a step that ends with the host's work."""
    return (
        TraceBuilder()
        .step(0, 0, ends)
        .op("aten::mm", 100 * US, 120 * US)
        .launch("gemm_a", (105 * US, 111 * US), (114 * US, 154 * US))
        .op("aten::mm", 300 * US, 320 * US)
        .launch("gemm_b", (305 * US, 311 * US), (314 * US, 374 * US))
    )


def synchronised() -> TraceBuilder:
    """A kernel of 200 µs that the host waits for, and another one afterwards."""
    return (
        TraceBuilder()
        .step(0, 0, 400 * US)
        .launch("gemm_a", (10 * US, 16 * US), (18 * US, 218 * US))
        .call("cudaDeviceSynchronize", 20 * US, 221 * US)
        .launch("gemm_b", (300 * US, 306 * US), (308 * US, 328 * US))
    )


def test_a_launch_moves_with_its_host_and_keeps_its_latency(tmp_path: Path):
    graph = graph_of(idle_kernels(), tmp_path)
    assert starts(graph) == [114 * US, 314 * US]
    assert starts(scale(graph, host=0.5)) == [(111 / 2 + 3) * US, (311 / 2 + 3) * US]
    assert starts(scale(graph, device=2)) == [114 * US, 314 * US], "each has ended before the next is launched"
    assert starts(scale(graph, device=5)) == [114 * US, 315 * US], "the next follows after a gap of a microsecond"
    assert simulate(graph).step_end_ns.tolist() == [500 * US]
    assert simulate(scale(graph, host=0.5)).step_end_ns.tolist() == [250 * US]


def test_a_wait_is_no_work(tmp_path: Path):
    graph = graph_of(synchronised(), tmp_path)
    (wait,) = np.flatnonzero(graph.waits)
    assert graph.duration_ns[wait] == 0
    # What the call itself does is not visible, so the usual time of a return is assumed: far less than its 201 µs.
    assert graph.duration_ns[(graph.call == graph.call[wait]) & ~graph.waits].sum() == 3 * US
    assert starts(graph) == [18 * US, 308 * US]
    assert starts(scale(graph, device=0.5)) == [18 * US, 208 * US]
    assert starts(scale(graph, device=2)) == [18 * US, 508 * US]
    assert starts(without_waits(graph, graph.waits)) == [18 * US, 219 * US], "launched early, it is queued"
    assert simulate(without_waits(graph, graph.waits)).step_end_ns.tolist() == [(400 - 221 + 23) * US]


def test_what_is_removed_takes_no_time_but_its_neighbours_keep_their_order(tmp_path: Path):
    graph = graph_of(synchronised(), tmp_path)
    first, second = gpu_nodes(graph)
    gone = np.zeros(len(graph), bool)
    gone[first] = True
    schedule = simulate(removed(graph, gone))
    assert schedule.start_ns[first] == schedule.end_ns[first] == 16 * US, "as soon as its call returns"
    assert schedule.start_ns[second] == (308 - 221 + 20 + 3) * US, "its synchronisation costs what it does itself"
    calls = (graph.call == graph.call[np.flatnonzero(graph.waits)[0]]) & ~graph.on_gpu
    schedule = simulate(removed(graph, calls))
    assert schedule.start_ns[second] == (18 + 200 + 1) * US, "neither the call nor its wait is left, but the stream is"


def test_durations_of_single_nodes(tmp_path: Path):
    graph = graph_of(synchronised(), tmp_path)
    first = gpu_nodes(graph)[0]
    only = np.arange(len(graph)) == first
    assert starts(scaled(graph, only, 0.25)) == [18 * US, (308 - 150) * US]
    per_node = np.where(only, 0.5, 7.0)
    assert starts(scaled(graph, only, per_node)) == [18 * US, 208 * US], "what is not in the mask stays"
    assert starts(graph) == [18 * US, 308 * US], "a change makes a new graph"


def test_edges_that_are_taken_away_leave_the_others(tmp_path: Path):
    graph = graph_of(synchronised(), tmp_path)
    edges = graph.edges
    left = without_edges(graph, edges.kind == SYNC).edges
    kept = edges.kind != SYNC
    assert not kept.all()
    assert np.array_equal(left.lag_ns[kept], edges.lag_ns[kept])
    assert np.all(left.lag_ns[~kept] == UNBOUND)
    assert left.source is edges.source, "only lags change"


def test_edges_come_in_rows_whatever_their_order():
    target, source = np.array([2, 0, 2, 1]), np.array([1, 2, 0, 0])
    edges = edges_of(4, target, source, np.array([5.0, 0, 7, 1]), np.zeros(4, bool), np.full(4, LANE, np.uint8))
    assert edges.first.tolist() == [0, 1, 2, 4, 4]
    assert edges.source.tolist() == [2, 0, 1, 0]
    assert edges.lag_ns.tolist() == [0, 1, 5, 7]
    assert edges.target.tolist() == [0, 1, 2, 2]


def test_a_held_up_call_does_not_hold_its_kernel(tmp_path: Path):
    """The thread lost its core after it had launched: the kernel ran long before the call returned."""
    trace = TraceBuilder().step(0, 0, 2000 * US).launch("gemm_a", (100 * US, 1100 * US), (106 * US, 206 * US))
    graph = graph_of(trace, tmp_path)
    assert starts(graph) == [106 * US]
    assert starts(scale(graph, host=0.5)) == [56 * US], "not before its call begins"


def test_calls_that_return_late_do_not_hold_what_is_queued(tmp_path: Path):
    """On this host every launch returns long after its kernel could begin."""
    trace = TraceBuilder().step(0, 0, 1000 * US)
    for begin in range(50, 550, 100):
        trace.launch("gemm", (begin * US, (begin + 20) * US), ((begin + 5) * US, (begin + 7) * US))
    trace.launch("gemm", (600 * US, 620 * US), (605 * US, 805 * US))
    trace.launch("gemm", (630 * US, 650 * US), (806 * US, 810 * US))
    graph = graph_of(trace, tmp_path)
    assert starts(graph)[-1] == 806 * US
    assert starts(scale(graph, device=0.5))[-1] == 706 * US


@pytest.mark.parametrize(("gap", "faster"), [(15, 2), (300, 1)])
def test_work_that_waited_long_waited_for_another_stream(gap: int, faster: int, tmp_path: Path):
    """The later work starts 15 µs after that of the other stream, 5 ms after its launch: the event was not recorded.
    Where 300 µs lie between, the cause is not known."""
    trace = TraceBuilder().step(0, 0, 10_000 * US)
    trace.launch("gemm", (10 * US, 20 * US), (25 * US, 30 * US))
    trace.launch("all_reduce", (40 * US, 50 * US), (55 * US, 5_055 * US), stream=14)
    trace.launch("gemm", (60 * US, 70 * US), ((5_055 + gap) * US, (5_060 + gap) * US))
    graph = graph_of(trace, tmp_path)
    assert starts(graph)[-1] == (5_055 + gap) * US
    assert starts(scale(graph, device=0.5))[-1] == pytest.approx((5_055 / faster + gap) * US, abs=40 * US)


def test_work_whose_launch_was_lost_keeps_its_place_on_its_stream(tmp_path: Path):
    trace = TraceBuilder()
    launches_that_were_lost(trace)
    graph = graph_of(trace, tmp_path)
    assert starts(scale(graph, device=0.5)) == [(100 + 26 * k) * US for k in range(12)]
    assert starts(scale(graph, device=2)) == [(100 + 98 * k) * US for k in range(12)]


def test_a_backward_pass_is_waited_for(tmp_path: Path):
    trace = (
        TraceBuilder()
        .step(0, 0, 400 * US)
        .op("aten::sum", 0, 100 * US, **FORWARD)
        .op(
            "autograd::engine::evaluate_function: SumBackward0", 120 * US, 300 * US, AUTOGRAD,
            **BACKWARD,
        )
        .op("Optimizer.step#SGD.step", 300 * US, 350 * US)
    )  # fmt: skip
    trace.launch("gemm_a", (130 * US, 136 * US), (138 * US, 148 * US), tid=AUTOGRAD)
    graph = graph_of(trace, tmp_path)
    backward = (graph.lane >= 0) & (graph.lane != graph.lane[graph.step_end[0]])
    assert graph.duration_ns[backward].sum() == 180 * US
    assert simulate(scaled(graph, backward, 0.5)).step_end_ns.tolist() == [310 * US]
    assert np.count_nonzero(graph.edges.kind == HANDOVER) == 2


# ---- the loop


def test_a_step_of_a_loop_takes_what_its_bottleneck_takes():
    host_bound, device_bound = loop(host=20, device=5, queue=100), loop(host=2, device=50, queue=100)
    # The last kernel of a round ends its latency and its duration after the host; from then on each round the same.
    assert simulate(host_bound).step_ns == 8 * 22 + 3 + 5
    assert simulate(host_bound, 3).step_ns == 8 * 22
    assert simulate(device_bound, 3).step_ns == 8 * 51
    assert simulate(scale(device_bound, device=0.1), 3).step_ns == 8 * 6
    assert simulate(device_bound, 5).each_ns.tolist() == simulate(device_bound, 3).each_ns.tolist()


def test_a_full_queue_holds_the_host_to_the_pace_of_the_gpu():
    """The host is never more than a queue ahead, in every round."""
    graph = loop(host=2, device=50, queue=4)
    for rounds in (2, 3, 6):
        schedule = simulate(graph, rounds)
        call, kernel = np.arange(1, 24, 3), np.arange(2, 24, 3)
        ahead = [np.sum(schedule.end_ns[kernel] > schedule.start_ns[c]) for c in call]
        assert schedule.step_ns == 8 * 51
        # The launch of kernel i begins as kernel i-4 ends.
        assert (schedule.start_ns[call[4:]] == schedule.end_ns[kernel[:-4]]).all()
        assert max(ahead) <= 8
        assert schedule.step_end_ns[0] == schedule.end_ns[kernel[3]] + 2, "the host ends its step four kernels early"
    free = simulate(loop(host=2, device=50, queue=100), 6)
    assert free.step_end_ns[0] == 6 * 8 * 4, "without, it runs away"


def test_a_queue_of_one_is_a_synchronous_launch():
    assert simulate(loop(host=10, device=50, queue=1), 3).step_ns == 8 * (2 + 3 + 50), "call, latency, kernel"


def test_all_steps_of_a_round_count(tmp_path: Path):
    trace = TraceBuilder()
    for number, long in enumerate((100, 100, 100)):
        begin = sum((100, 100, 100)[:number]) * US
        trace.step(number, begin, begin + long * US)
        trace.launch("gemm_a", (begin + 10 * US, begin + 16 * US), (begin + 20 * US, begin + 50 * US))
    graph = graph_of(trace, tmp_path)
    assert graph.steps == 3
    assert simulate(graph).each_ns.tolist() == [100 * US] * 3
    schedule = simulate(scale(graph, device=10), 3)
    assert schedule.step_ns == pytest.approx(300 * US, rel=0.05), "kernels of 300 µs and the gaps between them"


# ---- what recordings may lack, or hold


def whole(trace: TraceBuilder) -> TraceBuilder:
    return trace.step(0, 0, 1000 * US).op("aten::mm", 10 * US, 900 * US)


def several_streams_in_a_graph(t: TraceBuilder) -> None:
    whole(t).call("cudaGraphLaunch", 20 * US, 40 * US, correlation=9)
    for k, (stream, begin, end) in enumerate(((7, 50, 90), (13, 92, 150), (7, 93, 120), (20, 152, 160), (7, 162, 170))):
        t.gpu(f"gemm_{k}", begin * US, end * US, stream=stream, correlation=9)


def two_threads_that_launch(t: TraceBuilder) -> None:
    whole(t).op("aten::add", 15 * US, 600 * US, 300)
    t.launch("gemm_a", (20 * US, 26 * US), (30 * US, 90 * US))
    t.launch("gemm_b", (22 * US, 29 * US), (91 * US, 99 * US), tid=300)
    t.launch("gemm_c", (200 * US, 260 * US), (262 * US, 290 * US), tid=300)
    t.launch("gemm_d", (210 * US, 220 * US), (222 * US, 250 * US))


def only_gpu_work(t: TraceBuilder) -> None:
    t.gpu("gemm_a", 10 * US, 60 * US).gpu("gemm_b", 62 * US, 90 * US).gpu("gemm_c", 300 * US, 310 * US, stream=13)


def no_calls(t: TraceBuilder) -> None:
    only_gpu_work(whole(t))


def no_ops(t: TraceBuilder) -> None:
    t.launch("gemm_a", (20 * US, 26 * US), (30 * US, 90 * US)).call("cudaDeviceSynchronize", 30 * US, 92 * US)
    t.launch("gemm_b", (120 * US, 126 * US), (130 * US, 190 * US))


def no_gpu_work(t: TraceBuilder) -> None:
    whole(t).call("cudaLaunchKernel", 20 * US, 30 * US, correlation=4).call("cudaDeviceSynchronize", 40 * US, 50 * US)


def only_a_step(t: TraceBuilder) -> None:
    t.step(0, 0, 1000 * US)


def a_step_without_length(t: TraceBuilder) -> None:
    whole(t).launch("gemm_a", (20 * US, 26 * US), (30 * US, 90 * US)).step(1, 1000 * US, 1000 * US)


def all_outside_of_the_steps(t: TraceBuilder) -> None:
    t.step(0, 500 * US, 600 * US)
    t.launch("gemm_a", (20 * US, 26 * US), (30 * US, 90 * US)).launch(
        "gemm_b", (700 * US, 706 * US), (710 * US, 790 * US)
    )


def kernels_before_their_launch(t: TraceBuilder) -> None:
    whole(t).launch("gemm_a", (20 * US, 26 * US), (12 * US, 19 * US)).launch(
        "gemm_b", (80 * US, 99 * US), (81 * US, 85 * US)
    )
    t.launch("gemm_c", (200 * US, 226 * US), (150 * US, 600 * US))


def no_time_at_all(t: TraceBuilder) -> None:
    whole(t).launch("gemm_a", (20 * US, 20 * US), (30 * US, 30 * US)).launch(
        "gemm_b", (20 * US, 20 * US), (30 * US, 30 * US)
    )
    t.op("aten::add", 50 * US, 50 * US).call("cudaDeviceSynchronize", 60 * US, 60 * US)


def times_that_run_backwards(t: TraceBuilder) -> None:
    whole(t).launch("gemm_a", (20 * US, 26 * US), (40 * US, 30 * US)).launch(
        "gemm_b", (60 * US, 50 * US), (70 * US, 90 * US)
    )
    t.op("aten::add", 100 * US, 80 * US)


def three_devices(t: TraceBuilder) -> None:
    whole(t)
    for k in range(12):
        t.launch(
            f"gemm_{k}",
            (20 * US + 9 * k * US, 26 * US + 9 * k * US),
            ((30 + 20 * k) * US, (45 + 20 * k) * US),
            device=k % 3,
        )
    t.call("cudaDeviceSynchronize", 200 * US, 280 * US)


def work_of_the_step_before(t: TraceBuilder) -> None:
    """Work that was queued when the recording began, and the host launches the next long before it has ended."""
    whole(t)
    for k in range(5):
        t.gpu(f"old_{k}", (10 + 50 * k) * US, (58 + 50 * k) * US)
        t.launch(f"gemm_{k}", (20 * US + 9 * k * US, 26 * US + 9 * k * US), ((300 + 20 * k) * US, (318 + 20 * k) * US))


def launches_that_were_lost(t: TraceBuilder) -> None:
    """Every third launch is missing, while the host runs ahead."""
    whole(t)
    for k in range(12):
        work = ((100 + 50 * k) * US, (148 + 50 * k) * US)
        if k % 3 == 1:
            t.gpu(f"lost_{k}", *work)
        else:
            t.launch(f"gemm_{k}", (20 * US + 9 * k * US, 26 * US + 9 * k * US), work)


def a_lost_launch_while_the_thread_stands_still(t: TraceBuilder) -> None:
    t.step(0, 0, 1000 * US)
    t.op("aten::sum", 0, 100 * US, **FORWARD)
    node = "autograd::engine::evaluate_function: SumBackward0"
    t.op(node, 120 * US, 700 * US, AUTOGRAD, **BACKWARD)
    t.launch("gemm_a", (130 * US, 136 * US), (138 * US, 148 * US), tid=AUTOGRAD)
    t.gpu("lost", 400 * US, 450 * US).gpu("lost", 500 * US, 550 * US, stream=13)
    t.op("aten::add", 800 * US, 900 * US)


def a_pass_of_two_threads(t: TraceBuilder) -> None:
    """On two devices in turn: the second begins 50 µs after the first has ended."""
    t.step(0, 0, 1000 * US)
    t.op("aten::sum", 0, 100 * US, **FORWARD)
    node = "autograd::engine::evaluate_function: SumBackward0"
    t.op(node, 120 * US, 300 * US, AUTOGRAD, **BACKWARD).op(node, 350 * US, 500 * US, AUTOGRAD + 1, **BACKWARD)
    t.launch("gemm_a", (130 * US, 136 * US), (138 * US, 148 * US), tid=AUTOGRAD)
    t.launch("gemm_b", (360 * US, 366 * US), (369 * US, 400 * US), tid=AUTOGRAD + 1, device=1)
    t.op("aten::add", 800 * US, 900 * US).launch("gemm_c", (810 * US, 816 * US), (819 * US, 830 * US))


def a_pass_of_two_threads_at_once(t: TraceBuilder) -> None:
    t.step(0, 0, 1000 * US)
    t.op("aten::sum", 0, 100 * US, **FORWARD)
    node = "autograd::engine::evaluate_function: SumBackward0"
    t.op(node, 120 * US, 300 * US, AUTOGRAD, **BACKWARD).op(node, 150 * US, 500 * US, AUTOGRAD + 1, **BACKWARD)
    t.launch("gemm_a", (200 * US, 206 * US), (209 * US, 248 * US), tid=AUTOGRAD)
    t.launch("gemm_b", (160 * US, 166 * US), (169 * US, 400 * US), tid=AUTOGRAD + 1, device=1)
    t.op("aten::add", 800 * US, 900 * US).launch("gemm_c", (810 * US, 816 * US), (819 * US, 830 * US))


def a_stream_that_nothing_was_seen_launched_on(t: TraceBuilder) -> None:
    whole(t).launch("gemm_a", (20 * US, 26 * US), (30 * US, 90 * US))
    t.gpu("lost", 40 * US, 101 * US, stream=13).call("cudaDeviceSynchronize", 100 * US, 103 * US)
    t.launch("gemm_b", (120 * US, 126 * US), (129 * US, 190 * US))


ODD = (
    several_streams_in_a_graph, two_threads_that_launch, only_gpu_work, no_calls, no_ops, no_gpu_work, only_a_step,
    a_step_without_length, all_outside_of_the_steps, kernels_before_their_launch, no_time_at_all,
    times_that_run_backwards, three_devices, work_of_the_step_before, launches_that_were_lost,
    a_lost_launch_while_the_thread_stands_still, a_pass_of_two_threads, a_pass_of_two_threads_at_once,
    a_stream_that_nothing_was_seen_launched_on,
)  # fmt: skip


def check_sound(graph: Graph, slack_ns: float = 0.5) -> None:
    """Checks that it replays as recorded; whatever is changed, all times are valid, and a faster host takes no
    longer."""
    schedule = simulate(graph)
    nodes = graph.on_gpu
    assert np.abs(schedule.start_ns - graph.recorded_start_ns)[nodes].max(initial=0) <= slack_ns
    steps = graph.timeline.steps
    if graph.timeline.main_thread >= 0:
        assert np.abs(schedule.step_end_ns - (steps.end_ns - steps.window[0])).max(initial=0) <= slack_ns
    assert (graph.duration_ns >= 0).all()
    carried = carried_over(graph)
    for one in (graph, carried, scale(graph, host=0.5), scale(graph, device=3), scale(graph, *[0.0] * 5)):
        looped = simulate(one, 3)
        assert np.isfinite(looped.start_ns).all()
        assert np.isfinite(looped.end_ns).all()
        assert (looped.end_ns > NEVER / 2).all(), "something waits for nothing that ever was"
        assert (np.diff(looped.finished_ns.reshape(-1)) >= -slack_ns).all()
    assert simulate(scale(graph, host=0.5), 3).step_ns <= simulate(graph, 3).step_ns + slack_ns
    assert np.isfinite([value for value in _fields(sensitivities(carried)) if value is not None]).all()
    if not (graph.lane >= 0).any():
        return  # there is nothing to take out
    unprofiled = remove_profiler(carried)
    assert 0 <= unprofiled.low_ns <= unprofiled.step_ns <= unprofiled.high_ns
    assert unprofiled.step_ns <= simulate(carried, 3).step_ns + slack_ns


def _fields(one) -> list:
    return [getattr(one, name) for name in one.__slots__]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("origin", [0, ORIGIN], ids=["", "unix"])
@pytest.mark.parametrize("odd", ODD, ids=lambda f: f.__name__.replace("_", " "))
def test_odd_recordings_replay(odd: Callable[[TraceBuilder], None], origin: int, tmp_path: Path):
    trace = TraceBuilder(gpus=3)
    odd(trace)
    for event in trace.events:
        event["ts"] += origin
    check_sound(graph_of(trace, tmp_path))

"""The replay on programs small enough to follow by hand, on recordings that lack something, and at speed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cpu_time import times_as_long
from helpers.make_trace import AUTOGRAD, TraceBuilder
from helpers.timeline import timeline_of

from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.build.latencies import prompt
from gpuprof.replay.graph import (
    DEVICE,
    HANDOVER,
    HOST,
    LANE,
    LAUNCH,
    NEVER,
    QUEUE,
    STREAM,
    SYNC,
    UNBOUND,
    Graph,
    edges_of,
)
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.simulate import simulate
from gpuprof.replay.transform import removed, scale, scaled, without_edges, without_waits
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, without
from gpuprof.replay.unprofiled.profiler_fit import FIT_TOLERANCE, NEAR_ENOUGH, at_step, remove_profiler

US = 1_000
FORWARD: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 0}
BACKWARD: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 1}
ORIGIN = 1_700_000_000_000_000_000
"""Recorded times are Unix times: so large that a float no longer tells single nanoseconds apart."""


def graph_of(trace: TraceBuilder, folder: Path) -> Graph:
    return build(timeline_of(trace.write(folder / "trace.json")))


def gpu_nodes(graph: Graph) -> np.ndarray:
    """The node of every GPU event, in the order of the trace."""
    nodes = np.flatnonzero(graph.on_gpu)
    return nodes[np.argsort(graph.gpu_row[nodes])]


def starts(graph: Graph, rounds: int = 1) -> list[float]:
    return simulate(graph, rounds).start_ns[gpu_nodes(graph)].tolist()


# ---- by hand


def idle_kernels(ends: int = 500 * US) -> TraceBuilder:
    """Two kernels with all the time in the world, and a step that ends with the host's work."""
    return (
        TraceBuilder()
        .step(0, 0, ends)
        .op("aten::mm", 100 * US, 120 * US)
        .launch("gemm_a", (105 * US, 111 * US), (114 * US, 154 * US))
        .op("aten::mm", 300 * US, 320 * US)
        .launch("gemm_b", (305 * US, 311 * US), (314 * US, 374 * US))
    )


def synchronised() -> TraceBuilder:
    """A kernel of 200 µs that the host waits for, and one after that."""
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
    # What the call does itself is not seen, so the usual time of a return is taken: far less than its 201 µs.
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


def loop(host: int, device: int, queue: int, kernels: int = 8, own: int = 2, gap: int = 1, latency: int = 3) -> Graph:
    """One round: launches of `host` ns of work and `own` ns of call each, kernels of `device` ns, `queue` at most."""
    base = np.arange(kernels) * 3
    work, call, kernel = base, base + 1, base + 2
    n = 3 * kernels
    parts = [
        (call, work, np.zeros(kernels), LANE),
        (work, np.roll(call, 1), np.zeros(kernels), LANE),
        (kernel, call, np.full(kernels, latency), LAUNCH),
        (kernel, np.roll(kernel, 1), np.full(kernels, gap), STREAM),
    ]
    if queue <= kernels:
        parts.append((call, np.roll(kernel, queue), np.zeros(kernels), QUEUE))
    target, source, lag = (np.concatenate([part[k] for part in parts]) for k in range(3))
    kind = np.concatenate([np.full(kernels, part[3], np.uint8) for part in parts])
    on_gpu = np.arange(n) % 3 == 2
    no = np.full(n, -1, np.int64)
    before = np.full(n, NEVER)
    before[call[-1]] = 0
    duration = np.tile([host, own, device], kernels).astype(np.float64)
    return Graph(
        timeline=None,  # pyright: ignore[reportArgumentType]
        duration_ns=duration, resource=np.where(on_gpu, DEVICE, HOST).astype(np.uint8),
        edges=edges_of(n, target, source, lag.astype(np.float64), np.zeros(len(target), bool), kind),
        before_ns=before, recorded_start_ns=np.zeros(n), recorded_end_ns=np.zeros(n),
        lane=np.where(on_gpu, -1, 0).astype(np.int32), scope=no, call=no, gpu_row=np.where(on_gpu, np.arange(n), -1),
        waits=np.zeros(n, bool), phase=np.zeros(n, np.uint8), step=np.zeros(n, np.int64), step_end=call[-1:],
    )  # fmt: skip


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


# ---- what recordings may lack or hold


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
    """It was queued when the recording began, and the host has launched the next long before that has ended."""
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
    """Of two devices, one after the other: the second begins 50 µs after the first has ended."""
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
    """It replays as recorded; whatever is done to it, all times are times, and a faster host takes no longer."""
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
    assert at_step(graph, alone, (1 + NEAR_ENOUGH / 2) * alone.step_ns) is alone


@pytest.mark.parametrize("kernel_us", [3, 15, 30])
def test_a_measured_step_is_met(kernel_us: int, tmp_path: Path):
    """Host-bound, nearly balanced and GPU-bound, down to what no removal explains: another clock does."""
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

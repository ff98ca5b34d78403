"""The replay's oracle: compared with results worked out by hand and with an even slower simulator, and checked to
produce only possible runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.quick import seeds
from helpers.random_programs import make_case, seeded
from helpers.replay_oracle import (
    SECOND,
    UNCHANGED,
    Backward,
    Call,
    Cpu,
    Executed,
    GraphLaunch,
    Instruction,
    Launch,
    Machine,
    Op,
    Program,
    Rates,
    Record,
    Sync,
    Wait,
    run,
)
from helpers.ticking_oracle import tick

MACHINE = Machine(
    launch_own_ns=10, latency_ns=6, gap_ns=2, event_gap_ns=4, queue_items=1024, sync_own_ns=6, sync_return_ns=8,
    copy_own_ns=10, copy_return_ns=12, record_own_ns=2, wait_own_ns=2, graph_own_ns=20,
)  # fmt: skip
HALF, TWICE = Fraction(1, 2), Fraction(2)


def executed(*body: Instruction, rates: Rates = UNCHANGED, **machine: int) -> Executed:
    """Runs a program of one step on the machine above, or on one with differences."""
    return run(Program((body,)), replace(MACHINE, **machine), rates)


def spans(done: Executed) -> list[tuple[int, int]]:
    return [(work.start, work.end) for work in done.work]


# ---- the oracle, compared with results worked out by hand


def test_a_launch_starts_after_its_latency_and_the_next_after_a_gap():
    done = executed(Cpu(100), Launch(7, 50), Launch(7, 30), Cpu(1000), Launch(7, 20))
    assert spans(done) == [(116, 166), (168, 198), (1136, 1156)]
    assert done.step_end == [1130]


def test_streams_overlap_until_one_waits_for_an_event():
    done = executed(Launch(7, 50), Record(7, 1), Launch(7, 90), Launch(13, 10), Wait(13, 1), Launch(13, 20))
    assert spans(done) == [(16, 66), (68, 158), (38, 48), (70, 90)]


def test_a_stream_waits_for_all_its_events():
    done = executed(
        Launch(7, 200), Record(7, 1), Launch(13, 80), Record(13, 2), Wait(20, 1), Wait(20, 2), Launch(20, 10)
    )  # fmt: skip
    assert spans(done) == [(16, 216), (28, 108), (220, 230)]


def test_an_event_stands_for_nothing_if_nothing_was_launched():
    done = executed(Record(7, 1), Launch(7, 50), Wait(13, 1), Launch(13, 20), Sync(event=1))
    assert spans(done) == [(18, 68), (30, 50)]
    assert done.step_end == [2 + 10 + 2 + 10 + 6]


def test_a_synchronisation_returns_after_what_it_waits_for():
    assert executed(Launch(7, 50), Sync(stream=7)).step_end == [16 + 50 + 8]
    assert executed(Launch(7, 50), Sync(stream=7), Sync(stream=7)).step_end == [16 + 50 + 8 + 6]
    assert executed(Launch(7, 50), Launch(13, 90), Sync(stream=7)).step_end == [16 + 50 + 8]
    assert executed(Launch(7, 50), Launch(13, 90), Sync()).step_end == [10 + 16 + 90 + 8]
    assert executed(Launch(7, 50), Record(7, 1), Launch(7, 90), Sync(event=1)).step_end == [16 + 50 + 8]


def test_a_full_queue_holds_the_call_before_its_own_work():
    done = executed(*[Launch(7, 100)] * 5, queue_items=2)
    # The third may be pushed when the first has ended, at 116, the fourth when the second has, and so on.
    assert spans(done) == [(16, 116), (118, 218), (220, 320), (322, 422), (424, 524)]
    calls = [(s.start, s.end) for s in done.host if s.category == "cuda_runtime"]
    assert calls == [(0, 10), (10, 20), (20, 126), (126, 228), (228, 330)]
    late = executed(Launch(7, 100), Launch(7, 20), Launch(7, 20), queue_items=1)
    assert spans(late) == [(16, 116), (132, 152), (168, 188)], "one that waited has its latency from then on"
    assert late.step_end == [162]


def test_a_graph_is_one_item_of_a_queue_until_its_last_kernel_has_ended():
    done = executed(GraphLaunch(7, ((0, 50), (6, 20))), Launch(7, 10), Launch(7, 10), queue_items=2)
    assert spans(done) == [(26, 76), (82, 102), (104, 114), (118, 128)]
    assert done.step_end == [102 + 10]


def test_a_blocking_copy_ends_after_the_copy():
    done = executed(Launch(7, 50), Launch(7, 30, "copy", blocking=True), Cpu(4))
    assert spans(done) == [(16, 66), (68, 98)]
    assert done.step_end == [98 + 12 + 4]
    alone = {rates: executed(Launch(7, 50, "copy", blocking=True), rates=rates, copy_own_ns=200).step_end
             for rates in (UNCHANGED, Rates(host=HALF), Rates(transfer=HALF))}  # fmt: skip
    assert list(alone.values()) == [[200 + 6 + 50 + 12]] * 2 + [[100 + 6 + 25 + 12]], "its own work is the transfer's"


def test_the_main_thread_stands_still_in_a_backward():
    done = executed(Cpu(10), Backward((Op("aten::mm", (Cpu(20), Launch(7, 50), Cpu(30))),)), Op("aten::add", (Cpu(5),)))
    threads = {s.name: (s.thread, s.start, s.end) for s in done.host}
    assert threads["aten::mm"] == (AUTOGRAD, 10, 70)
    assert threads["aten::add"] == (MAIN, 70, 75)
    assert threads["ProfilerStep#0"] == (MAIN, 0, 75)


def test_the_kernels_of_a_graph_keep_their_gaps():
    done = executed(GraphLaunch(7, ((0, 50), (6, 20), (1, 30))), Launch(7, 10))
    assert spans(done) == [(26, 76), (82, 102), (103, 133), (135, 145)]
    assert done.step_end == [30]


def test_each_resource_is_changed_alone():
    body = (
        Op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", (Cpu(40),)),
        Cpu(20), Call("cudaMalloc", 60), Launch(7, 100), Launch(7, 80, "copy"), Launch(13, 60, "communication"),
        Sync(),
    )  # fmt: skip
    plain = [(136, 236), (238, 318), (156, 216)]
    assert spans(executed(*body)) == plain
    assert spans(executed(*body, rates=Rates(host=HALF))) == [(91, 191), (193, 273), (101, 161)]
    assert spans(executed(*body, rates=Rates(input=HALF))) == [(a - 20, b - 20) for a, b in plain]
    assert spans(executed(*body, rates=Rates(device=TWICE))) == [(136, 336), (338, 418), (156, 216)]
    assert spans(executed(*body, rates=Rates(transfer=HALF))) == [(136, 236), (238, 278), (156, 216)]
    assert spans(executed(*body, rates=Rates(communication=HALF))) == [(136, 236), (238, 318), (156, 186)]


# ---- the oracle, against a simulator that only ever knows the present nanosecond


@pytest.mark.parametrize("seed", seeds(30))
def test_the_oracle_agrees_with_a_clock_that_ticks(seed: int):
    case = make_case(seeded(seed), grain=2)
    done = run(case.program, case.machine)
    starts, step_end = tick(case.program, case.machine)
    # Two threads push in the order of their clocks; what they do in the same nanosecond has no order.
    assert sorted(work.start for work in done.work) == sorted(starts)
    assert done.step_end == step_end


# ---- its programs


def launched_at(done: Executed, m: Machine) -> dict[int, int]:
    """When the own work of each call was done; of copies that block, on a stream that was not full."""
    blocking = {work.correlation for work in done.work if "Pageable" in work.name}
    calls = [span for span in done.host if span.correlation]
    return {c.correlation: c.start + m.copy_own_ns if c.correlation in blocking else c.end for c in calls}


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_possible(seed: int):
    """Nothing impossible happens: no overlaps on a thread or a stream, no work before its launch."""
    case = make_case(seeded(seed))
    done, m = run(case.program, case.machine), case.machine
    launched = launched_at(done, m)
    by_stream, by_thread = defaultdict(list), defaultdict(list)
    for work in done.work:
        by_stream[work.stream].append(work)
        assert work.within_graph or work.start >= launched[work.correlation] + m.latency_ns
    for items in by_stream.values():
        for before, after in pairwise(items):
            assert after.start - before.end >= (1 if after.within_graph else m.gap_ns)
    for span in done.host:
        by_thread[span.thread].append((span.start, -span.end))
    for thread in by_thread.values():
        open_until: list[int] = []
        for start, end in sorted(thread):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert start < -end
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)
    main = [s for s in done.host if s.thread == MAIN and s.category != "user_annotation"]
    passes = [s for s in done.host if s.thread == AUTOGRAD]
    assert not [(a, b) for a in main for b in passes if a.start < b.end and b.start < a.end]


@pytest.mark.parametrize("seed", range(20))
def test_runs_show_every_constant(seed: int):
    """Otherwise no reader of the trace could know it."""
    case = make_case(seeded(seed))
    done, m = run(case.program, case.machine), case.machine
    calls = {s.correlation: s for s in done.host if s.correlation}
    durations = defaultdict(list)
    for call in calls.values():
        durations[call.name].append(call.end - call.start)
    by_stream = defaultdict(list)
    for work in done.work:
        by_stream[work.stream].append(work)
    first = [w for w in done.work if not w.within_graph]
    gaps = [b.start - a.end for s in by_stream.values() for a, b in pairwise(s) if not b.within_graph]
    launched = launched_at(done, m)
    lags = [work.start - launched[work.correlation] for work in first]
    blocking = [work for work in first if "Pageable" in work.name]
    assert min(lags) == min(work.start - launched[work.correlation] for work in blocking) == m.latency_ns
    assert {calls[work.correlation].end - work.end for work in blocking} == {m.copy_return_ns}
    assert min(gaps) == m.gap_ns
    assert min(durations["cudaLaunchKernel"]) == min(durations["cudaLaunchKernelExC"]) == m.launch_own_ns
    for name in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"):
        if name in durations:
            assert min(durations[name]) == m.sync_own_ns < max(durations[name])
    full = [c for c in calls.values() if c.name.startswith("cudaLaunchK") and c.end - c.start > m.launch_own_ns]
    assert bool(full) == (m.queue_items <= 16)


def test_programs_are_of_all_kinds():
    """The generator reaches all that it is meant to cover."""
    runs = [(case, run(case.program, case.machine)) for case in map(make_case, map(seeded, range(60)))]
    names = [{span.name for span in done.host} for _, done in runs]
    assert all(
        sum(name in found for found in names) >= 5
        for name in ("cudaGraphLaunch", "cudaStreamWaitEvent", "cudaDeviceSynchronize", "cudaEventSynchronize",
                     "cudaMemsetAsync", "cudaMalloc", "train_backward", "MmBackward0")
    )  # fmt: skip
    for found in (
        [case.records for case, _ in runs],
        [case.machine.queue_items <= 16 for case, _ in runs],
        [bool(case.program.second) for case, _ in runs],
        [any(s.thread == SECOND and s.category == "cuda_runtime" for s in done.host) for _, done in runs],
        [sum("Pageable" in w.name for w in done.work) > 6 for _, done in runs],
        [len({w.stream for w in done.work}) >= 3 for _, done in runs],
    ):
        assert 5 <= sum(found) <= 55

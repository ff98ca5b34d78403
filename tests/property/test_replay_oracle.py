"""The replay against its oracle: given the trace of a random program only, it must say what the program would do
with a resource made faster or slower, to the nanosecond. And the oracle against a simulator that is slower still."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.budgets import budget
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.oracle_trace import write
from helpers.quick import few
from helpers.random_programs import Case, Choose, make_case, seeded, showing
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
    Work,
    run,
)
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.calibration import thresholds
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import Graph
from gpuprof.replay.simulate import Schedule, simulate
from gpuprof.replay.transform import scale
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.read import read_trace

MACHINE = Machine(
    launch_own_ns=10, latency_ns=6, gap_ns=2, event_gap_ns=4, queue_items=1024, sync_own_ns=6, sync_return_ns=8,
    copy_own_ns=10, copy_return_ns=12, record_own_ns=2, wait_own_ns=2, graph_own_ns=20,
)  # fmt: skip
HALF, TWICE = Fraction(1, 2), Fraction(2)


def seeds(count: int) -> list:
    """Seeds below `count`, every fifth of them in the quick run."""
    return few(range(count), [str(seed) for seed in range(0, count, 5)])


def executed(*body: Instruction, rates: Rates = UNCHANGED, **machine: int) -> Executed:
    """A program of one step on the machine above, or one that differs from it."""
    return run(Program((body,)), replace(MACHINE, **machine), rates)


def spans(done: Executed) -> list[tuple[int, int]]:
    return [(work.start, work.end) for work in done.work]


# ---- the oracle, by hand


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


@dataclass
class TickStream:
    waiting: list[Waiting] = field(default_factory=list)
    done_at: int = -(10**9)
    """When its last kernel or copy ended, or will end."""
    items: list[int] = field(default_factory=list)
    """Of each item that was pushed the work that ends it."""


@dataclass
class Waiting:
    number: int
    ready: int
    ns: int
    gap: int | None
    awaited: list[int]


def tick(program: Program, m: Machine) -> tuple[list[int], list[int]]:
    """Start of every kernel or copy in the order of launches, and the ends of the steps; one ns after the other."""
    lanes = [[*flat(step), None] for step in program.steps]
    threads = [[i for lane in lanes for i in lane], flat(program.second)]
    streams: dict[int, TickStream] = defaultdict(TickStream)
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    at_event: dict[int, int | None] = {}
    held: dict[int, list[int]] = defaultdict(list)
    last: dict[int, int] = {}
    step_end: list[int] = []
    # Of each thread: until when it works; else what its call waits for.
    works = [0, 0]
    waits: list[list[tuple[int, int]]] = [[], []]
    t = 0

    def begin_work() -> None:
        for stream in streams.values():
            while stream.waiting:
                work = stream.waiting[0]
                after = m.gap_ns if work.gap is None else work.gap
                ready = t >= work.ready and t >= stream.done_at + after
                if not ready or not all(e in end and t >= end[e] + m.event_gap_ns for e in work.awaited):
                    break
                stream.waiting.pop(0)
                start[work.number], end[work.number] = t, t + work.ns
                stream.done_at = t + work.ns

    def push(stream: int, own_ns: int, ns: int, gap: int | None = None) -> int:
        number = len(order)
        order.append(number)
        awaited = held.pop(stream, []) if gap is None else []
        ready = t + own_ns + m.latency_ns if gap is None else 0
        streams[stream].waiting.append(Waiting(number, ready, ns, gap, awaited))
        if gap is None:
            streams[stream].items.append(number)
        streams[stream].items[-1] = number
        last[stream] = number
        return number

    def full(stream: int) -> bool:
        return sum(n not in end or end[n] > t for n in streams[stream].items) >= m.queue_items

    order: list[int] = []
    while any(threads) or any(s.waiting for s in streams.values()) or any(works[k] > t for k in (0, 1)):
        begin_work()
        for k, todo in enumerate(threads):
            while t >= works[k] and all(e in end and t >= end[e] + more for e, more in waits[k]):
                if not todo:
                    break
                i = todo[0]
                if isinstance(i, (Launch, GraphLaunch)) and full(i.stream):
                    break
                todo.pop(0)
                works[k], waits[k] = t, []
                if i is None:
                    step_end.append(t)
                elif isinstance(i, (Cpu, Call)):
                    works[k] += i.ns
                elif isinstance(i, Launch):
                    own = m.copy_own_ns if i.blocking else m.launch_own_ns
                    number = push(i.stream, own, i.ns)
                    works[k] += own
                    waits[k] = [(number, m.copy_return_ns)] if i.blocking else []
                elif isinstance(i, GraphLaunch):
                    works[k] += m.graph_own_ns
                    push(i.stream, m.graph_own_ns, i.kernels[0][1])
                    for gap, ns in i.kernels[1:]:
                        push(i.stream, m.graph_own_ns, ns, gap)
                elif isinstance(i, Record):
                    at_event[i.event] = last.get(i.stream)
                    works[k] += m.record_own_ns
                elif isinstance(i, Wait):
                    held[i.stream] += [e for e in [at_event[i.event]] if e is not None]
                    works[k] += m.wait_own_ns
                elif isinstance(i, Sync):
                    if i.event is not None:
                        found = [at_event[i.event]]
                    else:
                        found = [last.get(s) for s in ([i.stream] if i.stream is not None else list(last))]
                    works[k] += m.sync_own_ns
                    waits[k] = [(e, m.sync_return_ns) for e in found if e is not None]
        t += 1
    return [start[n] for n in order], step_end


def flat(body: tuple[Instruction, ...]) -> list[Instruction | None]:
    """Instructions in the order in which they run; what is an op does not matter to a clock."""
    found: list[Instruction | None] = []
    for instruction in body:
        found += flat(instruction.body) if isinstance(instruction, (Op, Backward)) else [instruction]
    return found


@pytest.mark.parametrize("seed", seeds(30))
def test_the_oracle_agrees_with_a_clock_that_ticks(seed: int):
    case = make_case(seeded(seed), grain=2)
    done = run(case.program, case.machine)
    starts, step_end = tick(case.program, case.machine)
    # Two threads push in the order of their clocks; what they do in the same nanosecond has no order.
    assert sorted(work.start for work in done.work) == sorted(starts)
    assert done.step_end == step_end


# ---- programs and traces


def drawn(draw: st.DrawFn) -> Choose:
    return lambda low, high: draw(st.integers(low, high))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return make_case(drawn(draw))


def read(case: Case, folder: Path, origin: int = 0) -> tuple[Executed, Timeline]:
    done = run(case.program, case.machine)
    path = write(done, folder / "trace.json", records=case.records, origin=origin)
    timeline = build_timeline(read_trace(path), step="^ProfilerStep#")
    assert timeline is not None
    return done, timeline


def launched_at(done: Executed, m: Machine) -> dict[int, int]:
    """When the own work of each call was done; of copies that block, on a stream that was not full."""
    blocking = {work.correlation for work in done.work if "Pageable" in work.name}
    calls = [span for span in done.host if span.correlation]
    return {c.correlation: c.start + m.copy_own_ns if c.correlation in blocking else c.end for c in calls}


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_possible(seed: int):
    """What no machine can do does not happen: overlaps on a thread or a stream, work before its launch."""
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
    """Or no reader of the trace could know it."""
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


@pytest.mark.parametrize("seed", range(20))
def test_traces_read_back_as_they_ran(seed: int, tmp_path: Path):
    case = make_case(seeded(seed))
    done, timeline = read(case, tmp_path, origin=5_000_001)
    trace = timeline.trace
    assert (trace.gpu.start_ns - 5_000_001).tolist() == [w.start for w in done.work]
    assert (trace.gpu.end_ns - 5_000_001).tolist() == [w.end for w in done.work]
    assert trace.gpu.stream.tolist() == [w.stream for w in done.work]
    assert trace.calls.correlation[timeline.links.call].tolist() == [w.correlation for w in done.work]
    assert timeline.members.tolist() == list(range(len(done.work)))
    assert (timeline.steps.end_ns - 5_000_001).tolist() == done.step_end
    name = {track: thread.thread for track, thread in enumerate(trace.threads)}
    assert name[timeline.main_thread] == str(MAIN)
    passes = any(span.thread == AUTOGRAD for span in done.host)
    assert [name[thread] for thread in timeline.host.autograd] == ([str(AUTOGRAD)] if passes else [])
    kinds = {"compute": 0, "communication": 1, "copy": 2, "memset": 2}
    assert timeline.kind.tolist() == [kinds[w.kind] for w in done.work]
    assert len(trace.syncs) == (len(done.records) if case.records else 0)


def test_programs_are_of_all_kinds():
    """The generator reaches what it is there for."""
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


# ---- the replay

CHANGES = {
    "nothing": Rates(),
    "host halved": Rates(host=HALF),
    "host doubled": Rates(host=TWICE),
    "input halved": Rates(input=HALF),
    "input doubled": Rates(input=TWICE),
    "device halved": Rates(device=HALF),
    "device doubled": Rates(device=TWICE),
    "transfer halved": Rates(transfer=HALF),
    "transfer doubled": Rates(transfer=TWICE),
    "communication halved": Rates(communication=HALF),
    "communication doubled": Rates(communication=TWICE),
    "host halved, GPU doubled": Rates(host=HALF, device=TWICE, communication=TWICE),
    "all halved": Rates(*[HALF] * 5),
}


def factors(rates: Rates) -> dict[str, float]:
    return {f.name: float(getattr(rates, f.name)) for f in fields(rates)}


def starts_as_recorded(recorded: Executed, rerun: Executed) -> list[Work]:
    """Starts in the rerun, in the order of the recorded work: two threads may have pushed in another order there."""
    streams = defaultdict(list)
    for work in rerun.work:
        streams[work.stream].append(work)
    return [streams[work.stream].pop(0) for work in recorded.work]


def check_replay(case: Case, folder: Path) -> None:
    """The replay of the trace says of every change what the oracle says."""
    recorded, timeline = read(case, folder, origin=5_000_001)
    graph = build(timeline)
    for name, rates in CHANGES.items():
        truth = run(case.program, case.machine, rates)
        compare(
            name, graph, simulate(scale(graph, **factors(rates))), starts_as_recorded(recorded, truth), truth.step_end
        )


def compare(name: str, graph: Graph, schedule: Schedule, work: list[Work], step_end: list[int]) -> None:
    got = np.full(len(work), np.nan)
    got[graph.gpu_row[graph.on_gpu]] = schedule.start_ns[graph.on_gpu]
    wrong = [k for k, item in enumerate(work) if got[k] != item.start]
    if wrong:
        first = min(wrong, key=lambda k: work[k].start)
        late = got[first] - work[first].start
        pytest.fail(f"{name}: {len(wrong)} of {len(work)} starts differ; first, by {late:+} ns, {work[first]}")
    assert schedule.step_end_ns.tolist() == step_end, name


REAL = Machine(
    launch_own_ns=3000, latency_ns=2200, gap_ns=800, event_gap_ns=1200, queue_items=1024, sync_own_ns=1600,
    sync_return_ns=2600, copy_own_ns=3000, copy_return_ns=2000, record_own_ns=600, wait_own_ns=700, graph_own_ns=6000,
)  # fmt: skip


def launches(stream: int, count: int, ns: int) -> list[Instruction]:
    return [Launch(stream, ns) for _ in range(count)]


def engine(*body: Instruction) -> Op:
    return Op("autograd::engine::evaluate_function: MmBackward0", body)


ALONE: dict[str, list[Instruction]] = {
    "the latency counts from the end of a call": [Cpu(60_000), Launch(7, 4000)],
    "a graph's call is longer than other launches": [Cpu(60_000), GraphLaunch(7, ((0, 4000), (200, 6000)))],
    "a copy that blocks, on an idle stream": [Cpu(60_000), Launch(7, 40_000, "copy", blocking=True)],
    "a copy that blocks, behind other work": [Launch(7, 90_000), Launch(7, 40_000, "copy", blocking=True)],
    "a synchronisation of another stream than the last": [Launch(7, 90_000), Launch(13, 10_000), Sync(stream=7)],
    "a synchronisation of a stream that was never used": [Launch(13, 5000), Cpu(5600), Sync(stream=20), Cpu(400)],
    "a synchronisation of the device": [Launch(7, 90_000), Launch(13, 30_000), Sync()],
    "a synchronisation just after the work has ended": [Launch(7, 2000), Cpu(4400), Sync(stream=7), Cpu(400)],
    "an event, while its stream goes on": [Launch(7, 90_000), Record(7, 99), Launch(7, 50_000), Sync(event=99)],
    "a wait for an event of another stream": [
        Launch(7, 90_000), Record(7, 99), Launch(13, 2000), Wait(13, 99), Launch(13, 4000)
    ],
    "a wait for two events": [
        Launch(7, 90_000), Record(7, 98), Launch(13, 70_000), Record(13, 99), Wait(20, 98), Wait(20, 99), Launch(20, 40)
    ],
    "a backward that ends as the next op begins": [
        Cpu(4000), Backward((engine(Cpu(6000), Launch(7, 90_000)),)), Op("aten::add", (Launch(7, 4000),))
    ],
    "host time between the ops of a backward": [
        Backward((engine(Cpu(6000)), Cpu(30_000), engine(Cpu(2000), Launch(7, 2000)))), Cpu(400), Launch(7, 2000)
    ],
    "a backward that ends the step": [Cpu(4000), Backward((engine(Cpu(6000), Launch(7, 90_000), Sync(stream=7)),))],
    "a backward with a copy that blocks": [Backward((engine(Launch(7, 40_000, "copy", blocking=True)),)), Cpu(400)],
    "a host that runs ahead": launches(7, 20, 30_000),
}  # fmt: skip
"""What may go wrong, each alone: the body of two steps."""

FULL: dict[str, list[Instruction]] = {
    "a queue that is full": launches(7, 12, 20_000),
    "a queue that fills only if the GPU is slower": launches(7, 12, 3600),
    "a queue that is full on another stream than before": [
        Launch(13, 90_000), *launches(13, 5, 20_000), Launch(7, 900), Sync()
    ],
    "a queue whose items wait for an event": [
        Launch(7, 400_000), Record(7, 99), Wait(13, 99), *launches(13, 12, 2000)
    ],
    "a copy that blocks and meets a full queue": [
        Launch(7, 60_000), *launches(7, 4, 200), Launch(7, 40_000, "copy", blocking=True), Cpu(400)
    ],
    "a copy that blocks, whose launch is slow, after it met a full queue": [
        Launch(7, 60_000), *launches(7, 3, 200), Launch(7, 40_000, "copy", blocking=True), Cpu(400)
    ],
}  # fmt: skip
"""The same, with a queue of four."""


@pytest.mark.parametrize("name", [*ALONE, *FULL])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_the_replay_knows(name: str, ahead: bool, tmp_path: Path):
    """Behind what shows the machine, and, `ahead`, behind a long kernel too, so that other edges bind."""
    machine = REAL if name in ALONE else replace(REAL, queue_items=4, copy_own_ns=60_000)
    shown = showing(machine, (7, 13), 4, 25_000, 400, device_sync=True)
    body = [*launches(7, int(ahead), 300_000), *(ALONE.get(name) or FULL[name])]
    steps = ((*shown, *body), (Cpu(2000), *body))
    check_replay(Case(machine, Program(steps), records=True), tmp_path)


def test_the_replay_takes_a_thread_s_own_events_first(tmp_path: Path):
    """Two threads that make streams wait at the same time, without records of which event that was."""
    shown = showing(REAL, (7, 13), 4, 25_000, 400)
    main = Op("aten::add", (Launch(7, 90_000), Record(7, 98), Cpu(8000), Wait(13, 98), Launch(13, 4000), Cpu(90_000)))
    other = Op(
        "aten::mul",
        (Cpu(4000), Launch(24, 85_000, "communication"), Record(24, 99), Cpu(9000), Wait(28, 99), Launch(28, 4000)),
    )
    program = Program(((main, *shown), (Cpu(100_000),)), (other,))
    check_replay(Case(REAL, program, records=False), tmp_path)


def test_a_buffer_waits_for_what_read_it_last(tmp_path: Path):
    """Copies into two buffers by turns, the host far ahead: each waits for an event that is not the last recorded one,
    and nothing says which it is, as with cudaEventRecordWithFlags."""
    shown = showing(REAL, (7, 13), 4, 25_000, 400, device_sync=True)
    body: list[Instruction] = [Launch(7, 400_000), Record(7, 0)]
    for turn in range(8):
        body += [
            Launch(7, 90_000), Record(7, turn + 1), Wait(13, turn), Launch(13, 30_000), Record(13, 50 + turn),
            Wait(7, 50 + turn), Launch(7, 60_000),
        ]  # fmt: skip
    check_replay(Case(REAL, Program(((*shown, *body), (Cpu(2000), *body))), records=False), tmp_path)


@given(case=cases())
@budget(30)
def test_the_replay_says_what_the_oracle_says(tmp_path_factory: pytest.TempPathFactory, case: Case):
    check_replay(case, tmp_path_factory.mktemp("replay"))


@pytest.mark.parametrize("seed", seeds(40))
def test_the_replay_says_what_the_oracle_says_of(seed: int, tmp_path: Path):
    check_replay(make_case(seeded(seed)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(30))
def test_the_replay_says_what_the_oracle_says_of_thousands(block: int, tmp_path: Path):
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        check_replay(make_case(seeded(seed)), tmp_path)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_second_round_is_the_program_run_on(seed: int, tmp_path: Path):
    """In a loop, what one round leaves running is what the next one finds."""
    case = make_case(seeded(seed), threads=1)
    recorded, timeline = read(case, tmp_path)
    graph = build(timeline)
    twice = Program(case.program.steps * 2)
    for name in ("nothing", "host halved", "host doubled", "device halved", "device doubled"):
        truth = run(twice, case.machine, CHANGES[name])
        schedule = simulate(scale(graph, **factors(CHANGES[name])), rounds=2)
        half = len(case.program.steps)
        compare(name, graph, schedule, truth.work[len(recorded.work) :], truth.step_end[half:])


@pytest.mark.parametrize("change", ["nothing", "device halved", "device doubled", "host doubled"])
def test_a_queue_that_was_full_when_the_recording_began(change: str, tmp_path: Path):
    """Of a loop that has long been limited by the GPU only the last steps were recorded: their first launches wait for
    work whose own launches were not."""
    machine = replace(REAL, queue_items=thresholds.QUEUE_ITEMS.whole)
    body = [part for _ in range(thresholds.QUEUE_ITEMS.whole // 2) for part in (Cpu(9_000), Launch(7, 40_000))]

    def loop(rates: Rates) -> Executed:
        return run(Program(((*body,),) * 12), machine, rates)

    done = loop(UNCHANGED)
    begun = done.step_end[7]
    host = [span for span in done.host if span.end > begun]
    work = [item for item in done.work if item.end > begun]
    cut = replace(done, host=host, work=work, step_end=done.step_end[8:])
    timeline = build_timeline(read_trace(write(cut, tmp_path / "trace.json", records=True)))
    assert timeline is not None
    graph = carried_over(build(timeline))
    truth = np.diff(loop(CHANGES[change]).step_end)[-3:].mean()
    replayed = simulate(scale(graph, **factors(CHANGES[change])), rounds=4).step_ns
    assert replayed == pytest.approx(truth, rel=0.005)

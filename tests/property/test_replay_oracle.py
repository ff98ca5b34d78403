"""The replay compared with its oracle: given only the trace of a random program, it must predict to the nanosecond what
the program would do with a resource made faster or slower."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.budgets import budget
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.oracle_trace import write
from helpers.quick import seeds
from helpers.random_programs import Case, Choose, make_case, seeded, showing
from helpers.replay_oracle import (
    UNCHANGED,
    Backward,
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

HALF, TWICE = Fraction(1, 2), Fraction(2)


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
    """Checks that the trace's replay agrees with the oracle for every change."""
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
"""What may go wrong, one case at a time: the body of two steps."""

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
    """After events that show the machine's constants, and with `ahead` also after a long kernel, so that other edges
    determine the times."""
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
    """Copies into two alternating buffers with the host far ahead: each waits for an event that is not the last
    recorded one, and nothing says which, as with cudaEventRecordWithFlags."""
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
    """In a loop, what one round leaves running is still running when the next begins."""
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
    """Only the last steps of a loop that has long been limited by the GPU were recorded: their first launches wait for
    work whose own launches were not recorded."""
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

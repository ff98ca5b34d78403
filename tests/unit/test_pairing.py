"""One program recorded twice: the export of Nsight Systems gives the times, the trace of torch.profiler the ops."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.make_nsys import AUTOGRAD, MAIN, NsysBuilder, training
from helpers.make_trace import TraceBuilder
from helpers.nsys_exports import TINY, document, issues, shared_export, unpacked
from helpers.paths import ROOT
from helpers.traces import shared_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuprof
from gpuprof.timeline.pairing import Pairing, pair
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.model import KERNEL, OP, Trace
from gpuprof.tracefile.read import read_pair

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def timeline_of(recording: Path | Trace) -> Timeline:
    found = build_timeline(recording if isinstance(recording, Trace) else gpuprof.load(recording))
    assert found is not None
    return found


def spans(trace: Trace) -> list[tuple[int, int, int, str, int]]:
    """(thread, start, end, name, External id) of every op, outer ones first."""
    ops = trace.ops
    rows = np.flatnonzero(ops.kind == OP)
    columns = (ops.thread, ops.start_ns, ops.end_ns, ops.name, ops.external)
    found = zip(*(column[rows].tolist() for column in columns), strict=True)
    named = [(thread, start, end, trace.strings[name], number) for thread, start, end, name, number in found]
    return sorted(named, key=lambda span: (span[0], span[1], -span[2], span[4]))


def parents(ops: list[tuple[int, int, int, str, int]]) -> dict[int, int]:
    """External id of each op → that of the op around it, by a stack per thread."""
    found, stack, thread = {}, [], None
    for on, start, end, _, number in ops:
        if on != thread:
            stack, thread = [], on
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            found[number] = stack[-1][1]
        stack.append((end, number))
    return found


def innermost(timeline: Timeline, trace: Trace) -> dict[int, str | None]:
    """Row of each launched kernel → the name of the innermost op around its launch, by a sweep over ops and calls."""
    call = timeline.links.call
    wanted = defaultdict(list)
    for row in np.flatnonzero((call >= 0) & (trace.gpu.kind == KERNEL)).tolist():
        wanted[int(trace.calls.thread[call[row]])].append((int(trace.calls.start_ns[call[row]]), row))
    by_thread = defaultdict(list)
    for op in spans(trace):
        by_thread[op[0]].append(op)
    found: dict[int, str | None] = {}
    for thread, launches in wanted.items():
        ops, stack, k = by_thread[thread], [], 0
        for moment, row in sorted(launches):
            while k < len(ops) and ops[k][1] <= moment:
                while stack and stack[-1][2] <= ops[k][1]:
                    stack.pop()
                stack.append(ops[k])
                k += 1
            while stack and stack[-1][2] <= moment:
                stack.pop()
            found[row] = stack[-1][3] if stack else None
    return found


def steps_of(timeline: Timeline) -> list[list[tuple[str, str | None]]]:
    """Of each step the kernels in the order of their launches, each with the name of the op that launched it."""
    trace, links = timeline.trace, timeline.links
    names = innermost(timeline, trace)
    found = []
    for start, end in zip(timeline.steps.start_ns.tolist(), timeline.steps.end_ns.tolist(), strict=True):
        rows = [row for row in names if start <= links.begun_ns[row] < end]
        rows.sort(key=lambda row: (links.begun_ns[row], trace.gpu.start_ns[row]))
        found.append([(trace.strings[trace.gpu.name[row]], names[row]) for row in rows])
    return found


# -- a recorded pair


@cache
def tiny() -> tuple[Timeline, Timeline, Pairing]:
    timed, named = timeline_of(shared_export(f"{TINY}.nsys")), timeline_of(shared_trace(TINY))
    found = pair(timed, named)
    assert found is not None
    return timed, named, found


@cache
def diagnosed() -> tuple[gpuprof.Diagnosis, gpuprof.Diagnosis]:
    """(the export alone, the pair)."""
    export = shared_export(f"{TINY}.nsys")
    return gpuprof.diagnose(export), gpuprof.diagnose([shared_trace(TINY), export])


def test_a_pair_says_that_it_is_one():
    alone, both = diagnosed()
    found = document(both)
    message = issues(both)["paired"]
    told = re.search(r"([\d,]+) of ([\d,]+) pieces .* ([\d,]+) by the order .* ([\d,]+) as the n-th", message)
    assert told, message
    matched, launches, in_order, by_name = (int(number.replace(",", "")) for number in told.groups())
    database = unpacked(shared_export(f"{TINY}.nsys"))
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    work = " UNION ALL ".join(f"SELECT correlationId c FROM CUPTI_ACTIVITY_KIND_{table}" for table in tables)
    asked = (
        f"SELECT COUNT(*) FROM ({work}) JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = c JOIN NVTX_EVENTS n"
        " ON n.text LIKE 'step%' AND r.start >= n.start AND r.start < n.end"
    )
    assert launches == database.execute(asked).fetchone()[0]
    assert matched == in_order + by_name <= launches
    assert in_order == 4 * 5_185
    assert matched > 0.99 * launches
    assert "not_a_pair" not in issues(both)
    assert (both.verdict.bound, both.verdict.cause) == ("host", "launch")
    assert found["source"]["kind"] == "nsys"
    assert "no_ops" not in issues(both)
    assert any(kernel["flops"] for kernel in found["kernels"]["top"])
    assert not any(kernel["flops"] for kernel in document(alone)["kernels"]["top"])


def test_the_order_of_the_two_does_not_matter():
    paths = [shared_export(f"{TINY}.nsys"), shared_trace(TINY)]
    for order in (paths, paths[::-1]):
        found = read_pair(order)
        assert found is not None
        assert [trace.reading.path for trace in (found.trace, found.named)] == [str(path) for path in paths]
    assert read_pair([paths[1], paths[1]]) is None
    assert read_pair(paths[:1]) is None


def test_times_are_those_of_the_export():
    alone, both = diagnosed()
    timed, _, found = tiny()
    for table in ("gpu", "calls", "syncs", "counters"):
        before, after = getattr(timed.trace, table), getattr(found.trace, table)
        for column in before.__slots__:
            assert np.array_equal(getattr(before, column), getattr(after, column), equal_nan=column == "occupancy")
    assert both.steps.each_ns == alone.steps.each_ns
    assert both.steps.recorded_ns == pytest.approx(95.9e6, rel=0.02)
    assert [device.busy_ns for device in both.devices] == [device.busy_ns for device in alone.devices]
    assert both.window == alone.window


def test_only_what_the_export_recorded_cost_it_time():
    alone, both = diagnosed()
    assert both.profiler.events_per_step == alone.profiler.events_per_step
    assert both.profiler.high_ns == pytest.approx(alone.profiler.high_ns, rel=0.1)
    assert both.steps.estimated_ns == pytest.approx(alone.steps.estimated_ns, rel=0.05)


def by_step(timeline: Timeline, trace: Trace) -> list[list[tuple[int, int, int, str, int]]]:
    """The ops that begin in each step, in the order of their numbers: ids are given out as ops begin."""
    found: list[list] = [[] for _ in timeline.steps.end_ns]
    for op in spans(trace):
        step = int(np.searchsorted(timeline.steps.start_ns, op[1], side="right")) - 1
        if step >= 0 and op[1] < timeline.steps.end_ns[step]:
            found[step].append(op)
    return [sorted(ops, key=lambda op: op[4]) for ops in found]


def lie_as_in_the_trace(timed: Timeline, named: Timeline, found: Pairing) -> int:
    """Checks that every op is where its step has it, inside the op that it is inside of there; how many are."""
    around, checked = parents(spans(named.trace)), 0
    theirs = by_step(named, named.trace)
    for ops in by_step(timed, found.trace):
        names = [op[3] for op in ops]
        like = next((step for step in theirs if [op[3] for op in step] == names), None)
        assert like is not None, "each op once, and all of a step"
        here = {original[4]: op for original, op in zip(like, ops, strict=True)}
        for number, (thread, start, end, *_) in here.items():
            outer = here.get(around.get(number, -1))
            assert start <= end
            if outer is not None:
                checked += 1
                assert outer[0] == thread
                assert outer[1] <= start <= end <= outer[2]
    return checked


def test_ops_lie_in_each_other_as_in_the_trace():
    assert lie_as_in_the_trace(*tiny()) > 50_000


def test_launches_lie_in_the_ops_that_made_them():
    _, named, found = tiny()
    theirs = steps_of(named)
    ours = steps_of(timeline_of(found.trace))
    assert len(ours) == 4
    for step in ours:
        assert step in theirs
        assert sum(op is None for _, op in step) == 0


# -- recordings that are no pair


def test_recordings_of_different_programs_are_not_read_together():
    other = ROOT / "tests" / "data" / "pairs" / "moe_small.json.gz"
    found = gpuprof.diagnose([shared_export(f"{TINY}.nsys"), other])
    assert "moe_small.json.gz" in issues(found)["not_a_pair"]
    assert "paired" not in issues(found)
    assert document(found)["source"]["kind"] == "kineto"
    assert found.kernels.count == len(timeline_of(other).members)
    assert found.quality.status == "degraded"


def test_a_made_program_is_not_another(tmp_path: Path):
    export = training().write(tmp_path / "a.sqlite")
    trace = TraceBuilder()
    for step in range(3):
        at = 1_000_000 * step
        trace.step(step, at, at + 1_000_000)
        for i in range(50):
            t = at + 20_000 * i
            trace.op("aten::conv2d", t, t + 9_000, **{"External id": 50 * step + i + 1})
            trace.launch("conv", (t + 10, t + 20), (t + 30, t + 900))
    found = gpuprof.diagnose([export, trace.write(tmp_path / "b.json")])
    assert "not_a_pair" in issues(found)
    assert {kernel.name for kernel in found.kernels.top} == {"conv"}


def test_two_exports_are_ranks_and_no_pair(tmp_path: Path):
    paths = []
    for rank, pid in enumerate((100, 201)):
        builder = training(pid=pid, device=rank)
        for step in range(4):
            t = 1_000_000 + step * 1_800_000 + 1_700_000
            builder.launch("ncclDevKernel_AllReduce", (t, t + 5), (t + 10, t + 9_000), tid=pid, pid=pid, device=rank)
        paths.append(builder.write(tmp_path / f"{pid}.sqlite"))
    found = gpuprof.diagnose(paths)
    assert not {"paired", "not_a_pair"} & set(issues(found))
    assert len(found.ranks) == 2


# -- made pairs


@st.composite
def programs(draw):
    """Steps of one program: moments in order, each what happens on which thread."""
    token = st.sampled_from(("open", "open", "close", "launch", "launch", "copy"))
    tokens = draw(st.lists(st.tuples(token, st.booleans()), min_size=4, max_size=30))
    return [("launch", False), *tokens, ("launch", True)]


def recorded(program: list[tuple[str, bool]], steps: int, seed: int | None) -> tuple[NsysBuilder, TraceBuilder]:
    """The program by both; `seed`: both have a pace of their own, None: the same times."""
    nsys, torch = NsysBuilder(), TraceBuilder()
    if seed is None:
        played(program, steps, None, nsys, torch)
    else:
        played(program, steps, random.Random(seed), nsys, None)
        played(program, steps, random.Random(seed + 1), None, torch)
    return nsys, torch


def played(program, steps: int, rng: random.Random | None, nsys: NsysBuilder | None, torch: TraceBuilder | None):
    t, number = 1_000, 0
    for step in range(steps):
        begun, stacks = t, {MAIN: [], AUTOGRAD: []}

        def pause() -> int:
            return 40 if rng is None else rng.randrange(1, 200)

        def close(tid: int, end: int, stacks=stacks) -> None:
            name, start, external = stacks[tid].pop()
            if torch is not None:
                torch.op(name, start, end, tid, **{"External id": external})

        for i, (what, side) in enumerate(program):
            tid = AUTOGRAD if side else MAIN
            t += pause()
            if what == "open":
                number += 1
                stacks[tid].append((f"aten::op{i}", t, number))
            elif what == "close":
                if stacks[tid]:
                    close(tid, t)
            else:
                call = (t, t + pause())
                work = (call[1] + 5, call[1] + 5 + pause())
                t = call[1]
                if nsys is not None:
                    here = nsys.launch if what == "launch" else nsys.upload
                    here(f"k{i % 4}" if what == "launch" else 64, call, work, tid=tid)
                if torch is not None and what == "launch":
                    torch.launch(f"k{i % 4}", call, work, tid=tid)
                elif torch is not None:
                    torch.launch("Memcpy HtoD (Pinned -> Device)", call, work, tid=tid, cat="gpu_memcpy", bytes=64)
        for tid in reversed(stacks):
            while stacks[tid]:
                t += pause()
                close(tid, t)
        t += pause()
        if nsys is not None:
            nsys.range(f"step_{step}", begun, t)
        if torch is not None:
            torch.annotation(f"ProfilerStep#{step}", begun, t, MAIN)


def both_of(builders: tuple[NsysBuilder, TraceBuilder], folder: Path) -> tuple[Timeline, Timeline, Pairing]:
    timed = timeline_of(builders[0].write(folder / "a.sqlite", shuffle=1))
    named = timeline_of(builders[1].write(folder / "b.json"))
    found = pair(timed, named)
    assert found is not None
    return timed, named, found


@EXAMPLES
@given(program=programs())
def test_ops_of_the_same_times_stay_where_they_are(program, tmp_path: Path):
    timed, named, found = both_of(recorded(program, 2, None), tmp_path)
    assert found.in_order + found.by_name == found.launches == len(timed.trace.gpu)
    assert where(found.trace) == where(named.trace)


def where(trace: Trace) -> list:
    """(thread as the system numbers it, start, end, name) of each op."""
    return sorted((int(trace.threads[thread].thread), *span) for thread, *span, _ in spans(trace))


@EXAMPLES
@given(program=programs(), seed=st.integers(0, 2**32), steps=st.integers(2, 3))
def test_ops_are_placed_around_their_launches_at_any_pace(program, seed: int, steps: int, tmp_path: Path):
    timed, named, found = both_of(recorded(program, steps, seed), tmp_path)
    assert found.in_order + found.by_name == found.launches == len(timed.trace.gpu)
    theirs, ours = steps_of(named), steps_of(timeline_of(found.trace))
    assert len(ours) == len(theirs) == steps
    assert ours == theirs
    lie_as_in_the_trace(timed, named, found)


def test_one_more_copy_in_a_step_is_no_other_program(tmp_path: Path):
    """A step that logs has a copy more; its kernels are matched in order, and so are the copies of other kinds."""
    program = [("open", False), *[("launch", False)] * 20, ("close", False), ("launch", True)]
    nsys, torch = recorded(program, 2, 3)
    end = max(row["end"] for row in nsys.rows["NVTX_EVENTS"])
    nsys.upload(8, (end - 2, end - 1), (end + 5, end + 9))
    _, _, found = both_of((nsys, torch), tmp_path)
    assert found.in_order == 2 * 21
    assert found.launches == 2 * 21 + 1
    assert found.by_name == 0

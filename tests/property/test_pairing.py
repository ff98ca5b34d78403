"""Paired exports and traces of random programs: every op is placed around its launches."""

from __future__ import annotations

import random
from pathlib import Path

from helpers.budgets import budget
from helpers.make_nsys import AUTOGRAD, MAIN, NsysBuilder
from helpers.make_trace import TraceBuilder
from helpers.op_nesting import lie_as_in_the_trace, spans, steps_of
from helpers.timeline import timeline_of
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.timeline.pairing import Pairing, pair
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import Trace


@st.composite
def programs(draw):
    """Steps of one program, as moments in order: what happens on which thread."""
    token = st.sampled_from(("open", "open", "close", "launch", "launch", "copy"))
    tokens = draw(st.lists(st.tuples(token, st.booleans()), min_size=4, max_size=30))
    return [("launch", False), *tokens, ("launch", True)]


def recorded(program: list[tuple[str, bool]], steps: int, seed: int | None) -> tuple[NsysBuilder, TraceBuilder]:
    """The program recorded by both; with a `seed` each has its own pace, with None the same times."""
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
                if nsys is not None and what == "launch":
                    nsys.launch(f"k{i % 4}", call, work, tid=tid)
                elif nsys is not None:
                    nsys.upload(64, call, work, tid=tid)
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


@budget(30)
@given(program=programs())
def test_ops_of_the_same_times_stay_where_they_are(program, tmp_path: Path):
    timed, named, found = both_of(recorded(program, 2, None), tmp_path)
    assert found.in_order + found.by_name == found.launches == len(timed.trace.gpu)
    assert where(found.trace) == where(named.trace)


def where(trace: Trace) -> list:
    """(thread as the system numbers it, start, end, name) of each op."""
    return sorted((int(trace.threads[thread].thread), *span) for thread, *span, _ in spans(trace))


@budget(30)
@given(program=programs(), seed=st.integers(0, 2**32), steps=st.integers(2, 3))
def test_ops_are_placed_around_their_launches_at_any_pace(program, seed: int, steps: int, tmp_path: Path):
    timed, named, found = both_of(recorded(program, steps, seed), tmp_path)
    assert found.in_order + found.by_name == found.launches == len(timed.trace.gpu)
    theirs, ours = steps_of(named), steps_of(timeline_of(found.trace))
    assert len(ours) == len(theirs) == steps
    assert ours == theirs
    lie_as_in_the_trace(timed, named, found)


def test_one_more_copy_in_a_step_is_no_other_program(tmp_path: Path):
    """A step that logs has one more copy; its kernels are matched in order, and so are the copies of other kinds."""
    program = [("open", False), *[("launch", False)] * 20, ("close", False), ("launch", True)]
    nsys, torch = recorded(program, 2, 3)
    end = max(row["end"] for row in nsys.rows["NVTX_EVENTS"])
    nsys.upload(8, (end - 2, end - 1), (end + 5, end + 9))
    _, _, found = both_of((nsys, torch), tmp_path)
    assert found.in_order == 2 * 21
    assert found.launches == 2 * 21 + 1
    assert found.by_name == 0

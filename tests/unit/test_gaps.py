"""Causes of gaps: nanosecond by nanosecond against a plain reading of the definition, and on hand-made cases."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuprof
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.small import read_small

LENGTH = 400
CALLS = {
    "cudaMemcpy": "transfer",
    "cudaMalloc": "allocator",
    "cudaFree": "allocator",
    "cudaStreamSynchronize": "sync",
    "cudaDeviceSynchronize": "sync",
    "cudaGetDevice": "launch",
}
LEVELS = ("input", "transfer", "allocator", "sync", "profiler", "launch")


def diagnose(trace: TraceBuilder, **options):
    data = trace.text().encode()
    return gpuprof.diagnose(build(read_small(data), "t.json", len(data)), **options)


def causes(trace: TraceBuilder, **options) -> dict[str, int]:
    return {c.cause: c.ns for c in diagnose(trace, **options).gaps.by_cause}


@st.composite
def programs(draw):
    """Two host threads in random calls and ops, kernels launched from both, one device."""
    trace = TraceBuilder().step(1, 0, LENGTH)
    doing: list[tuple[int, int, int, str]] = []  # thread, start, end, level
    for thread in (MAIN, AUTOGRAD):
        at = 0
        for _ in range(draw(st.integers(0, 6))):
            start = at + draw(st.integers(0, 40))
            end = start + draw(st.integers(1, 50))
            if end > LENGTH:
                break
            what = draw(st.sampled_from(["aten::mul", "enumerate(DataLoader)#x.__next__", *CALLS]))
            if what in CALLS:
                trace.call(what, start, end, tid=thread, correlation=0)
                doing.append((thread, start, end, CALLS[what]))
            elif what == "aten::mul":
                trace.op(what, start, end, tid=thread)
                doing.append((thread, start, end, "launch"))
            else:
                trace.annotation(what, start, end, tid=thread)
                doing.append((thread, start, end, "input"))
            at = end
    overheads = draw(st.lists(st.tuples(st.integers(0, LENGTH), st.integers(1, 30)), max_size=2))
    for start, length in overheads:
        trace.overhead("Buffer Flush", start, start + length)
    works = []
    free = {MAIN: 0, AUTOGRAD: 0}
    for _ in range(draw(st.integers(1, 6))):
        thread = draw(st.sampled_from([MAIN, AUTOGRAD]))
        call = free[thread] + draw(st.integers(0, 60))
        call_end = call + draw(st.integers(1, 8))
        start = call + draw(st.integers(0, 40))
        end = start + draw(st.integers(1, 60))
        trace.launch("k", (call, call_end), (start, end), tid=thread, stream=draw(st.integers(1, 2)))
        doing.append((thread, call, call_end, "launch"))
        works.append((start, end, min(call_end, start), thread))
        free[thread] = call_end
    return trace, doing, overheads, works


def expected(doing, overheads, works, ops: bool) -> Counter:
    """The cause of every idle ns, as DESIGN says it. Without any op in the recording nothing tells ops from Python, and
    what lies between two calls of a thread (here always less than 100 µs apart) is launching."""
    result: Counter = Counter()
    if not ops:
        for lane in (MAIN, AUTOGRAD):
            calls = [(s, e) for th, s, e, level in doing if th == lane and level != "input"]
            if calls:
                doing = [*doing, (lane, min(s for s, _ in calls), max(e for _, e in calls), "launch")]
    busy = {t for start, end, _, _ in works for t in range(start, end)}
    for t in (t for t in range(LENGTH) if t not in busy):
        coming = sorted((w for w in works if w[0] > t), key=lambda w: (w[0], w[2]))
        launched, thread = (coming[0][2], coming[0][3]) if coming else (LENGTH, MAIN)
        if t >= launched:
            result["device"] += 1
            continue
        for lane in (thread, MAIN):
            states = {level for th, s, e, level in doing if th == lane and s <= t < e}
            states |= {"profiler" for s, n in overheads if s <= t < s + n}
            if states:
                result[next(level for level in LEVELS if level in states)] += 1
                break
        else:
            result["python"] += 1
    return result


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_causes_equal_the_definition(program):
    trace, doing, overheads, works = program
    assert causes(trace) == expected(doing, overheads, works, ops="aten::mul" in trace.text())


def test_queued_work_makes_the_gap_the_devices_own():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch("a", (0, 10), (10, 400))
    trace.launch("b", (20, 30), (450, 1000))
    assert causes(trace) == {"launch": 10, "device": 50}


def test_item_is_a_sync_and_a_pageable_copy_a_transfer():
    for op, cause in (("aten::_local_scalar_dense", "sync"), ("aten::copy_", "transfer")):
        trace = TraceBuilder().step(1, 0, 1000)
        trace.op(op, 100, 900)
        trace.launch("Memcpy DtoH (Device -> Pageable)", (200, 800), (300, 310), cat="gpu_memcpy")
        trace.launch("k", (950, 960), (960, 1000))
        # In the copy call and the device idle: before the copy began, and after it had ended.
        assert causes(trace)[cause] == (300 - 200) + (800 - 310), cause


def test_command_buffer_full_is_back_pressure_not_the_profiler():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.overhead("Command Buffer Full", 0, 500)
    trace.launch("k", (500, 510), (510, 1000))
    assert "profiler" not in causes(trace)


def test_a_gap_that_an_unknown_launch_ends_is_unknown():
    trace = TraceBuilder().step(1, 0, 1000).op("aten::add", 0, 10)
    trace.gpu("k", 600, 1000)
    assert causes(trace) == {"unknown": 600}
    assert diagnose(trace).devices[0].cpu_bound_fraction is None


def test_cpu_bound_fraction_is_the_unlaunched_share():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch("a", (0, 100), (100, 500))
    trace.launch("b", (600, 700), (720, 1000))
    # Idle 0–100 and 500–720; of these 700–720 the work was launched.
    assert diagnose(trace).devices[0].cpu_bound_fraction == pytest.approx((100 + 200) / 1000)


def test_a_gap_names_op_module_phase_and_frame():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.frame("train.py(12): main", 0, 1000, **{"Python id": 1, "Python parent id": None})
    trace.frame("nn.Module: Linear_3", 300, 900, **{"Python id": 2, "Python parent id": 1, "Python module id": 3})
    trace.op("aten::linear", 400, 800).op("aten::mm", 450, 750)
    trace.launch("gemm", (500, 510), (520, 1000))
    (gap,) = diagnose(trace).gaps.largest
    assert (gap.start_ns, gap.ns, gap.op, gap.module) == (0, 520, "aten::mm", "nn.Module: Linear_3")
    assert (gap.phase, gap.frame) == ("forward", "train.py(12): main")


def test_backward_work_belongs_to_the_module_of_its_forward():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.frame("nn.Module: Linear_3", 0, 200, **{"Python id": 2, "Python module id": 3})
    trace.op("aten::mm", 50, 150, **{"Sequence number": 7, "Fwd thread id": 0})
    trace.launch("gemm", (60, 70), (70, 200))
    engine = "autograd::engine::evaluate_function: MmBackward0"
    trace.op(engine, 400, 600, AUTOGRAD, **{"Sequence number": 7, "Fwd thread id": 1})
    trace.op("MmBackward0", 410, 590, AUTOGRAD, **{"Sequence number": 7, "Fwd thread id": 1})
    trace.op("aten::mm", 420, 580, AUTOGRAD)
    trace.flow("fwdbwd", 1, (1, MAIN, 50), (1, AUTOGRAD, 410))
    trace.launch("gemm", (500, 510), (520, 1000), tid=AUTOGRAD)
    gaps = diagnose(trace).gaps.largest
    assert [(g.phase, g.module) for g in gaps] == [
        ("backward", "nn.Module: Linear_3"),
        ("forward", "nn.Module: Linear_3"),
    ]

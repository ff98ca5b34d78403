"""Causes of gaps: compared nanosecond by nanosecond with a plain implementation of the definition."""

from __future__ import annotations

from collections import Counter

from helpers.budgets import budget
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from helpers.present import present
from helpers.timeline import built
from hypothesis import given
from hypothesis import strategies as st

import gpuprof

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


def causes(trace: TraceBuilder) -> dict[str, int]:
    return {c.cause: c.ns for c in present(gpuprof.diagnose(built(trace)).gaps).by_cause}


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
    """The cause of every idle ns. Without any op in the recording, ops and Python cannot be distinguished, and the time
    between two calls of a thread (here always less than 100 µs apart) is launching."""
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


@budget(100)
@given(programs())
def test_causes_equal_the_definition(program):
    trace, doing, overheads, works = program
    assert causes(trace) == expected(doing, overheads, works, ops="aten::mul" in trace.text())

"""Generated recordings for tests of quality issues: a sound one, versions that lack something, and their diagnoses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuprof
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder, dims, forward_thread, sequence

STEP, WINDOW = 1_000_000, 2_000_000
DAY = 86_400 * 10**9
LAUNCHES = 100

Made = TraceBuilder | str | bytes


def sound(launches: tuple[int, ...] = (50, 50), steps: bool = True, shapes: bool = True) -> TraceBuilder:
    """Sound steps of 1 ms with this number of launches each."""
    builder = TraceBuilder()
    for step, count in enumerate(launches):
        at = step * STEP
        if steps:
            builder.step(step, at, at + STEP)
        for i in range(count):
            t = at + i * 20_000
            result: dict[str, Any] = {"Input Dims": [[8, 8], [8, 8]]} if shapes else {}
            result |= {"Sequence number": i, "Fwd thread id": 0}
            builder.op("aten::mm", t, t + 10_000, **result)
            builder.launch("gemm", (t + 1_000, t + 2_000), (t + 3_000, t + 13_000))
    return builder


def sound_ranges(length: int) -> TraceBuilder:
    """The same, but what is called a step ends before the next begins."""
    builder = sound(steps=False)
    for step in range(2):
        builder.step(step, step * STEP, step * STEP + length)
    return builder


def without(builder: TraceBuilder, cat: str, count: int | None = None) -> TraceBuilder:
    """The trace without `count` events of a category, taken evenly from all of it; None: without any."""
    rows = [i for i, event in enumerate(builder.events) if event["cat"] == cat]
    gone = set(rows if count is None else (rows[i * len(rows) // count] for i in range(count)))
    builder.events = [event for i, event in enumerate(builder.events) if i not in gone]
    return builder


def spoiled(old: str, new: str) -> str:
    """The text of a sound trace with its first `old` replaced."""
    text = sound().text()
    assert old in text
    return text.replace(old, new, 1)


def cut(end: bytes) -> bytes:
    """A sound trace up to the last occurrence of something in it."""
    text = sound().text().encode()
    return text[: text.rindex(end)]


def lone_kernels(count: int) -> TraceBuilder:
    builder = sound()
    for i in range(count):
        builder.gpu("gemm", 500 + i, 900 + i, stream=20, correlation=10**6 + i)
    return builder


def overhead(ns: int, name: str = "Activity Buffer Request", at: int = 5_000) -> TraceBuilder:
    return sound().overhead(name, at, at + ns)


def runs_over(ns: int) -> TraceBuilder:
    """The last kernel runs so long beyond the window."""
    return sound().launch("gemm", (WINDOW - 2_000, WINDOW - 1_000), (WINDOW - 500, WINDOW + ns))


def calls_without_work(
    name: str, at: int = 5_000, count: int = 90, correlation: int = 10**6, captured: bool = False
) -> TraceBuilder:
    """Calls without GPU work, if `captured` on another thread than that which captures a graph at the time."""
    builder = sound()
    if captured:
        builder.call("cudaStreamBeginCapture", at - 1, at).call("cudaStreamEndCapture", at + count, at + count + 1)
    for i in range(count):
        tid = AUTOGRAD if captured else MAIN
        builder.call(name, at + i, at + i + 1, tid=tid, correlation=correlation and correlation + i)
    return builder


def captured_steps(launches: int, begin: str) -> TraceBuilder:
    """Steps whose first launches, of 100 in both together, go into a graph; of 100 the recording cuts the last."""
    builder, each = sound(), launches // 2
    kernels = [i for i, event in enumerate(builder.events) if event["cat"] == "kernel"]
    for i in reversed([*kernels[:each], *kernels[50 : 50 + each]]):
        del builder.events[i]
    for at in (0, STEP):
        builder.call(begin, at, at + 1)
        if launches < 100 or not at:
            builder.call("cudaStreamEndCapture", at + each * 20_000 - 1, at + each * 20_000)
    return builder


def alone(length: int) -> TraceBuilder:
    """A step with a single kernel."""
    return one_step(10_000, work=length)


def sparse(kernels: int) -> TraceBuilder:
    """A step of 100 ms with some short kernels."""
    builder = TraceBuilder().step(0, 0, 10**8).op("aten::mm", 0, 10**8, **dims([8, 8]))
    for i in range(kernels):
        builder.launch("gemm", (i * 10**7, i * 10**7 + 1_000), (i * 10**7 + 2_000, i * 10**7 + 12_000))
    return builder


def one_step(length: int, then: int = 0, work: int | None = None) -> TraceBuilder:
    """A step with a kernel, `then` ns longer than what is recorded in it."""
    builder = TraceBuilder().step(0, 0, length + then).op("aten::mm", 0, length, **dims([8, 8]))
    if work is not None:
        return builder.launch("gemm", (1_000, 2_000), (3_000, 3_000 + work))
    return builder.launch("gemm", (1_000, 2_000), (3_000, length - 1_000))


def periodic(steps: bool) -> TraceBuilder:
    """Twenty kernels over and over, the backward pass among them."""
    builder = TraceBuilder()
    for step in range(5):
        at = step * STEP
        if steps:
            builder.step(step, at, at + STEP)
        for i in range(20):
            t = at + i * 20_000
            backward = sequence(i, 1) if i >= 10 else forward_thread(0)
            builder.op(f"op{i}", t, t + 10_000, **dims([8, 8]), **backward)
            builder.launch(f"kernel{i}", (t + 1_000, t + 2_000), (t + 3_000, t + 13_000))
    return builder


def nested(silent: int) -> TraceBuilder:
    """250 ops that each hold one that launches, the first `silent` of them another that does not, too."""
    builder = TraceBuilder().step(0, 0, 250 * 20_000).op("aten::add", 15_000, 15_100, **dims([8]))
    for i in range(250):
        t = i * 20_000
        builder.op("aten::linear", t, t + 10_000).op("aten::mm", t + 2_000, t + 9_000)
        builder.launch("gemm", (t + 3_000, t + 4_000), (t + 5_000, t + 15_000))
        if i < silent:
            builder.op("aten::t", t + 500, t + 1_500)
    return builder


@dataclass(frozen=True)
class Boundary:
    """Two nearly equal traces on either side of a threshold, and the exact issues of each: id → severity."""

    bad: Callable[[], Made]
    fine: Callable[[], Made]
    says: dict[str, str]
    status: str
    message: str = ""
    of_the_fine: dict[str, str] | None = None
    """Where the neighbour has issues of its own; most have none."""


def halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


def diagnosed(made: Made, path: Path) -> gpuprof.Diagnosis:
    data = made.text() if isinstance(made, TraceBuilder) else made
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return gpuprof.diagnose(path)


def said(diagnosis: gpuprof.Diagnosis) -> dict[str, str]:
    return {issue.id: issue.severity for issue in diagnosis.quality.issues}

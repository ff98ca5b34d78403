"""Recordings with something wrong: for each issue one that has it, and one just short of it."""

from __future__ import annotations

import gzip
import json

from helpers.make_trace import TraceBuilder, dims
from helpers.quality_traces import (
    DAY,
    STEP,
    WINDOW,
    Boundary,
    alone,
    calls_without_work,
    captured_steps,
    cut,
    halves,
    lone_kernels,
    nested,
    one_step,
    overhead,
    periodic,
    runs_over,
    sound,
    sound_ranges,
    sparse,
    spoiled,
    without,
)

LISTED = json.dumps(json.loads(sound().text())["traceEvents"])
"""The events without a document around them."""

WARNED, NOTED, FAILED = "degraded", "ok", "unusable"
GUESSES = {"no_steps": "warning"}
BARE = {"no_host_events": "warning", "gpu_events_unlinked": "warning", **GUESSES}

CASES = {
    "truncated": Boundary(
        lambda: cut(b"\n], "),
        lambda: sound(),
        {"truncated": "warning"},
        WARNED,
        "the event list has no end. 302 events",
    ),
    "truncated: gzip": Boundary(
        lambda: gzip.compress(sound().text().encode())[:-4],
        lambda: gzip.compress(sound().text().encode()),
        {"truncated": "warning"},
        WARNED,
        "gzip data ends early",
    ),
    "unreadable_events": Boundary(
        lambda: spoiled('"ts": 0.000', '"ts": null'),
        lambda: spoiled('"ts": 0.000', '"ts": "0.000"'),
        {"unreadable_events": "warning"},
        WARNED,
        "1 event.*ProfilerStep",
    ),
    "repaired_events": Boundary(
        lambda: spoiled('"gemm"', '"ge\x01mm"'),
        lambda: spoiled('"gemm"', r'"ge\u0001mm"'),
        {"repaired_events": "info"},
        NOTED,
        "^1 event",
    ),
    "several_documents": Boundary(
        lambda: 2 * sound().text().encode(),
        lambda: sound(),
        {"several_documents": "warning"},
        WARNED,
        "only the first",
    ),
    "several_documents: members of gzip": Boundary(
        lambda: 2 * gzip.compress(sound().text().encode()),
        lambda: b"".join(gzip.compress(half) for half in halves(sound().text().encode())),
        {"several_documents": "warning"},
        WARNED,
        "only the first",
    ),
    "two_event_lists": Boundary(
        lambda: sound().text().replace('], "traceName"', '], "traceEvents": ' + LISTED + ', "traceName"').encode(),
        lambda: sound().event(ph="X", cat="x", name='a "traceEvents": [', pid=1, tid=1, ts=0, dur=1),
        {"two_event_lists": "warning"},
        WARNED,
        "read as one",
    ),
    "two_event_lists: one after the other": Boundary(
        lambda: (2 * LISTED).encode(),
        lambda: LISTED.encode(),
        {"two_event_lists": "warning"},
        WARNED,
        of_the_fine={},
    ),
    "no_events": Boundary(
        lambda: TraceBuilder().op("aten::mm", 5, 5),
        lambda: TraceBuilder().op("aten::mm", 5, 6, **dims([8])),
        {"no_events": "error"},
        FAILED,
        of_the_fine={"no_gpu_events": "error", **GUESSES},
    ),
    "no_events: an empty list": Boundary(
        TraceBuilder, lambda: TraceBuilder().gpu("gemm", 5, 1_005), {"no_events": "error"}, FAILED, of_the_fine=BARE
    ),
    "no_gpu_events: recorded on the CPU": Boundary(
        lambda: without(without(sound(), "kernel"), "cuda_runtime"),
        sound,
        {"no_gpu_events": "error"},
        FAILED,
        "on the CPU only.*ProfilerActivity.CUDA",
    ),
    "no_gpu_events: CUPTI": Boundary(
        lambda: without(sound(), "kernel"), sound, {"no_gpu_events": "error"}, FAILED, "100 kernels.*CUPTI"
    ),
    "no_gpu_events: calls that launch nothing": Boundary(
        lambda: without(without(sound(), "kernel"), "cuda_runtime").call("cudaMalloc", 5, 6),
        sound,
        {"no_gpu_events": "error"},
        FAILED,
        "on the CPU only",
    ),
    "no_gpu_events: of another accelerator": Boundary(
        lambda: without(without(sound(), "kernel"), "cuda_runtime").event(
            ph="X", cat="mtia_ccp_events", name="dma_request", pid=0, tid=3, ts=5_000, dur=9_000, args={}
        ),
        sound,
        {"no_gpu_events": "error"},
        FAILED,
        "^This records an MTIA accelerator: .* only for CUDA and ROCm GPUs",
    ),
    "little_gpu_work: one short kernel": Boundary(
        lambda: alone(999),
        lambda: alone(1_000),
        {"little_gpu_work": "error"},
        FAILED,
        "^The GPU works 0.999 µs in 0.01",
    ),
    "little_gpu_work: a few in a long step": Boundary(
        lambda: sparse(9), lambda: sparse(10), {"little_gpu_work": "error"}, FAILED, "copies: 9"
    ),
    "silent_end": Boundary(
        lambda: one_step(10_000, then=10_001),
        lambda: one_step(10_000, then=10_000),
        {"silent_end": "error"},
        FAILED,
        "^Nothing was recorded in the last 0.01 of 0.02 ms",
    ),
    "impossible_times: of work that the steps launched": Boundary(
        lambda: sound().launch("gemm", (500, 600), (4 * 10**18, 4 * 10**18 + 1_000), stream=9),
        lambda: sound().launch("gemm", (500, 600), (WINDOW + DAY - 1_000, WINDOW + DAY), stream=9),
        {"impossible_times": "error"},
        FAILED,
        "^Of the kernels and copies that the steps launched 1 lie more than a day",
    ),
    "gpu_events_lost": Boundary(
        lambda: without(sound(), "kernel", 3),
        lambda: without(sound(), "kernel", 2),
        {"gpu_events_lost": "warning"},
        WARNED,
        "^3 of 100 launches",
    ),
    "gpu_events_lost: most": Boundary(
        lambda: without(sound(), "kernel", 51),
        lambda: without(sound(), "kernel", 50),
        {"gpu_events_lost": "error"},
        FAILED,
        "^51 of 100 launches",
        of_the_fine={"gpu_events_lost": "warning"},
    ),
    "gpu_events_lost: copies of no bytes leave no event": Boundary(
        lambda: calls_without_work("cudaLaunchKernelExC"),
        lambda: calls_without_work("cudaMemcpyAsync"),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "gpu_events_lost: nor does a callback": Boundary(
        lambda: calls_without_work("cudaLaunchCooperativeKernel"),
        lambda: calls_without_work("cudaLaunchHostFunc"),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "gpu_events_lost: other calls do not count": Boundary(
        lambda: calls_without_work("cuLaunchKernelEx"),
        lambda: calls_without_work("cudaEventRecord"),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "gpu_events_lost: nor do calls outside of the steps": Boundary(
        lambda: calls_without_work("hipLaunchKernel", at=STEP),
        lambda: calls_without_work("hipLaunchKernel", at=WINDOW),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "gpu_events_lost: nor those that cannot be linked": Boundary(
        lambda: calls_without_work("hipExtModuleLaunchKernel"),
        lambda: calls_without_work("hipExtModuleLaunchKernel", correlation=0),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "graph_capture": Boundary(
        lambda: calls_without_work("cudaLaunchKernel", count=3, captured=True),
        lambda: calls_without_work("cudaLaunchKernel", count=2, captured=True),
        {"graph_capture": "warning"},
        WARNED,
        "^This records the capture of a CUDA graph: 3 of 103 launches",
    ),
    "graph_capture: what ran during it was not captured": Boundary(
        lambda: without(sound(), "kernel", 3).call("hipStreamBeginCapture", 0, 1).call("hipStreamEndCapture", 5, 6),
        lambda: sound().call("cudaStreamBeginCapture", 0, 1).call("cudaStreamEndCapture", STEP // 2, STEP),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "graph_capture: most of the recording": Boundary(
        lambda: captured_steps(60, "cudaStreamBeginCapture_v10000"),
        lambda: captured_steps(40, "cudaStreamBeginCapture_v10000"),
        {"graph_capture": "error"},
        FAILED,
        "^This records the capture of a CUDA graph: 60 of 100 launches",
        of_the_fine={"graph_capture": "warning"},
    ),
    "graph_capture: nothing but one": Boundary(
        lambda: captured_steps(100, "hipStreamBeginCapture"),
        sound,
        {"graph_capture": "error"},
        FAILED,
        "^This records the capture of a CUDA graph: 100 of 100 launches",
    ),
    "ends_busy": Boundary(
        lambda: calls_without_work("cudaLaunchKernel", at=WINDOW - 100, count=3),
        lambda: calls_without_work("cudaLaunchKernel", at=WINDOW - 100, count=2),
        {"ends_busy": "info"},
        NOTED,
        "^The recording ends while the GPU is busy: 3 of 103 launches",
    ),
    "ends_busy: not where the GPU stopped before": Boundary(
        lambda: calls_without_work("cudaLaunchKernel", at=WINDOW - 100).op("aten::mm", WINDOW, WINDOW + STEP // 20),
        lambda: calls_without_work("cudaLaunchKernel", at=WINDOW - 100, count=2),
        {"gpu_events_lost": "warning"},
        WARNED,
    ),
    "gpu_events_unlinked": Boundary(
        lambda: lone_kernels(3), lambda: lone_kernels(2), {"gpu_events_unlinked": "info"}, NOTED, "^3 of 103 GPU events"
    ),
    "no_calls": Boundary(
        lambda: without(sound(), "cuda_runtime"),
        lambda: without(sound(), "cuda_runtime", 2),
        {"no_calls": "warning", "gpu_events_unlinked": "warning"},
        WARNED,
    ),
    "no_host_events": Boundary(
        lambda: without(without(sound(steps=False), "cuda_runtime"), "cpu_op"),
        lambda: sound(steps=False),
        BARE,
        WARNED,
        of_the_fine=GUESSES,
    ),
    "host_ahead": Boundary(
        lambda: runs_over(WINDOW // 4 + 1),
        lambda: runs_over(WINDOW // 4),
        {"host_ahead": "warning"},
        WARNED,
        "The GPU finishes 0.5 ms",
    ),
    "negative_durations": Boundary(
        lambda: sound().op("aten::add", 500, 499),
        lambda: sound().op("aten::add", 500, 500),
        {"negative_durations": "warning"},
        WARNED,
        "^1 event",
    ),
    "negative_durations: of the GPU": Boundary(
        lambda: sound().launch("gemm", (30, 40), (60, 50)),
        lambda: sound().launch("gemm", (30, 40), (60, 60)),
        {"negative_durations": "warning"},
        WARNED,
    ),
    "no_steps": Boundary(lambda: sound(steps=False), sound, GUESSES, WARNED, "No steps.*--step"),
    "steps_guessed": Boundary(
        lambda: periodic(steps=False), lambda: periodic(steps=True), {"steps_guessed": "info"}, NOTED
    ),
    "cut_steps": Boundary(
        lambda: sound((10, 10, 6)), lambda: sound((10, 10, 7)), {"cut_steps": "info"}, NOTED, "^1 incomplete step "
    ),
    "cut_steps: the first too": Boundary(
        lambda: sound((6, 10, 10, 10, 6)), lambda: sound((7, 10, 10, 10, 7)), {"cut_steps": "info"}, NOTED, "^2 .*steps"
    ),
    "cut_steps: a light step between others is none": Boundary(
        lambda: sound((10, 10, 10, 1)), lambda: sound((10, 10, 1, 10)), {"cut_steps": "info"}, NOTED
    ),
    "profiler_overhead": Boundary(
        lambda: overhead(WINDOW // 100 + 1), lambda: overhead(WINDOW // 100), {"profiler_overhead": "info"}, NOTED
    ),
    "profiler_overhead: much": Boundary(
        lambda: overhead(WINDOW // 20 + 1),
        lambda: overhead(WINDOW // 20),
        {"profiler_overhead": "warning"},
        WARNED,
        "0.1 ms",
        of_the_fine={"profiler_overhead": "info"},
    ),
    "profiler_overhead: not a full queue": Boundary(
        lambda: overhead(WINDOW // 2, "Buffer Flush"),
        lambda: overhead(WINDOW // 2, "Command Buffer Full"),
        {"profiler_overhead": "warning"},
        WARNED,
    ),
    "profiler_overhead: nor the loading of modules": Boundary(
        lambda: overhead(WINDOW // 2, "Instrumentation"),
        lambda: overhead(WINDOW // 2, "Lazy Function Loading"),
        {"profiler_overhead": "warning"},
        WARNED,
        of_the_fine={"start_up_steps": "info"},
    ),
    "profiler_overhead: only inside of the steps, and once": Boundary(
        lambda: overhead(WINDOW, at=WINDOW - WINDOW // 10),
        lambda: overhead(WINDOW, at=WINDOW - WINDOW // 200).overhead("Buffer Flush", WINDOW - WINDOW // 200, WINDOW),
        {"profiler_overhead": "warning"},
        WARNED,
    ),
    "start_up": Boundary(
        lambda: sound((50,)).overhead("Lazy Function Loading", STEP // 4, STEP // 4 + 2 * STEP // 5),
        lambda: sound((50,)).overhead("Lazy Function Loading", STEP // 4, STEP // 4 + STEP // 100),
        {"start_up": "warning"},
        WARNED,
        r"^40 % of this window is the program's start \(loading code 0.4 ms\).*no fix is predicted",
    ),
    "start_up: little of it": Boundary(
        lambda: overhead(STEP // 5, "Runtime Triggered Module Loading", at=STEP // 4),
        lambda: overhead(STEP, "Runtime Triggered Module Loading", at=STEP // 2),  # in each step: no start
        {"start_up": "info"},
        NOTED,
        r"^10 % of this window .*loading code",
    ),
    "start_up_steps": Boundary(
        lambda: overhead(STEP // 2, "Lazy Function Loading", at=STEP // 4),
        lambda: overhead(STEP // 100, "Lazy Function Loading", at=STEP // 4),
        {"start_up_steps": "info"},
        "ok",
        "^1 step at the beginning",
    ),
    "steps_apart": Boundary(
        lambda: sound_ranges(810_000),
        lambda: sound_ranges(825_000),
        {"steps_apart": "warning"},
        WARNED,
        "cover 1.6 ms of the 1.8 ms",
    ),
    "no_shapes": Boundary(
        lambda: sound(shapes=False),
        lambda: sound(shapes=False).op("aten::add", 15_000, 15_100, **dims([8])),
        {"no_shapes": "info"},
        NOTED,
    ),
    "inner_ops_left_out": Boundary(
        lambda: nested(10), lambda: nested(11), {"inner_ops_left_out": "info"}, NOTED, "from the remaining ops"
    ),
    "impossible_times": Boundary(
        lambda: one_step(DAY + 1), lambda: one_step(DAY), {"impossible_times": "error"}, FAILED, "1.0 days"
    ),
    "impossible_times: outside of the steps": Boundary(
        lambda: sound(steps=False).op("aten::add", -50 * 365 * DAY, -50 * 365 * DAY + 1_000),
        lambda: sound().op("aten::add", -50 * 365 * DAY, -50 * 365 * DAY + 1_000),
        {"impossible_times": "error"},
        FAILED,
        "18,2[0-9.,]+ days",
    ),
    "impossible_times: beyond 64 bits": Boundary(
        lambda: sound().op("aten::add", 5, 2**62),
        lambda: sound().op("aten::add", 5, 2**62 - 1),
        {"impossible_times": "error"},
        FAILED,
    ),
}

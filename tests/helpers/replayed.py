"""Graphs to replay: of a made trace, and of a loop that is limited by its CPU, its GPU or its queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuprof.replay.build.build import build
from gpuprof.replay.graph import (
    DEVICE,
    HOST,
    LANE,
    LAUNCH,
    NEVER,
    QUEUE,
    STREAM,
    Graph,
    edges_of,
)
from helpers.make_trace import TraceBuilder
from helpers.timeline import timeline_of


def graph_of(trace: TraceBuilder, folder: Path) -> Graph:
    """The graph of a trace, which is written into the folder."""
    return build(timeline_of(trace.write(folder / "trace.json")))


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

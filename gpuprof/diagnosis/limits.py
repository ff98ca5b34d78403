"""What limits each kernel, compute, memory or latency: by its own work, counters, or what usually limits its like."""

from __future__ import annotations

import numpy as np

from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.diagnosis.kernels import category_bound
from gpuprof.diagnosis.range_times import SAMPLED_NS
from gpuprof.timeline.activity import activity
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.devices import COMPUTE as COMPUTE_WORK
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, KERNEL, U8
from gpuprof.units import Assumed, Percent, Published, Sequences, WholeNs

LEAST_USED: Assumed[Percent] = 20.0
"""Percent. Where tensor cores and memory are both used less than this, neither is what the kernel waits for: the least
of what limits a kernel in practice is twice that."""

SHORT_NS: Assumed[WholeNs] = 4_000
"""Kernels shorter than this of which nothing else is known are limited by their launch and ramp-up, not by what they
compute or move."""

MOST_READING_WEIGHTS: Published[Sequences] = 128
"""Sequences that get a new token at once, up to which reading weights takes longer than multiplying by them: each
weight of 2 bytes is read for 2 operations a sequence, and GPUs do 150 (A100) to 295 (H100) operations in bf16 in the
time of a byte, by their datasheets."""

_CODES: dict[str | None, int] = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}


def limits(timeline: Timeline, roofline: Roofline | None) -> U8:
    """Per GPU event what limits it: by its own work, else by what the GPU's counters showed while its like ran, else
    latency if it is a short kernel, else what usually limits its like."""
    gpu = timeline.trace.gpu
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    bound = np.full(len(gpu), NO_BOUND, np.uint8) if roofline is None else roofline.split.bound
    usual = _usual(timeline)
    if timeline.host.known:
        usual = np.where((gpu.kind == KERNEL) & (whole < SHORT_NS), np.uint8(LATENCY), usual)
    for other in (_counted(timeline), usual):
        bound = np.where(bound == NO_BOUND, other, bound)
    return bound


def bound_parts(timeline: Timeline, roofline: Roofline | None) -> dict[str, F64]:
    """Per GPU event its whole time under what limits it (see `limits`)."""
    gpu, bound = timeline.trace.gpu, limits(timeline, roofline)
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    return {name: np.where(bound == code, whole, 0.0) for name, code in _CODES.items() if name}


def _usual(timeline: Timeline) -> U8:
    """Per GPU event what usually limits its like. Of a recording of the GPU alone that is not known: the same kernel is
    limited by something else in another program. Where each sequence gets one new token all kernels read weights, or
    the cache, and do little else, those of graphs that were recorded as a whole too."""
    gpu, work = timeline.trace.gpu, timeline.workload
    if not timeline.host.known and not work.is_inference:
        return np.full(len(gpu), NO_BOUND, np.uint8)
    usual = np.array([_CODES.get(category_bound(name), NO_BOUND) for name in CATEGORIES], np.uint8)[timeline.category]
    if work.decodes and (work.batch or 1) <= MOST_READING_WEIGHTS:
        usual = np.where((gpu.kind == KERNEL) & (timeline.kind == COMPUTE_WORK), np.uint8(MEMORY), usual)
    return usual


def part_shares(timeline: Timeline, roofline: Roofline | None, device: int) -> dict[str, float]:
    """compute | memory | latency → the share of a device's compute kernels that it limits; they sum to 1 at most."""
    gpu, rows = timeline.trace.gpu, timeline.members
    rows = rows[(timeline.kind[rows] == COMPUTE_WORK) & (gpu.device[rows] == device)]
    total = float((gpu.end_ns - gpu.start_ns)[rows].clip(0).sum())
    return {name: float(ns[rows].sum()) / max(total, 1.0) for name, ns in bound_parts(timeline, roofline).items()}


def _counted(timeline: Timeline) -> U8:
    """Per GPU event what its kernel is limited by as the counters tell; NO_BOUND where they do not."""
    gpu = timeline.trace.gpu
    found = activity(timeline, np.where(gpu.kind == KERNEL, gpu.name, -1).astype(np.int64))
    code = np.full(len(timeline.trace.strings) + 1, NO_BOUND, np.uint8)
    for name, one in found.items():
        if one.busy_ns >= SAMPLED_NS and one.tensor is not None and one.dram is not None:
            more = COMPUTE if one.tensor > one.dram else MEMORY
            code[name] = more if max(one.tensor, one.dram) >= LEAST_USED else LATENCY
    return np.where(gpu.kind == KERNEL, code[gpu.name], NO_BOUND).astype(np.uint8)

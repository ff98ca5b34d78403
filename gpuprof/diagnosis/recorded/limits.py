"""What limits each kernel (compute, memory or latency): by its FLOPs and bytes, by counters, or by its category."""

from __future__ import annotations

import numpy as np

from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY, NO_BOUND
from gpuprof.diagnosis.recorded.gpu_work import category_bound
from gpuprof.diagnosis.recorded.range_times import SAMPLED_NS
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.devices import COMPUTE as COMPUTE_WORK
from gpuprof.timeline.gpu.activity import activity
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, KERNEL, U8
from gpuprof.units import Assumed, Percent, Published, Sequences, WholeNs

LEAST_USED: Assumed[Percent] = 20.0
"""Percent. If tensor cores and memory are both used less than this, neither limits the kernel: in practice the limiting
one is used at least twice as much."""

LAUNCH_LIMITED_NS: Assumed[WholeNs] = 4_000
"""Kernels shorter than this, if nothing else is known about them, are limited by launch and ramp-up, not by what they
compute or move."""

MOST_READING_WEIGHTS: Published[Sequences] = 128
"""Batch size in decoding up to which reading weights takes longer than multiplying by them: each 2-byte weight is read
for 2 FLOPs per sequence, and by their datasheets GPUs do 150 (A100) to 295 (H100) bf16 FLOPs in the time of reading one
byte."""

_CODES: dict[str | None, int] = {"compute": COMPUTE, "memory": MEMORY, "latency": LATENCY}


def limits(timeline: Timeline, roofline: Roofline | None) -> U8:
    """What limits each GPU event: from its FLOPs and bytes, else from GPU counters while kernels of its name ran, else
    latency if it is a short kernel, else what usually limits its category."""
    gpu = timeline.trace.gpu
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    bound = np.full(len(gpu), NO_BOUND, np.uint8) if roofline is None else roofline.split.bound
    usual = _usual(timeline)
    if timeline.host.known:
        usual = np.where((gpu.kind == KERNEL) & (whole < LAUNCH_LIMITED_NS), np.uint8(LATENCY), usual)
    for other in (_counted(timeline), usual):
        bound = np.where(bound == NO_BOUND, other, bound)
    return bound


def bound_parts(timeline: Timeline, roofline: Roofline | None) -> dict[str, F64]:
    """Limit → per GPU event its whole time if it has that limit, else 0 (see `limits`)."""
    gpu, bound = timeline.trace.gpu, limits(timeline, roofline)
    whole = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    return {name: np.where(bound == code, whole, 0.0) for name, code in _CODES.items() if name}


def _usual(timeline: Timeline) -> U8:
    """What usually limits each GPU event's category. Unknown for a recording of the GPU alone, where the same kernel
    may have another limit in another program. If each sequence gets one new token, all kernels mostly read weights or
    the cache, including those of CUDA graphs recorded as a whole."""
    gpu, work = timeline.trace.gpu, timeline.workload
    if not timeline.host.known and not work.is_inference:
        return np.full(len(gpu), NO_BOUND, np.uint8)
    usual = np.array([_CODES.get(category_bound(name), NO_BOUND) for name in CATEGORIES], np.uint8)[timeline.category]
    if work.decodes and (work.batch or 1) <= MOST_READING_WEIGHTS:
        usual = np.where((gpu.kind == KERNEL) & (timeline.kind == COMPUTE_WORK), np.uint8(MEMORY), usual)
    return usual


def part_shares(timeline: Timeline, roofline: Roofline | None, device: int) -> dict[str, float]:
    """compute | memory | latency → share of a device's compute kernel time that it limits; they sum to at most 1."""
    gpu, rows = timeline.trace.gpu, timeline.members
    rows = rows[(timeline.kind[rows] == COMPUTE_WORK) & (gpu.device[rows] == device)]
    total = float((gpu.end_ns - gpu.start_ns)[rows].clip(0).sum())
    return {name: float(ns[rows].sum()) / max(total, 1.0) for name, ns in bound_parts(timeline, roofline).items()}


def _counted(timeline: Timeline) -> U8:
    """What limits each GPU event's kernel according to GPU counters; NO_BOUND if they do not say."""
    gpu = timeline.trace.gpu
    found = activity(timeline, np.where(gpu.kind == KERNEL, gpu.name, -1).astype(np.int64))
    code = np.full(len(timeline.trace.strings) + 1, NO_BOUND, np.uint8)
    for name, one in found.items():
        if one.busy_ns >= SAMPLED_NS and one.tensor is not None and one.dram is not None:
            more = COMPUTE if one.tensor > one.dram else MEMORY
            code[name] = more if max(one.tensor, one.dram) >= LEAST_USED else LATENCY
    return np.where(gpu.kind == KERNEL, code[gpu.name], NO_BOUND).astype(np.uint8)

"""The roofline of a recording: its kernels' work compared with the GPU's ceilings, in sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuprof.costs.ceilings import Ceilings, ceilings
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.hardware import name_of
from gpuprof.costs.split import LATENCY, NO_BOUND, PARTS, Split, most, split
from gpuprof.costs.work import KernelWork, kernel_work
from gpuprof.timeline.categories import CATEGORIES, COMMUNICATION
from gpuprof.timeline.phases import RECOMPUTE
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Share

MATMULS = ("gemm", "grouped_gemm", "attention")
"""Categories whose kernels do nearly all FLOPs of a model."""
MOST_UNKNOWN: Assumed[Share] = 0.5
"""If FLOPs are unknown for more than this share of their time, no MFU is given."""


@dataclass(frozen=True, slots=True)
class GroupRoof:
    """Kernels that share a name or a category."""

    key: int
    """String id of the kernels' name, or index into CATEGORIES."""
    ns: int
    count: int
    flops: float | None
    """Summed over the kernels whose work is known; None if it is known for none. Likewise `bytes`."""
    bytes: float | None
    bound: str | None
    """compute | memory | latency: what limits most of their time."""
    efficiency: float | None
    """Time at the roof / time taken, for kernels whose work is known."""
    split_ns: dict[str, int]
    """Part of PARTS → ns; sums to `ns`."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The GPU work of the window against the ceilings of its device."""

    ceilings: Ceilings
    work: KernelWork
    """One row per GPU event of the trace; likewise `split`."""
    split: Split
    compute_ns: int
    """Compute time of the window's GPU work; the five parts sum to `kernels.total_ns`."""
    memory_ns: int
    latency_ns: int
    inefficient_ns: int
    unmodelled_ns: int
    communication_ns: int
    """Part of `unmodelled_ns`: collectives, whose time is waiting and links rather than arithmetic or memory."""
    bound_ns: dict[str, int]
    """compute | memory | latency → time of the kernels that it limits, including their inefficiency."""
    model_flops: dict[str, float]
    """dtype → FLOPs of one step and device that the model needs, without recomputation."""
    hardware_flops: dict[str, float]
    """dtype → FLOPs of one step and device as executed."""
    by_category: tuple[GroupRoof, ...]
    by_name: tuple[GroupRoof, ...]
    """All kernels grouped by name, most time first."""

    def mfu(self, step_ns: float) -> float | None:
        """Model FLOPs / what the dense peak could do in a step of this length, each format by its own peak. None if
        most of the work with FLOPs is unknown."""
        return _utilization(self.model_flops, self.ceilings, step_ns) if self._knows_flops else None

    def hfu(self, step_ns: float) -> float | None:
        """The same for all executed FLOPs."""
        return _utilization(self.hardware_flops, self.ceilings, step_ns) if self._knows_flops else None

    @property
    def _knows_flops(self) -> bool:
        """Whether FLOPs are known for most of the time of matrix multiplications and attention."""
        with_flops = [group for group in self.by_category if CATEGORIES[group.key] in MATMULS]
        unknown = sum(group.split_ns["unmodelled"] for group in with_flops)
        return unknown <= MOST_UNKNOWN * sum(group.ns for group in with_flops)

    @property
    def bound_shares(self) -> dict[str, float]:
        """compute | memory | latency → share of the kernels' time without communication; the rest is unknown."""
        total = sum(self.bound_ns.values()) + self.unmodelled_ns - self.communication_ns
        return {key: ns / total for key, ns in self.bound_ns.items() if ns} if total > 0 else {}

    @property
    def unmodelled_share(self) -> float:
        """Share of the GPU time without communication whose work is unknown."""
        rest = self.unmodelled_ns - self.communication_ns
        known = self.compute_ns + self.memory_ns + self.latency_ns + self.inefficient_ns
        return rest / (rest + known) if rest + known else 0.0


def roofline(timeline: Timeline, limits: Ceilings | None = None) -> Roofline | None:
    """The roofline of a recording; None if its GPU is unknown and no ceilings are given."""
    limits = limits or _recorded(timeline)
    if limits is None:
        return None
    events, rows = timeline.trace.gpu, timeline.members
    work = kernel_work(timeline, limits.gpu)
    duration = (events.end_ns - events.start_ns).clip(0)
    parted = split(duration, work, limits)
    ns = duration[rows]
    sums = {name: int(part[rows].sum()) for name, part in zip(PARTS, parted.parts, strict=True)}
    shares = len(timeline.steps.start_ns) * max(len(timeline.devices), 1)
    repeated = np.where(timeline.phase == RECOMPUTE, work.flops, work.repeated_flops)
    hardware = _by_dtype(work.flops[rows], work.dtype[rows], shares)
    again = _by_dtype(repeated[rows], work.dtype[rows], shares)
    return Roofline(
        ceilings=limits,
        work=work,
        split=parted,
        compute_ns=sums["compute"],
        memory_ns=sums["memory"],
        latency_ns=sums["latency"],
        inefficient_ns=sums["inefficient"],
        unmodelled_ns=sums["unmodelled"],
        communication_ns=int(ns[timeline.category[rows] == COMMUNICATION].sum()),
        bound_ns={PARTS[code]: int(ns[parted.bound[rows] == code].sum()) for code in range(LATENCY + 1)},
        model_flops={dtype: flops - again.get(dtype, 0.0) for dtype, flops in hardware.items()},
        hardware_flops=hardware,
        by_category=_groups(timeline.category[rows].astype(np.int64), rows, ns, work, parted),
        by_name=_groups(events.name[rows].astype(np.int64), rows, ns, work, parted),
    )


def category_bounds(found: Roofline) -> dict[str, str | None]:
    """Category → what limits most of its time."""
    return {CATEGORIES[group.key]: group.bound for group in found.by_category}


def _recorded(timeline: Timeline) -> Ceilings | None:
    """Ceilings of the first device that did work."""
    infos = {info.device: info for info in timeline.trace.meta.gpus}
    for device in timeline.devices:
        info = infos.get(device.device)
        if info is not None:
            return ceilings(name_of(info), info.memory_bytes)
    return None


def _by_dtype(flops: F64, dtype: np.ndarray, shares: int) -> dict[str, float]:
    """FLOPs per format, of one step and device, whatever the order of the events."""
    known = (dtype != UNKNOWN) & (flops > 0)
    codes = np.unique(dtype[known]).tolist()
    return {DTYPES[code]: math.fsum(flops[known & (dtype == code)].tolist()) / shares for code in codes}


def _utilization(flops: dict[str, float], limits: Ceilings, step_ns: float) -> float | None:
    """Time of the FLOPs at their dense peaks, divided by the step; None if no FLOPs are known or a peak is not
    stated."""
    if step_ns <= 0 or not flops or any(dtype not in limits.peak_flops for dtype in flops):
        return None
    return sum(amount / limits.peak_flops[dtype] for dtype, amount in flops.items()) * 1e9 / step_ns


def _groups(keys: I64, rows: I64, ns: I64, work: KernelWork, parted: Split) -> tuple[GroupRoof, ...]:
    """The window's events by key, most time first."""
    distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    known = parted.bound[rows] != NO_BOUND

    def summed(values: np.ndarray) -> np.ndarray:
        totals = np.zeros(len(distinct), values.dtype)
        np.add.at(totals, inverse, values)
        return totals

    modelled = work.model[rows]
    any_known = summed(modelled.astype(np.int64)) > 0
    flops = summed(np.where(modelled, work.flops[rows], 0.0))
    moved = summed(np.where(modelled, work.bytes[rows], 0.0))
    total, known_ns = summed(ns), summed(np.where(known, ns, 0))
    parts = [summed(part[rows]) for part in parted.parts]
    roof = parts[0] + parts[1]
    bound = [np.where(parted.bound[rows] == code, ns, 0) for code in range(LATENCY + 1)]
    bounds = np.array([summed(part) for part in bound])
    groups = []
    for i in np.argsort(-total, kind="stable").tolist():
        has = bool(any_known[i])
        groups.append(
            GroupRoof(
                key=int(distinct[i]),
                ns=int(total[i]),
                count=int(counts[i]),
                flops=float(flops[i]) if has else None,
                bytes=float(moved[i]) if has else None,
                bound=most(bounds[:, i], int(total[i])),
                efficiency=float(roof[i] / known_ns[i]) if known_ns[i] > 0 else None,
                split_ns={name: int(part[i]) for name, part in zip(PARTS, parts, strict=True)},
            )
        )
    return tuple(groups)

"""The roofline split of each kernel's time, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.costs.ceilings import Ceilings
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.work import KernelWork
from gpuprof.tracefile.trace import F64, I64, U8

PARTS = ("compute", "memory", "latency", "inefficient", "unmodelled")
COMPUTE, MEMORY, LATENCY, NO_BOUND = 0, 1, 2, 255
"""Codes of what limits a kernel; the first three index into PARTS."""


@dataclass(frozen=True, slots=True)
class Split:
    """Per GPU event the parts of its duration; the five sum to it exactly."""

    compute_ns: I64
    memory_ns: I64
    latency_ns: I64
    inefficient_ns: I64
    """Time above its roof: neither arithmetic nor memory was used at its ceiling."""
    unmodelled_ns: I64
    bound: U8
    """COMPUTE, MEMORY or LATENCY; NO_BOUND where its work is not known."""
    efficiency: F64
    """Time at the roof over the time taken, at most 1; NaN where its work is not known."""

    @property
    def parts(self) -> tuple[I64, I64, I64, I64, I64]:
        """The five parts, in the order of PARTS."""
        return self.compute_ns, self.memory_ns, self.latency_ns, self.inefficient_ns, self.unmodelled_ns


def roof_ns(work: KernelWork, ceilings: Ceilings) -> tuple[F64, F64]:
    """(time of the arithmetic, time of the traffic) of each event at the ceilings, ns; NaN if not known."""
    rates = np.array([*(ceilings.flops.get(name, np.nan) for name in DTYPES)])
    rate = np.full(len(work.dtype), np.nan)
    known = work.dtype != UNKNOWN
    rate[known] = rates[work.dtype[known]]
    compute = np.where(work.flops == 0, 0.0, work.flops / rate * 1e9)
    over = np.where(work.over_link, ceilings.link_bytes_per_s or np.nan, ceilings.memory_bytes_per_s)
    return compute, work.traffic_bytes / over * 1e9


def split(duration_ns: I64, work: KernelWork, ceilings: Ceilings) -> Split:
    """Splits each duration (negative ones count as 0).

    A kernel takes at least the longer of its two roof times: that part is compute or memory. Of the rest, up to the
    launch floor is latency, or up to a chain of dependent steps for a kernel whose roof is below that floor. What then
    remains is inefficiency. The kernel's limit is the largest of compute, memory and latency.
    """
    duration = np.maximum(duration_ns, 0)
    compute, memory = roof_ns(work, ceilings)
    known = work.model & ~np.isnan(compute) & ~np.isnan(memory)
    by_compute = known & (compute >= memory) & (compute > 0)
    roof = np.where(known, np.maximum(np.nan_to_num(compute), np.nan_to_num(memory)), 0.0)
    limited = np.minimum(np.rint(roof).astype(np.int64), duration)
    rest = np.where(known, duration - limited, 0)
    floor = np.where(roof < ceilings.launch_floor_ns, ceilings.chain_ns, ceilings.launch_floor_ns)
    latency = np.minimum(rest, floor)
    bound = np.where(by_compute, COMPUTE, MEMORY).astype(np.uint8)
    bound[latency > limited] = LATENCY
    bound[~known] = NO_BOUND
    with np.errstate(invalid="ignore", divide="ignore"):
        efficiency = np.where(duration > 0, np.minimum(roof / duration, 1.0), np.nan)
    efficiency[~known] = np.nan
    return Split(
        compute_ns=np.where(by_compute, limited, 0),
        memory_ns=np.where(known & ~by_compute, limited, 0),
        latency_ns=latency,
        inefficient_ns=rest - latency,
        unmodelled_ns=np.where(known, 0, duration),
        bound=bound,
        efficiency=efficiency,
    )


def most(bound_ns: I64, total_ns: int) -> str | None:
    """What limits most of some kernels' time: compute | memory | latency; None if the work of most is not known.

    bound_ns: time of the kernels that each limits, in the order of PARTS.
    """
    known = int(bound_ns.sum())
    return PARTS[int(bound_ns.argmax())] if known and 2 * known >= total_ns else None

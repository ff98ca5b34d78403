"""The roofline in the diagnosis's own words."""

from __future__ import annotations

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.model import RooflineSummary


def summarize(found: Roofline, step_ns: float) -> RooflineSummary:
    """Sums and rates; MFU and HFU for an unprofiled step of `step_ns`."""
    limits = found.ceilings
    return RooflineSummary(
        ceilings={
            "gpu": limits.gpu.name,
            "source": limits.source,
            "flops": dict(limits.flops),
            "memory_bytes_per_s": limits.memory_bytes_per_s,
        },
        mfu=found.mfu(step_ns),
        hfu=found.hfu(step_ns),
        compute_ns=found.compute_ns,
        memory_ns=found.memory_ns,
        latency_ns=found.latency_ns,
        inefficient_ns=found.inefficient_ns,
        unmodelled_ns=found.unmodelled_ns,
    )

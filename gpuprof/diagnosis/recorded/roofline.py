"""The roofline as part of a diagnosis."""

from __future__ import annotations

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.result.diagnosis import Issue, RooflineSummary, UsefulWork
from gpuprof.timeline.unit import Unit


def summarize(found: Roofline, step_ns: float, useful: UsefulWork | None = None) -> RooflineSummary:
    """Sums and rates; MFU and HFU for an unprofiled step of `step_ns`. useful: which of its model FLOPs are left."""
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
        useful=useful,
    )


def beyond_peak(found: RooflineSummary | None, unit: Unit) -> Issue | None:
    """The issue if FLOPs exceed what the device can do, so that one of the inputs must be wrong."""
    most = max((value for value in (found.mfu, found.hfu) if value is not None), default=0.0) if found else 0.0
    if found is None or most <= 1:
        return None
    return Issue(
        "beyond_peak",
        "warning",
        f"The recorded shapes come to {100 * most:,.0f} % of the dense peak of {found.ceilings['gpu']}, more than it"
        f" can do: the shapes, the {unit} time or the name of the GPU are wrong, and so is what follows from them (MFU,"
        " what limits kernels, predictions).",
    )

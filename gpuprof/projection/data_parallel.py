"""Several GPUs of one kind in one machine, each with its own batch: the cost of exchanging gradients.

A ring all-reduce sends 2·(n−1)/n times the gradients' bytes over each GPU's link, in buckets as DDP makes them, while
the backward pass continues; what it does not hide, and in any case the last bucket, is waited for.
"""

from __future__ import annotations

import math

from gpuprof.calibration import collectives as calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.projection.projection import Scaling
from gpuprof.units import GB, Assumed, Bytes, Published

BUCKET_BYTES: Published[Bytes] = 25 * 2**20
"""DDP's default bucket size."""
UNKNOWN_HOST_LINK_GB: Assumed[GB] = 16.0
"""GB/s of a link to the CPU that is not known: PCIe 3.0 with 16 lanes."""


def scaling(gpu: Gpu, gpus: int, step_ns: float, backward_ns: float, gradient_bytes: float) -> Scaling:
    """A step on `gpus` such GPUs, given the step on one, `step_ns`, and the time of its backward passes,
    `backward_ns`."""
    rate, link = _link(gpu)
    buckets = max(math.ceil(gradient_bytes / BUCKET_BYTES), 1)
    moved = 2 * (gpus - 1) / gpus * gradient_bytes
    start = calibrated.RING_START_NS.value * math.log2(gpus) if gpus > 1 else 0.0
    collective = moved / rate * 1e9 + buckets * start if gpus > 1 else 0.0
    last = collective / buckets
    # Nothing is exchanged before the first bucket is full.
    hidden = backward_ns * (buckets - 1) / buckets
    exposed = max(last, collective - hidden)
    total = step_ns + exposed
    return Scaling(gpus, total, collective, exposed, step_ns / total if total else 1.0, link)


def _link(gpu: Gpu) -> tuple[float, str]:
    """(bytes/s that a ring reaches in one direction, the link's name)."""
    if gpu.link_bytes_per_s and gpu.link != "none":
        return gpu.link_bytes_per_s / 2 * calibrated.RING_SHARE.value, gpu.link
    host = gpu.host_link_bytes_per_s or 1e9 * UNKNOWN_HOST_LINK_GB
    return host * calibrated.RING_PCIE_SHARE.value, f"PCIe {gpu.pcie.replace('x', ' x') if gpu.pcie else ''}".strip()

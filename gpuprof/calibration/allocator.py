"""Calls of the allocator, and copies from pageable memory."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_COPIES = ("scenarios/pageable_copies/recording", "tests/data/pairs/copies.json.gz")

CALL_TIME_LEFT = Number(
    0.15, 0.0, 0.6, "", "measured",
    "Share of the recorded time of `cudaMalloc`, `cudaFree` and the like that remains once they are gone: 360 calls "
    "took 31 ms recorded, and leaving them out gained 13 to 51 ms of a step of 106 to 126 ms; 178 calls took 12 ms "
    "and gained 0 to 4 ms, within that host's noise.",
    ("scenarios/allocator_thrash/recording",), "python -m benchmarks.calibrate allocator",
)  # fmt: skip
COPY_CALL_NS = Number(
    10_000.0, 4_000.0, 30_000.0, "ns", "assumed",
    "CPU time of the call that starts an asynchronous copy.",
)  # fmt: skip
PINNED_FASTER = Number(
    6.0, 4.5, 8.0, "", "measured",
    "Pinned over pageable rate where the link's rate is not known: 55 over 7 to 9 GB/s on hosts of an H200.",
)  # fmt: skip
PINNED_RATE = Number(
    1.0, 0.7, 1.0, "", "assumed",
    "Share of the link's best rate that a pinned copy reaches; less where other GPUs share the link.",
)  # fmt: skip
CACHE_LOSS = Number(
    0.85, 0.75, 1.0, "", "fitted",
    "Time of the CPU's other work once pageable copies no longer evict its caches. Two programs on H200s allow it: one "
    "copied 131 MB a step and pinning gained 20 to 30 ms of 63 to 75, of which the copies were 18; the other 524 MB "
    "and 60 to 70 ms of 108 to 126, of which copies were 65 and pinned ones are 10.",
    _COPIES, "python -m benchmarks.calibrate allocator",
)  # fmt: skip
PINNED_DOWN = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that copies to pageable memory can go to reused pinned buffers instead.",
)  # fmt: skip
SMALL_ON_GPU = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that small tensors which a pass copies to the GPU can be made there, or be copied once.",
)  # fmt: skip

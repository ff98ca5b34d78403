"""Lines between two kinds of recordings that were drawn by looking at recordings of both kinds.

The interval is where the line could also be without any of them changing sides, or a guess at that.
"""

from __future__ import annotations

from gpuprof.calibration.number import Number

UNEXPLAINED = Number(
    0.25, 0.03, 0.67, "", "measured",
    "Share of a step in waits that no work accounts for, above which nothing is predicted: 0 to 0.03 in recordings of "
    "known programs, 0.67 and 0.83 in those that miss most of what their GPUs waited for.",
)  # fmt: skip
EXPLAINED = Number(
    0.5, 0.1, 0.99, "", "measured",
    "Share of the variance of step times that a line over their work must explain to be used: 0.99 in a GPU-bound "
    "run, under 0.1 in a host-bound one.",
    ("tests/data/runs",),
)  # fmt: skip
STILL_SLOW = Number(
    0.05, 0.02, 0.10, "", "measured",
    "How much longer steps are after a recording when its profiler was not torn down: 10 to 35 % then, within 2 % "
    "otherwise.",
    ("tests/data/runs",),
)  # fmt: skip
ALLOCATION_NS = Number(
    1_000_000.0, 50_000.0, 5_000_000.0, "ns", "assumed",
    "The most of a step's unexplained excess that is attributed to each cudaMalloc or cudaFree in it: both take 0.05 "
    "to 0.2 ms in a recording of an H200's host, and several ms where they wait for the GPU.",
)  # fmt: skip
THROTTLED_SLOWER = Number(
    1.06, 1.02, 1.10, "", "measured",
    "Kernels that are this many times as slow in the last steps as in the first have slowed down, beyond noise: "
    "kernels of an H200 repeat within 2 %.",
)  # fmt: skip
WARM_UP = Number(
    4.0, 2.0, 8.0, "steps", "assumed",
    "Usual steps that one of the first steps of a stretch takes longer, with nothing measured to explain it, if it is "
    "still warming up.",
)  # fmt: skip
PAUSE = Number(
    1.0, 0.5, 3.0, "steps", "assumed",
    "Usual steps that a timed step takes longer, with nothing measured to explain it, if it paused: scatter is less, "
    "and what it did then is no shorter in a shorter step.",
)  # fmt: skip
DISPATCH_NS = Number(
    100_000, 36_000, 1_000_000, "ns", "measured",
    "Longest time between the calls of two ops that is still dispatch: 99 % of such stretches in launch-bound "
    "trainings on H200 hosts are shorter than 36 to 105 µs, and few lie between this and a millisecond.",
    ("scenarios", "tests/data/pairs"),
)  # fmt: skip
SILENT_SHARE = Number(
    0.02, 0.0, 0.33, "", "measured",
    "Share of ops that lie in another and make no call, below which such ops were left out of the file: 33 to 58 % in "
    "28 recordings of trainings.",
    ("scenarios", "tests/data/pairs"),
)  # fmt: skip
QUEUE_ITEMS = Number(
    1022, 1022, 1024, "items", "measured",
    "Launched and unfinished items that a stream takes before a launch blocks, on an H200 with CUDA 13.",
)  # fmt: skip
CACHE_BYTES = Number(
    32 << 20, 8 << 20, 128 << 20, "bytes", "assumed",
    "A copy of more than this through the host's processor leaves little of what was in its caches.",
)  # fmt: skip
PLANNING_NS = Number(
    3_000_000.0, 600_000.0, 3_000_000.0, "ns", "measured",
    "CPU time of an op that plans or compiles: cuDNN builds a plan of attention in 40 to 70 ms, Triton and cuBLAS "
    "try candidates for 3 ms and more; launching takes microseconds.",
    ("scenarios/recompiles/recording",),
)  # fmt: skip
FIRST_CALL_NS = Number(
    200_000.0, 100_000.0, 300_000.0, "ns", "measured",
    "CPU time of an op that meets a shape for the first time: cuBLAS takes 0.3 to 0.6 ms to choose a kernel on an "
    "H200's host; what an op does at each call takes tens of microseconds.",
    ("scenarios/recompiles/recording",),
)  # fmt: skip
GIB_OF_GB = Number(
    0.99, 0.985, 0.995, "", "measured",
    "Memory that drivers report, over the number of GiB in a GPU's name: 139.8 GiB of an H200's 141.",
)  # fmt: skip
COUNTER_USED = Number(
    60.0, 50.0, 70.0, "%", "measured",
    "Activity of tensor pipes or DRAM from which on either may be a kernel's limit: of a step of two 8B-width layers "
    "on an H200, 41 % of the time is in kernels that use neither as much.",
    ("shared/traces/h200/roofline_pair.json.gz",),
)  # fmt: skip
SMALL_VALUES = Number(
    1024.0, 128.0, 16_384.0, "values", "assumed",
    "Most values of a tensor that only describes a batch (lengths, bounds, counts of rows), and is not part of its "
    "data: ops on such tensors directly before a read of the GPU prepare what is read.",
)  # fmt: skip
STATISTICS_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that only a log needs norms and other statistics that a program takes of one gradient after the "
    "other, or values that the CPU computes after a pass with little work of the GPU.",
)  # fmt: skip

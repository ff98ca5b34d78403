"""What recording costs the process that is recorded."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_TIMED = ("scenarios", "tests/data/pairs", "shared/traces/h200")
"""Recordings whose step was also timed without a profiler: 89 of H200s when it was fitted."""
_REFIT = "python -m benchmarks.calibrate profiler"

EVENT_NS = Number(
    2_300.0, 1_350.0, 2_940.0, "ns", "fitted",
    "Cost of a recorded op or call, with shapes recorded, on a host of pace 1: of the values between 1.6 and 2.8 µs "
    "the one with the least error when 89 recordings on H200s are replayed without it. A cost in proportion to the "
    "pace fits better than a fixed one or one that grows with the square root of the pace.",
    _TIMED, _REFIT,
)  # fmt: skip
LEFT_OUT = Number(
    0.93, 0.49, 1.36, "", "measured",
    "Ops that were left out of a file for each that is left, where ops inside others that make no call were left out: "
    "the median and the range of 28 whole recordings of trainings.",
    ("scenarios", "tests/data/pairs"),
)  # fmt: skip
FRAME_NS = Number(
    700.0, 450.0, 960.0, "ns", "measured",
    "Cost of a recorded Python frame: 18,700 frames made one program's step 18 ms longer, 0.96 µs each, a quarter of "
    "which is attributed to memory events recorded at the same time (not measured separately).",
    ("shared/traces/h200/tiny_lora_small_batch_stack.json.gz",),
)  # fmt: skip
KERNEL_RANGE_NS = Number(
    15_000.0, 10_000.0, 22_000.0, "ns", "measured",
    "Additional cost of an op named after its own kernel, for which Inductor's launcher formats the kernel's "
    "arguments: from one program with 1,650 such ops a step; three others agree. The interval is a guess.",
)  # fmt: skip
GRAPH_NODE_NS = Number(
    1_700.0, 1_000.0, 2_600.0, "ns", "assumed",
    "Additional time of `cudaGraphLaunch` for every node whose execution is recorded: calls for graphs of 314 to 594 "
    "nodes took 0.7 to 1.2 ms on an H200, most of which is attributed to recording (not measured separately).",
    ("tests/data/pairs/tiny.graphs.json.gz",),
)  # fmt: skip
DIFFUSE = Number(
    0.3, 0.15, 0.5, "", "fitted",
    "Share of the cost that is paid by all CPU work with torch, not only by recorded events, because the profiler's "
    "writes evict the caches. Without it what is left without a loop of short ops is 17 to 27 % too long in three "
    "programs; from 0.5 on other predictions suffer more than these gain.",
    ("tests/data/pairs/moe_big.json.gz", "tests/data/pairs/moe_small.json.gz", "scenarios/expert_loop/recording"),
    "python -m benchmarks.accuracy",
)  # fmt: skip
REFILL_NS = Number(
    50_000.0, 25_000.0, 200_000.0, "ns", "assumed",
    "Length of uninterrupted CPU work after which its caches are full again, about 2 MB read from "
    "memory: a batch fetched in plain Python took 70 ms unrecorded and 63 ms recorded, so long intervals cost nothing.",
)  # fmt: skip
STRIDED_NS = Number(
    420.0, 360.0, 950.0, "ns", "measured",
    "Recorded time of `aten::as_strided` on a host of pace 1: the median over the recordings that EVENT_NS was first "
    "fitted to, which defines that pace. The hosts of recordings that are kept are slower: 580 ns at the median.",
    _TIMED, _REFIT,
)  # fmt: skip
EMPTY_STRIDED_NS = Number(
    2_950.0, 2_660.0, 6_780.0, "ns", "measured",
    "The same for `aten::empty_strided`, used if a recording has few `aten::as_strided`.",
    _TIMED, _REFIT,
)  # fmt: skip
LAUNCH_NS = Number(
    4_600.0, 4_300.0, 8_490.0, "ns", "measured",
    "The same for `cudaLaunchKernel`, used if no such op was recorded: in 26 recordings that have both, the two paces "
    "agree within 1.2 times in eight of ten (correlation of the logarithms 0.94).",
    _TIMED, _REFIT,
)  # fmt: skip
NSYS_LAUNCH_NS = Number(
    3_900.0, 2_900.0, 5_200.0, "ns", "measured",
    "The same for `cudaLaunchKernel` as Nsight Systems records it, on one host of pace 1; the interval is a guess.",
    ("tests/data/nsys",),
)  # fmt: skip
SPREAD = Number(
    1.2, 1.15, 1.3, "", "fitted",
    "Factor by which the cost of an event may differ from what its pace says: the step's interval then meets what was "
    "measured for nine of ten recordings.",
    _TIMED, "python -m benchmarks.accuracy",
)  # fmt: skip
LAUNCH_SPREAD = Number(
    1.33, 1.22, 1.5, "", "fitted",
    "The same where launches give the pace: eight of ten of the 19 host-bound recordings cost within this many times.",
    _TIMED, "python -m benchmarks.profiler_cost",
)  # fmt: skip
NSYS_SPREAD = Number(
    1.6, 1.4, 2.0, "", "measured",
    "The same under Nsight Systems: six processes on H200 hosts timed their steps before the capture and in it, and "
    "an event cost 1.6, 2.3, 3.6, 4.9, 6.6 and 8.5 µs at paces of 1.0, 1.3, 1.7, 1.3, 1.9 and 1.8: EVENT_NS times the "
    "pace is 0.5 to 1.4 times that.",
)  # fmt: skip
LEFT_OUT_SPREAD = Number(
    1.1, 1.05, 1.2, "", "measured",
    "Factor by which the number of events differs from what LEFT_OUT says, at most, in eight of ten recordings.",
    ("scenarios", "tests/data/pairs"),
)  # fmt: skip
NSYS_WAITING = Number(
    1.15, 1.0, 1.6, "", "measured",
    "Nsight Systems slows a process down before it records, too: launch-bound steps took 1.08 times as long in 20 "
    "pairs of processes on H200 hosts, standard error 0.04; single pairs differ by up to 1.6 either way.",
)  # fmt: skip

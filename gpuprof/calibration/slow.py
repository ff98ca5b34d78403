"""Ops whose CPU time is far above that of similar ops."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEAST_NS = Number(
    1_000_000.0, 600_000.0, 3_000_000.0, "ns", "measured",
    "Own CPU time from which on an op can be slow: an op that launches work takes 5 to 90 µs on hosts of H100s and "
    "H200s under the profiler; the first call with a shape of cuBLAS 0.3 to 0.6 ms; cuDNN plans attention in 40 to "
    "80 ms.",
    ("scenarios/recompiles/recording",),
)  # fmt: skip
TIMES_USUAL = Number(
    10.0, 5.0, 30.0, "", "assumed",
    "The same in units of the median of the ops of its name that are shorter.",
)  # fmt: skip
USUAL_NS = Number(
    80_000.0, 70_000.0, 90_000.0, "ns", "measured",
    "Own CPU time of an op that launches GPU work and of which the recording shows only slow ones: a cuDNN attention "
    "that plans nothing takes 70 to 90 µs on an H200's host.",
    ("scenarios/recompiles/recording",),
)  # fmt: skip
LONG_PLANNING = Number(
    5.0, 3.0, 10.0, "", "assumed",
    "An op without short ops of its kind counts as planning if it takes this many times the least time of planning.",
)  # fmt: skip
STRETCH_NS = Number(
    1_000_000.0, 500_000.0, 3_000_000.0, "ns", "assumed",
    "Python code outside of ops and calls that takes longer than this at a stretch does work of its own: between two "
    "ops it takes 2 to 50 µs.",
)  # fmt: skip
COMPUTES_NS = Number(
    50_000.0, 30_000.0, 200_000.0, "ns", "assumed",
    "CPU time of an op that launches nothing, in one piece, from which on it computes on a tensor in host memory: ops "
    "that only make a view take 1 to 10 µs.",
)  # fmt: skip
MOVED_LEFT = Number(
    0.05, 0.01, 0.2, "", "assumed",
    "Share that is left of what the CPU computes on tensors in host memory where the GPU, or a worker ahead of the "
    "step, does it: as of samples that are prepared elsewhere.",
)  # fmt: skip
COMPUTES_SHARE = Number(
    0.25, 0.1, 0.5, "", "assumed",
    "Share of the CPU's work in such ops, and in ops that plan kernels, from which on they, and not launching, explain "
    "a step that was longer without the profiler than with it: computing uses all cores and the memory, which other "
    "processes want, too, and plans for other shapes take another time.",
)  # fmt: skip
AUTOGRAD_NODE_NS = Number(
    1_500.0, 700.0, 4_000.0, "ns", "assumed",
    "CPU time that autograd takes for one op on a host of pace 1: a node is allocated, inputs are saved, edges are "
    "made, and all is let go again. Of small tensors on the CPU it is 0.9 µs (2,400 ops with and without no_grad); "
    "what is saved on the GPU also goes back to its allocator.",
)  # fmt: skip
TOPK_PASSES = Number(
    6.0, 3.0, 16.0, "", "assumed",
    "Times that torch.topk reads its input: a radix select of 8 bits a pass reads 32-bit values four times and gathers "
    "once, one of 2 bits sixteen times.",
)  # fmt: skip
SORT_16_BITS = Number(
    0.42, 0.33, 0.6, "", "assumed",
    "Time of a radix sort's kernels over 16-bit values / over 32-bit values: half the passes, each of which moves 10 "
    "bytes a value rather than 12, including the index of 64 bits.",
)  # fmt: skip
FUNCTION_LEFT = Number(
    0.1, 0.02, 0.6, "", "assumed",
    "Share of a long stretch of Python on the training thread that is left once its work is done in a worker, less "
    "often, once, or by ops over whole tensors.",
)  # fmt: skip
FUNCTION_ODDS = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that such work can be done in one of these ways.",
)  # fmt: skip
TRACEBACK_LEFT = Number(
    0.3, 0.1, 0.7, "", "assumed",
    "Share of the CPU's time in forward ops that is left without anomaly detection, which writes down the Python "
    "stack of every op that autograd records: 200 linear layers of 8 units on a CPU took 14 times as long with it, "
    "ops that launch kernels from a deeper stack are slower themselves.",
)  # fmt: skip
FILLED_AGAIN = Number(
    0.9, 0.6, 1.0, "", "assumed",
    "Share of the time of kernels that fill new tensors in deterministic mode which goes without them.",
)  # fmt: skip

"""Times that nothing makes shorter: latencies between events, and the times of work that does next to nothing."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_REFIT = "python -m benchmarks.calibrate latency"
_RECORDED = ("scenarios", "tests/data/pairs")

LAUNCH_NS = Number(
    2_200.0, 1_500.0, 3_500.0, "ns", "measured",
    "From the end of a launch to its start on an idle stream, where a recording shows none: the median of recordings "
    "on H200s.",
)  # fmt: skip
GAP_NS = Number(
    1_000.0, 700.0, 1_550.0, "ns", "fitted",
    "From one kernel to the next on a stream that has work waiting, where a recording shows none: the median of "
    "recordings on H200s.",
    _RECORDED, _REFIT,
)  # fmt: skip
RETURN_NS = Number(
    3_000.0, 2_000.0, 6_000.0, "ns", "measured",
    "From the end of awaited work to the return of the waiting call, where a recording shows none: the median of "
    "recordings on H200s.",
)  # fmt: skip
EVENT_NS = Number(
    2_000.0, 1_500.0, 2_500.0, "ns", "measured",
    "From the end of work on one stream to the start of work on another that waits for it: 1.5 to 2.5 µs on H200s.",
)  # fmt: skip
FLOOR_NS = Number(
    1_000, 900, 1_200, "ns", "measured",
    "A kernel that does next to nothing: 0.9 to 1.2 µs at the median of recordings on H200s; an elementwise kernel "
    "takes as much beyond its roof.",
    command="python -m benchmarks.roofline",
)  # fmt: skip
CHAIN_NS = Number(
    5_000, 3_300, 6_700, "ns", "measured",
    "A kernel of dependent steps (a reduction in several stages, a matrix multiplication of few blocks) whose"
    " roof is below the "
    "floor: 99 % of kernels with under 0.1 µs of work end within 3.3 to 6.7 µs.",
    command="python -m benchmarks.roofline",
)  # fmt: skip
ELEMENTWISE_NS = Number(
    1_200.0, 1_000.0, 1_500.0, "ns", "measured",
    "The shortest elementwise kernel that does some work, on H200s. The interval is a guess.",
)  # fmt: skip
MATMUL_NS = Number(
    4_000.0, 3_000.0, 5_000.0, "ns", "measured",
    "The shortest matrix multiplication: 3 to 5 µs on an H200 for ones with under a microsecond of work.",
)  # fmt: skip
THIN_MATMUL_NS = Number(
    3_000.0, 2_500.0, 4_000.0, "ns", "measured",
    "A matrix multiplication in half precision with one narrow side, as a LoRA adapter's: the lower end of MATMUL_NS.",
)  # fmt: skip
HOST_LAUNCH_NS = Number(
    8_000.0, 5_500.0, 20_000.0, "ns", "measured",
    "CPU time per launched kernel if a recording has no other work that shows it: 5.5 µs for a small op on an H200's "
    "host, and half as much again for the Python between two.",
)  # fmt: skip

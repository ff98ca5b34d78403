"""Other GPUs: kernels, power, hosts."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_BOTH = tuple(
    f"examples/moe_on_h100_and_rtx_pro_6000/recordings/{gpu}/{name}"
    for gpu in ("h200", "h100")
    for name in ("dense_ds1", "dense_ds2")
)

USUAL_REACH = Number(
    0.9, 0.6, 1.0, "", "fitted",
    "Share of the bandwidth that a kernel without matrix multiplications reaches when its traffic is not known."
    " Those of two "
    "trainings recorded on an H200 and on an H100 take 1.11 to 1.44 times as long on the latter, as if they reached "
    "0.5 to 1.0: the middle one 0.94 and 0.87, by time 0.83 and 0.90.",
    _BOTH, "python -m benchmarks.calibrate projection",
)  # fmt: skip
MOST_REACH = Number(
    1.1, 1.0, 1.3, "", "measured",
    "What a kernel seems to reach at most, as some of its traffic stays in the L2; higher values mean that the "
    "traffic estimate is wrong.",
    _BOTH,
)  # fmt: skip
POWER_WAITING = Number(
    0.17, 0.14, 0.22, "", "measured",
    "Share of the power limit while the GPU waits: 120 of 700 W idling between launches on an H200.",
)  # fmt: skip
POWER_COMPUTING = Number(
    1.0, 0.8, 1.0, "", "measured",
    "The same while compute-bound: 380 to 490 W at 56 % busy, mostly with matrix multiplications, on an H200.",
)  # fmt: skip
POWER_STREAMING = Number(
    0.70, 0.45, 0.95, "", "assumed",
    "The same while memory-bound, between the two.",
)  # fmt: skip
POWER_STALLED = Number(
    0.35, 0.2, 0.5, "", "measured",
    "The same while latency-bound: 170 W at 18 % busy with small kernels on an H200. The interval is a guess.",
)  # fmt: skip
EFFICIENCY_KEPT = Number(
    1.15, 1.05, 1.6, "", "assumed",
    "Factor within which kernels keep their efficiency relative to the roof between architectures.",
)  # fmt: skip
EFFICIENCY_KEPT_NEAR = Number(
    1.05, 1.0, 1.5, "", "assumed",
    "The same within one architecture.",
)  # fmt: skip
HOSTS = Number(
    1.1, 1.0, 1.5, "", "assumed",
    "Factor by which another machine's CPU differs from what its host factor says.",
)  # fmt: skip
REPEATS = Number(
    1.05, 1.0, 1.5, "", "assumed",
    "Factor by which layers that were not recorded differ in time from those that were.",
)  # fmt: skip

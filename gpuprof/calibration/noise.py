"""How much steps of one program differ for no reason that a recording shows.

Each value is half an 80 % interval, as a share of the step: eight of ten steps lie within it on either side. The
interval given here is that of the noise itself, from program to program.
"""

from __future__ import annotations

from gpuprof.calibration.number import Number

_REFIT = "python -m benchmarks.calibrate noise"

RUN = Number(
    0.02, 0.008, 0.02, "", "measured",
    "Within one process: the GPU's part of a step differs by this much between the baseline of a run and its recorded "
    "steps (0.8 to 1.6 % less in five GPU-bound runs).",
)  # fmt: skip
GPU_PROCESS = Number(
    0.04, 0.002, 0.04, "", "fitted",
    "Variation of a GPU-bound step from one process to the next (clocks, memory placement): chosen above nearly all "
    "programs, because no interval of a step is narrower.",
    ("scenarios",), _REFIT,
)  # fmt: skip
HOST_PROCESS = Number(
    0.05, 0.03, 0.10, "", "measured",
    "Variation of the CPU's time from one process to the next, where a measured step shows it.",
)  # fmt: skip
PROCESS = Number(
    0.06, 0.002, 0.12, "", "fitted",
    "Variation of any step from one process to the next on the same machine (3 to 10 % on H200 hosts).",
    ("scenarios",), _REFIT,
)  # fmt: skip
HOST_BOUND = Number(
    0.146, 0.059, 0.186, "", "fitted",
    "Variation of a step from one process to the next where the CPU (host) alone sets its pace; where only a share of "
    "the step scales with the CPU's time, times the square root of that share. That of the GPU's part (GPU_PROCESS) "
    "adds to it as squares, and is taken off before this is fitted. With both 80 % of the processes of programs whose "
    "CPU matters are within their interval, with 6 % alone 48 %; a variation in proportion to the share, and how much "
    "the steps of one process differ, explain the timings less well.",
    ("scenarios",), _REFIT,
)  # fmt: skip
CPU_COMPUTE = Number(
    1.7, 1.3, 2.5, "", "assumed",
    "Factor by which the time of ops on tensors in host memory varies from one process to the next: they use all cores "
    "and the memory's bandwidth, which others want, too. No such program has the role `fit`. If timed and recorded "
    "steps of one process differ by more, that difference is used.",
)  # fmt: skip
GAIN = Number(
    0.03, 0.02, 0.05, "", "assumed",
    "Difference between the predicted and the measured gain of an exactly known small change: both sides run "
    "on the same machine, so what processes differ by cancels but for this.",
)  # fmt: skip
GAIN_SHARE = Number(
    0.35, 0.25, 0.4, "", "fitted",
    "Least uncertainty of a predicted gain, as a share of the logarithm of the step's change: with it, and with the "
    "known uncertainty of each fix if that is larger, 80 % of the measured gains of 54 changes are within their "
    "interval, without it 63 %.",
    ("scenarios", "tests/data/pairs", "shared/traces/h200"), "python -m benchmarks.recall",
)  # fmt: skip
REPLAY_SHARE = Number(
    0.27, 0.1, 0.5, "", "fitted",
    "The same of the step after a fix, where what processes differ by counts by itself: the smallest with which 80 % "
    "of some 50 measured gains are within their interval if what their own turns scatter by is added. Without the "
    "turns the noise of the measured processes would be in it, and count twice. A refit now says 0.22, since fixes "
    "were mended with these programs in view: for programs not seen before the number is not lowered. The low end is "
    "a guess: of programs drawn at random some need no scatter but that of their own fixes.",
    ("scenarios",), _REFIT,
)  # fmt: skip
GAIN_MOST = Number(
    0.30, 0.25, 0.4, "", "fitted",
    "Largest value of this uncertainty, as a logarithm: large gains do not scatter more. The smallest with which 80 % "
    "of the same gains are within their interval.",
    ("scenarios", "tests/data/pairs", "shared/traces/h200"), "python -m benchmarks.recall",
)  # fmt: skip
MACHINE = Number(
    0.15, 0.10, 0.20, "", "measured",
    "From one host to another of the same kind, and from one hour to another (runs on H200 hosts: 10 to 20 %).",
    ("tests/data/runs", "tests/data/hosts"),
)  # fmt: skip
SENSITIVITY = Number(
    0.03, 0.015, 0.06, "", "assumed",
    "Standard deviation of a sensitivity for what a replay does not know: gaps between kernels, clocks, other "
    "processes.",
)  # fmt: skip
CEILING = Number(
    0.10, 0.05, 0.15, "", "measured",
    "Relative standard deviation of the split of kernels by their roofs: measured ceilings of one kind of GPU differ "
    "by this much between sources. The interval is a guess.",
    command="python -m benchmarks.gpus_page",
)  # fmt: skip
SHARES_AGREE = Number(
    0.85, 0.77, 0.9, "", "measured",
    "Share of recordings for which the verdict from shares of the step is that of the replay, 82 of 96: a verdict from "
    "shares is no surer.",
    (), "python -m benchmarks.share_verdicts",
)  # fmt: skip

"""When the step time of a running training has changed: what `gpuprof attach --watch` counts as a change."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEAST_CHANGE = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "Changes of the step time by less than this share are ignored.",
)  # fmt: skip
SAME_LEVEL = Number(
    0.07, 0.04, 0.1, "", "assumed",
    "Two levels of the step time that differ by less than this share count as one.",
)  # fmt: skip
AGREEING_PAIRS = Number(
    0.95, 0.6, 1.0, "", "assumed",
    "Share of the pairs of an earlier and a later block of steps that must point the same way. Of blocks of one "
    "distribution, eight and eight, that many do so in 0.05 % of the comparisons; python -m benchmarks.watch says how "
    "often it fails.",
)  # fmt: skip
LONGEST_STEP = Number(
    10.0, 5.0, 30.0, "medians", "assumed",
    "A longer step counts as this many medians in the mean of its block, so that a checkpoint does not decide it.",
)  # fmt: skip
FOLLOWING_BLOCKS = Number(
    32.0, 16.0, 128.0, "blocks", "assumed",
    "A change in the direction of the last one, within this number of blocks of 16 steps, has the same cause; of a "
    "drift within twice as many.",
)  # fmt: skip

"""Batches without padding."""

from __future__ import annotations

from gpuprof.calibration.number import Number

FILLED = Number(
    0.97, 0.9, 0.99, "", "measured",
    "Share of packed rows that holds tokens: best-fit packing fills 95 to 99 % where samples are much shorter than "
    "the row.",
)  # fmt: skip
GROUPED_LEFT = Number(
    0.15, 0.05, 0.35, "", "fitted",
    "Share of the padding that remains if batches contain samples of nearly the same length.",
    ("scenarios/padding/recording",), "python -m benchmarks.calibrate padding",
)  # fmt: skip
SPREAD_LENGTHS = Number(
    1.6, 1.3, 2.0, "", "assumed",
    "Mean square of the samples' lengths over the square of their mean, for lengths that scatter by 0.8 of their "
    "mean, as those of instruction data sets do: attention grows with the square.",
)  # fmt: skip
ATTENTION_LONGER = Number(
    1.0, 0.6, 1.6, "", "assumed",
    "Attention of packed rows against that of padded ones: less where the kernel skips what lies between samples, "
    "more where it takes the mask as a tensor.",
)  # fmt: skip
HOST_SPREAD = Number(
    1.1, 1.0, 1.2, "", "measured",
    "With fewer tokens the CPU often becomes the limit; a GPU-bound recording shows its time to within 10 %.",
)  # fmt: skip

"""What kernels of each kind and size reach in recordings of trainings; `python -m benchmarks.reach` prints it."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_RECORDINGS = ("scenarios", "tests/data/pairs", "shared/traces/h200")
_REFIT = "python -m benchmarks.reach"

GEMM_TINY_NS = Number(
    3520.0, 1790.0, 6210.0, "ns", "fitted",
    "Time of matrix multiplications with a roof below 2 µs: the median of 47 recordings, each counted once; a "
    "tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
GEMM_SHORT = Number(
    0.54, 0.32, 0.78, "", "fitted",
    "Share of the roof's rate that matrix multiplications with a roof of 2 to 20 µs reach: the median of 48 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
GEMM_LONG = Number(
    0.93, 0.50, 1.00, "", "fitted",
    "Share of the roof's rate that matrix multiplications with a roof of 20 to 200 µs reach: the median of 44 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
GEMM_LARGE = Number(
    1.01, 0.95, 1.05, "", "fitted",
    "Share of the roof's rate that matrix multiplications with a roof above 200 µs reach: the median of 22 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ATTENTION_TINY_NS = Number(
    2530.0, 1780.0, 6950.0, "ns", "fitted",
    "Time of fused attention with a roof below 2 µs: the median of 21 recordings, each counted once; a tenth lie "
    "below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ATTENTION_SHORT = Number(
    0.71, 0.24, 0.84, "", "fitted",
    "Share of the roof's rate that fused attention with a roof of 2 to 20 µs reach: the median of 34 recordings, "
    "each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ATTENTION_LONG = Number(
    0.52, 0.25, 0.89, "", "fitted",
    "Share of the roof's rate that fused attention with a roof of 20 to 200 µs reach: the median of 22 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ATTENTION_LARGE = Number(
    0.58, 0.48, 0.85, "", "fitted",
    "Share of the roof's rate that fused attention with a roof above 200 µs reach: the median of 5 recordings, "
    "each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ROWS_TINY_NS = Number(
    5450.0, 2250.0, 13400.0, "ns", "fitted",
    "Time of norms, softmax, reductions and losses with a roof below 2 µs: the median of 40 recordings, each "
    "counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ROWS_SHORT = Number(
    0.57, 0.23, 0.77, "", "fitted",
    "Share of the roof's rate that norms, softmax, reductions and losses with a roof of 2 to 20 µs reach: the "
    "median of 32 recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ROWS_LONG = Number(
    0.98, 0.74, 1.13, "", "fitted",
    "Share of the roof's rate that norms, softmax, reductions and losses with a roof above 20 µs reach: the "
    "median of 20 recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ELEMENTWISE_TINY_NS = Number(
    1540.0, 930.0, 5340.0, "ns", "fitted",
    "Time of elementwise kernels, casts and copies with a roof below 2 µs: the median of 55 recordings, each "
    "counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ELEMENTWISE_SHORT = Number(
    0.75, 0.30, 1.14, "", "fitted",
    "Share of the roof's rate that elementwise kernels with a roof of 2 to 20 µs reach: the median of 51 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
ELEMENTWISE_LONG = Number(
    0.98, 0.59, 1.05, "", "fitted",
    "Share of the roof's rate that elementwise kernels with a roof above 20 µs reach: the median of 35 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
CAST_SHORT = Number(
    0.49, 0.22, 1.17, "", "fitted",
    "Share of the roof's rate that casts and copies with a roof of 2 to 20 µs reach: the median of 43 recordings, "
    "each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
CAST_LONG = Number(
    0.81, 0.47, 1.03, "", "fitted",
    "Share of the roof's rate that casts and copies with a roof above 20 µs reach: the median of 23 recordings, "
    "each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
INDEX_TINY_NS = Number(
    2500.0, 770.0, 5820.0, "ns", "fitted",
    "Time of gathers, scatters and embeddings with a roof below 2 µs: the median of 22 recordings, each counted "
    "once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
INDEX_LONG = Number(
    0.60, 0.09, 2.39, "", "fitted",
    "Share of the roof's rate that gathers, scatters and embeddings with a roof above 2 µs reach: the median of "
    "10 recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
DEQUANTIZE_TINY_NS = Number(
    2270.0, 1980.0, 4580.0, "ns", "fitted",
    "Time of dequantisation with a roof below 2 µs: the median of 5 recordings, each counted once; a tenth lie "
    "below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
DEQUANTIZE_LONG = Number(
    0.50, 0.22, 0.76, "", "fitted",
    "Share of the roof's rate that dequantisation with a roof above 2 µs reach: the median of 6 recordings, each "
    "counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
OPTIMIZER_TINY_NS = Number(
    4740.0, 4350.0, 8930.0, "ns", "fitted",
    "Time of kernels of the optimizer with a roof below 2 µs: the median of 3 recordings, each counted once; a "
    "tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
OPTIMIZER_LONG = Number(
    0.60, 0.18, 0.80, "", "fitted",
    "Share of the roof's rate that kernels of the optimizer with a roof above 2 µs reach: the median of 11 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip
COPY_LONG = Number(
    0.92, 0.78, 1.02, "", "fitted",
    "Share of the roof's rate that copies between memories with a roof above 2 µs reach: the median of 43 "
    "recordings, each counted once; a tenth lie below the low end, a tenth above the high one.",
    _RECORDINGS, _REFIT,
)  # fmt: skip

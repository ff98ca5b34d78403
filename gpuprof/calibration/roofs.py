"""What share of its stated rates a GPU reaches, where no one measured it, and how sure that is."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_GPUS = "python -m benchmarks.gpus_page"

TENSOR_EFFICIENCY = Number(
    0.80, 0.51, 1.04, "", "measured",
    "Best matrix multiplication over the dense rate: the median and the range of the GPUs in the table that were"
    " measured "
    "(and 0.37 for the 70 W of a T4).",
    command=_GPUS,
)  # fmt: skip
VECTOR_EFFICIENCY = Number(
    0.76, 0.65, 0.9, "", "measured",
    "The same for fp32 without tensor cores: 50.9 of 66.9 TFLOP/s on an H200. One GPU; the interval is a guess.",
    command=_GPUS,
)  # fmt: skip
MEMORY_EFFICIENCY = Number(
    0.89, 0.883, 0.892, "", "measured",
    "Best copy over the stated bandwidth: 4.24 to 4.28 of 4.8 TB/s on H200s.",
    command=_GPUS,
)  # fmt: skip
LINK_EFFICIENCY = Number(
    0.85, 0.844, 0.88, "", "measured",
    "Pinned copy over the link's rate: 53.2 to 55.4 of 63 GB/s over PCIe 5.0 x16, on H200s.",
    command=_GPUS,
)  # fmt: skip
DIRTY_SHARE = Number(
    0.5, 0.4, 0.54, "", "measured",
    "Most of the L2 that written data takes at a kernel's end: hardware counters on an H200 (50 MB) show 27 MB kept "
    "by kernels that only write, and less in proportion to what they read as well.",
    ("tests/data/roofline_pair.json.gz",), "python -m benchmarks.roofline",
)  # fmt: skip
POWER_12_NM = Number(
    0.00754e12, 0.0049e12, 0.0080e12, "FLOP/s", "measured",
    "k of the rate k·n^(2/3)·P^(1/3) that a power limit allows, n in FLOPs a clock, P in watts; here for a V100. A T4 "
    "is 54 % below.",
    command=_GPUS,
)  # fmt: skip
POWER_7_NM = Number(
    0.01006e12, 0.0073e12, 0.0105e12, "FLOP/s", "measured",
    "The same for an A100. An RTX A6000, assumed to be made in the same process, is 38 % below.",
    command=_GPUS,
)  # fmt: skip
POWER_4_NM = Number(
    0.01408e12, 0.0135e12, 0.0153e12, "FLOP/s", "measured",
    "The same: the geometric mean of H100, H200 (0.0135 both) and B200 (0.0153).",
    command=_GPUS,
)  # fmt: skip
MEASURED_HERE = Number(
    1.03, 1.0, 1.5, "", "assumed",
    "Spread of a tensor rate that was measured on the machine itself.",
)  # fmt: skip
MEASURED_SUCH = Number(
    1.06, 1.0, 1.5, "", "assumed",
    "Spread of a tensor rate that was measured on another GPU of the kind.",
)  # fmt: skip
BY_POWER = Number(
    1.20, 1.1, 1.5, "", "measured",
    "Spread of a tensor rate from the power limit: of eight GPUs with measurements the model is within 10 % for "
    "six; it is 38 % above an RTX A6000 and 54 % above a T4.",
    command=_GPUS,
)  # fmt: skip

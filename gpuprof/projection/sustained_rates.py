"""The rates that GPUs sustain: measured if possible, else what their power limit allows, else the usual share of the
stated rate.

The rate on a datasheet is that of the boost clock. Under a matmul most boards reach their power limit first, and lower
the clock to stay within it. Switching power is C·V²·f; near the top of the range the voltage scales with the clock, so
P = c·n·f³, where n is the number of FLOPs per clock and c depends on the manufacturing process. With a fixed share of
the limit P for everything else (memory, leakage) the rate n·f is then

    k · n^(2/3) · P^(1/3)

with one k per family of processes, from the four ceilings that were measured carefully: A100 (7 nm), H100, H200 and
B200 (4 nm); older chips have the k of V100. No other GPU and no training went into it, and the rate is never above the
stated one. docs/gpus.md compares the result with other GPUs that were measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuprof.calibration import roofs as calibrated
from gpuprof.costs.ceilings import measurement_of
from gpuprof.costs.hardware import Gpu
from gpuprof.costs.measured_rates import Measurement
from gpuprof.projection.projection import Rates
from gpuprof.units import Assumed, Ratio

FAMILIES = {
    "Volta": "12 nm", "Turing": "12 nm", "Ampere": "7 nm", "Ada": "4 nm", "Hopper": "4 nm", "Blackwell": "4 nm",
    "Blackwell Ultra": "4 nm",
}  # fmt: skip
"""Architecture → its manufacturing process. Ampere's smaller chips are made in 8 nm, which is treated as the same."""

POWER_CONSTANT = {
    "12 nm": calibrated.POWER_12_NM.value,
    "7 nm": calibrated.POWER_7_NM.value,
    "4 nm": calibrated.POWER_4_NM.value,
}
"""k, for FLOP/s with n in FLOPs per clock and P in watts."""

BANDWIDTH_SPREAD: Assumed[dict[str, Ratio]] = {"measured": 1.02, "table": 1.03, "stated": 1.06}
CONFIDENCE_SPREAD: Assumed[dict[str, Ratio]] = {"A": 1.0, "B": 1.03, "C": 1.15}
"""Additional spread by confidence in the stated figures."""
UNKNOWN_CONFIDENCE_SPREAD: Assumed[Ratio] = 1.03
_NEAREST = {"bf16": ("fp16",), "fp16": ("bf16",), "tf32": ("fp32",), "fp8": ("bf16", "fp16"), "int8": ("bf16", "fp16"),
            "fp4": ("fp8", "bf16", "fp16"), "fp64": ("fp32",)}  # fmt: skip
"""Format → formats that it is computed in if a GPU has no rate for it; without any, bf16 is computed in fp32."""
_EMULATED = {"bf16": ("fp32",)}


@dataclass(frozen=True, slots=True)
class Reach:
    """The rates that one GPU sustains, with their uncertainty."""

    gpu: Gpu
    flops: dict[str, float]
    """dtype → FLOP/s."""
    memory_bytes_per_s: float
    link_bytes_per_s: float | None
    half_source: str
    half_spread: float
    memory_source: str
    memory_spread: float

    def rate(self, dtype: str) -> float | None:
        """FLOP/s of a format, or of the one that it is computed in here."""
        first = _EMULATED if "bf16" not in self.flops and dtype == "bf16" else _NEAREST
        for name in (dtype, *first.get(dtype, ()), "fp32"):
            if name in self.flops:
                return self.flops[name]
        return None

    @property
    def half_flops(self) -> float:
        return self.rate("bf16" if "bf16" in self.flops else "fp16") or 0.0

    @property
    def rates(self) -> Rates:
        return Rates(
            self.half_flops, self.half_source, self.half_spread, self.memory_bytes_per_s, self.memory_source,
            self.memory_spread,
        )  # fmt: skip


def power_limited_flops(gpu: Gpu) -> float | None:
    """Half-precision FLOP/s that the board's power limit allows, at most the stated ones; None if the table lacks the
    figures."""
    half, family = gpu.half_flops, FAMILIES.get(gpu.architecture)
    if not half or not gpu.tdp_w or not gpu.boost_mhz or family is None:
        return None
    a_clock = half / (gpu.boost_mhz * 1e6)
    return min(POWER_CONSTANT[family] * a_clock ** (2 / 3) * gpu.tdp_w ** (1 / 3), half)


def reach(gpu: Gpu, measurement: Measurement | None = None) -> Reach:
    """What a GPU sustains: measured on this machine, else on such a GPU, else from its power limit, else the usual
    share of the stated rate.

    Other tensor-core formats are limited like the half-precision one; fp32 without tensor cores is not.
    """
    stated = gpu.half_flops or 0.0
    modelled = power_limited_flops(gpu)
    if gpu.measured_flops:
        half, source, spread = gpu.measured_flops, "table", calibrated.MEASURED_SUCH.value
    elif modelled is not None:
        half, source, spread = modelled, "power", calibrated.BY_POWER.value
    else:
        half, source, spread = calibrated.TENSOR_EFFICIENCY.value * stated, "stated", calibrated.BY_POWER.value
    share = min(half / stated, 1.0) if stated else 1.0
    flops = {
        name: rate * (calibrated.VECTOR_EFFICIENCY.value if name == "fp32" else share)
        for name, rate in gpu.dense_flops.items()
    }
    flops |= {name: half for name in ("bf16", "fp16") if name in flops}
    memory, memory_source = gpu.measured_bytes_per_s, "table"
    if memory is None:
        memory, memory_source = gpu.memory_bytes_per_s * calibrated.MEMORY_EFFICIENCY.value, "stated"
    link = gpu.host_link_bytes_per_s
    link = link * calibrated.LINK_EFFICIENCY.value if link else None
    if measurement is not None:
        flops |= measurement.flops
        memory, memory_source, link = measurement.memory_bytes_per_s, "measured", measurement.link_bytes_per_s
        source, spread = "measured", calibrated.MEASURED_HERE.value
    more = math.log(CONFIDENCE_SPREAD.get(gpu.confidence, UNKNOWN_CONFIDENCE_SPREAD))
    return Reach(
        gpu, flops, memory, link,
        half_source=source, half_spread=math.exp(math.hypot(math.log(spread), more)),
        memory_source=memory_source,
        memory_spread=math.exp(math.hypot(math.log(BANDWIDTH_SPREAD[memory_source]), more)),
    )  # fmt: skip


def reach_of(gpu: Gpu) -> Reach:
    """`reach` with the measurement that was saved on this machine, if there is one."""
    return reach(gpu, measurement_of(gpu))

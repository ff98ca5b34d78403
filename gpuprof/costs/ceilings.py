"""The best rates that a GPU reaches: measured if known, otherwise the stated rates × a usual efficiency."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import roofs as calibrated
from gpuprof.costs.hardware import Gpu, find, load_gpus
from gpuprof.costs.measured_rates import Measurement, load_measurements


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best rates of a GPU."""

    gpu: Gpu
    flops: dict[str, float]
    """dtype → FLOP/s."""
    peak_flops: dict[str, float]
    """dtype → dense FLOP/s as stated: what MFU is relative to."""
    memory_bytes_per_s: float
    """Reads and writes together."""
    link_bytes_per_s: float | None
    """Between host and device, one direction."""
    launch_floor_ns: int
    chain_ns: int
    source: str
    """measured: on this machine; table: on such a GPU, elsewhere; stated: from the datasheet and usual efficiencies."""


def ceilings(
    device_name: str,
    memory_bytes: int | None = None,
    gpus: tuple[Gpu, ...] | None = None,
    measurements: dict[str, Measurement] | None = None,
) -> Ceilings | None:
    """Ceilings of the GPU that a driver calls `device_name`; None if it is not known.

    gpus: all that are known, else those of `load_gpus`. measurements: by device name, else those that were saved.
    """
    gpu = find(device_name, memory_bytes, load_gpus() if gpus is None else gpus)
    if gpu is None:
        return None
    return ceilings_of(gpu, measurement_of(gpu, measurements))


def measurement_of(gpu: Gpu, measurements: dict[str, Measurement] | None = None) -> Measurement | None:
    """The measurement of this kind of GPU among these, or among the saved ones."""
    saved = load_measurements() if measurements is None else measurements
    return next((m for name, m in saved.items() if find(name, m.memory_bytes, [gpu]) is gpu), None)


def ceilings_of(gpu: Gpu, measurement: Measurement | None = None) -> Ceilings:
    """Ceilings of a row of the table, using its measurement if there is one.

    A rate that was not measured is the stated one times the share that the measured format reached, as that is what
    the power limit lets through; without any measurement times the usual efficiency.
    """
    half = gpu.half_flops
    reached = gpu.measured_flops / half if gpu.measured_flops and half else calibrated.TENSOR_EFFICIENCY.value
    flops = {
        dtype: rate * (calibrated.VECTOR_EFFICIENCY.value if dtype == "fp32" else min(reached, 1.0))
        for dtype, rate in gpu.dense_flops.items()
    }
    for dtype in ("bf16", "fp16"):
        if gpu.measured_flops and dtype in flops:
            flops[dtype] = gpu.measured_flops
    memory = gpu.measured_bytes_per_s or gpu.memory_bytes_per_s * calibrated.MEMORY_EFFICIENCY.value
    source = "table" if gpu.measured_flops or gpu.measured_bytes_per_s else "stated"
    link = gpu.host_link_bytes_per_s
    link = link * calibrated.LINK_EFFICIENCY.value if link else None
    if measurement is not None:
        flops |= measurement.flops
        memory, link, source = measurement.memory_bytes_per_s, measurement.link_bytes_per_s, "measured"
    return Ceilings(
        gpu=gpu,
        flops=flops,
        peak_flops=dict(gpu.dense_flops),
        memory_bytes_per_s=memory,
        link_bytes_per_s=link,
        launch_floor_ns=latency_calibrated.FLOOR_NS.whole,
        chain_ns=latency_calibrated.CHAIN_NS.whole,
        source=source,
    )

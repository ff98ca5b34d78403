"""Energy and money of a step.

A board's power depends on what it does: almost its limit under matmuls, less while bound by memory or latency, a sixth
of it while it waits with its clocks up. Prices age: each has its date and source, and a user's prices take precedence.
"""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from importlib.resources import files

from gpuprof.calibration import projection as calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.projection.projection import Price, ProjectionCost

_USABLE_KINDS = ("lowest listed", "on-demand")


def mean_power_w(gpu: Gpu, step_ns: float, busy_ns: dict[str, float], measured: float = 1.0) -> float | None:
    """Mean board power over a step, W; None without the board's limit, which is never exceeded.

    busy_ns: GPU time by what limits it (compute, memory, latency). measured: this training's measured power on the
    recorded GPU over its estimate there.
    """
    if not gpu.tdp_w or step_ns <= 0:
        return None
    busy = sum(busy_ns.values())
    fit = min(step_ns / busy, 1.0) if busy else 1.0  # streams that overlap
    shares = {
        "compute": calibrated.POWER_COMPUTING.value,
        "memory": calibrated.POWER_STREAMING.value,
        "latency": calibrated.POWER_STALLED.value,
    }
    working = sum(ns * fit * shares.get(name, calibrated.POWER_STREAMING.value) for name, ns in busy_ns.items())
    estimated = gpu.tdp_w * (working + calibrated.POWER_WAITING.value * max(step_ns - busy * fit, 0.0)) / step_ns
    return min(measured * estimated, gpu.tdp_w)


def cost(
    power_w: float | None, step_ns: float, samples: float | None, tokens: float | None, price: Price | None,
    epoch_samples: int | None,
) -> ProjectionCost:  # fmt: skip
    """Energy and money per million tokens (padding included) and per epoch."""
    hours = step_ns / 3.6e12
    per_million = 1e6 / tokens if tokens else None
    per_epoch = epoch_samples / samples if epoch_samples and samples else None
    kwh = None if power_w is None else power_w / 1e3 * hours
    usd = None if price is None else price.usd_per_hour * hours

    def times(amount: float | None, count: float | None) -> float | None:
        return None if amount is None or count is None else amount * count

    return ProjectionCost(
        power_w=power_w,
        kwh_per_million_tokens=times(kwh, per_million),
        kwh_per_epoch=times(kwh, per_epoch),
        price=price,
        usd_per_million_tokens=times(usd, per_million),
        usd_per_epoch=times(usd, per_epoch),
    )


def price_of(gpu: Gpu, own: dict[str, float]) -> Price | None:
    """A user's price, by the GPU's name, else the lowest listed on the latest date; None if there is none."""
    if gpu.name in own:
        return Price(own[gpu.name], "", "given")
    found = [row for row in _listed() if gpu.name == row[0] or gpu.name.startswith(f"{row[0]} ")]
    if not found:
        return None
    latest = max(date for _, _, date, _ in found)
    return min(
        (Price(usd, date, source) for _, usd, date, source in found if date == latest), key=lambda p: p.usd_per_hour
    )


@lru_cache(maxsize=1)
def _listed() -> tuple[tuple[str, float, str, str], ...]:
    """(GPU, $ per hour, date, source) of the prices in the package, without those of doubtful kinds."""
    text = (files("gpuprof") / "data" / "prices.csv").read_text(encoding="utf-8")
    return tuple(
        (row["gpu"], float(row["usd_per_hour"]), row["date"], f"{row['provider']}, {row['source']}")
        for row in csv.DictReader(io.StringIO(text))
        if row["kind"].startswith(_USABLE_KINDS)
    )

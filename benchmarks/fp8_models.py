"""FP8 on the measured models: predictions from their recordings and from their shapes alone, and what was measured.

    python -m benchmarks.fp8_models

Each model of `scenarios.support.low_precision` was timed on an H200 in bf16 and with torchao's float8, scaled by tensor
and by row. `recorded` is the price of the finding `fp8` by the recording of the bf16 steps. `shapes` needs no
recording: from the measured bf16 step, the bf16 time of the layers' matrix multiplications
(`gpuprof.costs.matmul_rates`) becomes that in FP8, plus the casts; it gives the GPU's time, so it is
printed only if the GPU is busy throughout the measured steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.compile_prices import Price, prices
from benchmarks.recall import of_scenario
from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.calibration import precision as calibrated
from gpuprof.costs.fp8 import ROWWISE, TENSORWISE, Recipe, cast_kernels, cast_ns, matmul_ns
from gpuprof.costs.hardware import find
from gpuprof.costs.matmul_rates import half_precision_ns
from scenarios.catalogue import scenario

GPU = "NVIDIA H200"
RECIPES = {"fp8": TENSORWISE, "fp8_rowwise": ROWWISE}
"""Change of the programs → the recipe."""


@dataclass(frozen=True, slots=True)
class Model:
    """Residual gated MLPs, each of three linear layers; sizes in elements, rows in tokens."""

    width: int
    inner: int
    layers: int
    tokens: int
    gpu_bound: bool = True


MODELS = {
    "fp8_wide": Model(4096, 14336, 4, 8192),
    "fp8_middle": Model(2048, 5632, 8, 8192),
    "fp8_few_tokens": Model(4096, 14336, 4, 1024),
    "fp8_narrow": Model(1024, 2816, 12, 8192, gpu_bound=False),
}


def by_shapes(model: Model, step_ns: float, recipe: Recipe) -> tuple[float, float, float]:
    """Low, expected and high gain of a step that takes `step_ns` in bf16 on a busy H200."""
    high, expected, low = (step_ns / (step_ns + _added_ns(model, recipe, way)) for way in range(3))
    return low, expected, high


def _added_ns(model: Model, recipe: Recipe, way: int) -> float:
    """What FP8 adds to the GPU's time of a step, ns; below 0 where it saves. way: 0 at best, 1 as expected, 2 at
    worst."""
    gpu = find(GPU)
    assert gpu is not None and gpu.measured_flops and gpu.measured_bytes_per_s
    by_row = recipe is ROWWISE
    ratio = (calibrated.RATIO_ROWS if by_row else calibrated.RATIO).rising[way]
    share = (calibrated.CAST_ROWS if by_row else calibrated.CAST).falling[way]
    shortest, m, added = calibrated.KERNEL_NS.rising[way], model.tokens, 0.0
    # gate and up multiply the same input: one cast.
    for k, n, casts_input in (
        (model.width, model.inner, True),
        (model.width, model.inner, False),
        (model.inner, model.width, True),
    ):
        flops, moved = np.array([2.0 * m * k * n]), np.array([2.0 * (m * k + k * n + m * n)])
        bf16 = float(half_precision_ns(flops, moved, gpu.measured_flops, gpu.measured_bytes_per_s)[0])
        added -= 3 * (bf16 - matmul_ns(bf16, ratio, kernels_calibrated.MATMUL_ADDED_NS.value))
        for role in range(3):
            kernels = cast_kernels(recipe, role, m, k, n, casts_input)
            added += cast_ns(kernels, gpu.measured_bytes_per_s * share, shortest)
    return added * model.layers


def bf16_step_ns(name: str) -> float:
    """The measured step of a model in bf16, ns."""
    truth = scenario(f"programs/{name}").truth
    assert truth is not None
    return statistics.median(one["free_ms"] for one in truth["processes"] if one["fix"] == "") * 1e6


def lines() -> Iterator[str]:
    """A row of a Markdown table for each measured change."""
    yield "| model: width, inner, layers; tokens | change | measured | recorded | shapes |"
    yield "|---|---|---:|---:|---:|"
    for name, model in MODELS.items():
        program = of_scenario(scenario(f"programs/{name}"))
        for one in prices(program) if program else []:
            recipe = RECIPES.get(one.change, TENSORWISE)
            shapes = by_shapes(model, bf16_step_ns(name), recipe) if model.gpu_bound else None
            sizes = f"{model.width}, {model.inner}, {model.layers}; {model.tokens}"
            yield f"| {name}: {sizes} | {one.change} | {_measured(one)} | {_text(one.predicted)} | {_text(shapes)} |"


def _measured(one: Price) -> str:
    return "failed" if one.measured is None else f"{one.measured[1]:.2f}"


def _text(gain: tuple[float, float, float] | None) -> str:
    return "–" if gain is None else f"{gain[1]:.2f} ({gain[0]:.2f}–{gain[2]:.2f})"


def main() -> int:
    print("\n".join(lines()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""FP8 linear layers: bytes of the casts, published speedups of single layers, and what a step gains."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.program import BF16, MS, PLAIN, US, Program

from benchmarks.fp8_models import MODELS, RECIPES, bf16_step_ns, by_shapes
from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.calibration import precision as calibrated
from gpuprof.costs.fp8 import (
    DELAYED,
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    ROWWISE,
    TENSORWISE,
    Recipe,
    cast_kernels,
    cast_ns,
    layer_speedup,
    matmul_ns,
)
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.linear_layers import layer_matmuls
from gpuprof.diagnosis.findings import fp8
from scenarios.catalogue import scenario

# -- formulas

M, K, N = 64.0, 32.0, 16.0


def test_bytes_of_casts_by_hand():
    """x is read for the maximum, read again, and two bytes are written; w likewise with one layout, the other one
    later."""
    assert cast_kernels(TENSORWISE, FORWARD, M, K, N) == [2 * M * K, 0, 4 * M * K, 2 * K * N, 0, 3 * K * N]
    assert cast_kernels(TENSORWISE, GRAD_INPUT, M, K, N) == [2 * M * N, 0, 4 * M * N, 3 * K * N]
    assert cast_kernels(TENSORWISE, FORWARD, M, K, N, casts_input=False) == [2 * K * N, 0, 3 * K * N]
    assert all(cast_kernels(one, GRAD_WEIGHT, M, K, N) == [] for one in (TENSORWISE, ROWWISE, DELAYED))


def test_times():
    assert cast_ns([4e12, 0.0], 1e12, 2000.0) == 4e9 + 2000
    assert matmul_ns(104_000, 0.5, 4_000) == 54_000
    assert matmul_ns(3_000, 0.5, 4_000) == 3_000


H100 = {"flops": 0.78 * 989e12, "bytes_per_s": 2.4e12}
"""What torchao's roofline assumes about the H100s on which its figures were measured."""


def speedup(m: float, k: float, n: float, recipe: Recipe = TENSORWISE, **gpu: float) -> float:
    return layer_speedup(
        m, k, n, recipe=recipe, ratio=calibrated.RATIO.value, cast_share=calibrated.CAST.value,
        shortest_ns=calibrated.KERNEL_NS.value, added_ns=kernels_calibrated.MATMUL_ADDED_NS.value, **({**H100, **gpu}),
    )  # fmt: skip


@pytest.mark.parametrize(("shape", "published"), [((1024, 2048, 1024), 0.80), ((4096, 8192, 16384), 1.39)])
def test_published_layers_have_the_sign_and_the_size(shape: tuple[int, int, int], published: float):
    """README of torchao.float8, Performance: M, K, N of a linear layer on an H100."""
    found = speedup(*shape)
    assert (found > 1) == (published > 1)
    assert found == pytest.approx(published, rel=0.3)


def test_more_tokens_and_larger_layers_gain_more():
    sizes = [speedup(2.0**i, 4096, 4096) for i in range(9, 15)]
    assert sizes == sorted(sizes)
    assert speedup(8192, 4096, 14336) > speedup(8192, 1024, 2816)
    assert speedup(8192, 4096, 4096, DELAYED) > speedup(8192, 4096, 4096, TENSORWISE)


# -- in a recording


def layered(tmp_path: Path, m: int, k: int, n: int, kernel_ns: int, is_compiled: bool = True, **more: Any) -> Analysis:
    """Forward and backward of linear layers in a compiled step."""
    program = Program()

    def generated(body: Any) -> None:
        start = program.now
        program.op("triton", "triton_poi_fused_0" if is_compiled else PLAIN, 5 * US)
        body()
        if is_compiled:
            program.trace.op("## Call CompiledFxGraph fabc ##", start, program.now, program.tid, "user_annotation")
        program.now += 1 * US

    def forward() -> None:
        program.mm(m, k, n, gpu=kernel_ns, **more)

    def backward() -> None:
        program.mm(m, n, k, gpu=kernel_ns, **more)
        program.mm(n, m, k, gpu=kernel_ns, **more)

    def body() -> None:
        for _ in range(6):
            generated(forward)
        program.backward(lambda: generated(backward), 6)

    for _ in range(3):
        program.step(body, sync=True)
    return program.case(tmp_path)


def test_roles_are_told_by_shapes(tmp_path: Path):
    case = layered(tmp_path, 8192, 4096, 14336, 1 * MS)
    found = layer_matmuls(case)
    assert {(one.m, one.k, one.n) for one in found} == {(8192, 4096, 14336)}
    roles = [sum(one.role == role for one in found) for role in (FORWARD, GRAD_INPUT, GRAD_WEIGHT)]
    assert len(set(roles)) == 1 and roles[0] >= 2 * 6


def test_large_layers_gain_by_the_formula(tmp_path: Path):
    kernel = round(2 * 8192 * 4096 * 14336 / 750e12 * 1e9)
    case = layered(tmp_path, 8192, 4096, 14336, kernel)
    proposal = only(fp8, case)
    then = case.step_of(proposal.change(case.graph))
    bandwidth = 4.28e12 * calibrated.CAST.value
    first, other = (
        cast_ns(cast_kernels(TENSORWISE, FORWARD, 8192, 4096, 14336, x), bandwidth, calibrated.KERNEL_NS.value)
        for x in (True, False)
    )
    back = cast_ns(cast_kernels(TENSORWISE, GRAD_INPUT, 8192, 4096, 14336), bandwidth, calibrated.KERNEL_NS.value)
    gemms = 18 * matmul_ns(kernel, calibrated.RATIO.value, kernels_calibrated.MATMUL_ADDED_NS.value)
    # The six layers multiply rows of the same shape one after the other, with one cast.
    expected = gemms + first + 5 * other + 6 * back + 12 * 5 * US
    assert then == pytest.approx(expected, rel=0.05)
    assert proposal.best is not None and proposal.worst is not None
    assert case.step_of(proposal.best(case.graph)) < then < case.step_of(proposal.worst(case.graph))
    texts = " ".join(one.text for one in proposal.evidence)
    assert "18 matrix multiplications" in texts and "projected, not measured" in texts and "B200" in texts
    assert proposal.changes


def test_few_tokens_gain_nothing(tmp_path: Path):
    """The casts of the weights take as much as the multiplications save."""
    kernel = round(2 * 512 * 4096 * 14336 / 650e12 * 1e9)
    case = layered(tmp_path, 512, 4096, 14336, kernel)
    proposal = only(fp8, case)
    assert case.step_of(proposal.change(case.graph)) > 0.97 * case.step_ns


def test_eager_layers_are_not_worth_it_where_casts_take_it_all(tmp_path: Path):
    case = layered(tmp_path, 8192, 1024, 1024, 40 * US, is_compiled=False)
    assert not list(fp8.find(case))
    assert "casts and scales take" in (fp8.ABSENT.why(case) or "")


def test_eager_large_layers_need_compiling_first(tmp_path: Path):
    kernel = round(2 * 8192 * 4096 * 14336 / 750e12 * 1e9)
    case = layered(tmp_path, 8192, 4096, 14336, kernel, is_compiled=False)
    proposal = only(fp8, case)
    assert proposal.parts == ("torch.compile", "FP8 linear layers") and 0 < proposal.odds < 1


@pytest.mark.parametrize(
    ("shape", "type"), [((8192, 4096, 151936), BF16), ((8192, 4100, 14336), BF16), ((8192, 4096, 14336), "float")],
    ids=["the output layer", "odd sizes", "fp32"],
)  # fmt: skip
def test_what_fp8_cannot_take_over_is_left_out(tmp_path: Path, shape: tuple[int, int, int], type: str):
    case = layered(tmp_path, *shape, kernel_ns=1 * MS, type=type)
    assert not list(fp8.find(case))


@pytest.mark.parametrize("name", [name for name, one in MODELS.items() if one.gpu_bound])
@pytest.mark.parametrize("change", ["fp8", "fp8_rowwise"])
def test_measured_models_gain_what_their_shapes_say(name: str, change: str):
    """Timed on an H200: the sign is right or the gain is near 1, and the interval contains the gain."""
    truth = scenario(f"programs/{name}").truth
    assert truth is not None
    with_fp8 = statistics.median(one["free_ms"] for one in truth["processes"] if one["fix"] == change)
    measured = bf16_step_ns(name) / 1e6 / with_fp8
    low, expected, high = by_shapes(MODELS[name], bf16_step_ns(name), RECIPES[change])
    assert low < expected < high
    assert low <= measured <= high
    assert expected == pytest.approx(measured, rel=0.12)
    if abs(measured - 1) > 0.1:
        assert (expected > 1) == (measured > 1)

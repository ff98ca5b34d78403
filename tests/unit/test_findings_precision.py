"""Findings about number formats: TF32, autocast, adapters in fp32, weights that are unpacked."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.after_fix import after_us
from helpers.case import only
from helpers.program import BF16, FLOAT, GB, MATMUL, MS, PLAIN, US, Program

from gpuprof.diagnosis.findings import ABSENT, adapter_casts, autocast, dequantize, tf32


def test_fp32_products_become_as_fast_as_tf32_is(tmp_path):
    program = Program()

    def body():
        program.mm(4096, 4096, 4096, gpu=4 * MS, type=FLOAT, kernel="cutlass_80_simt_sgemm_256x128")
        program.plain("mul", [4096, 4096], gpu=1 * MS, type=FLOAT)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    product_us = 2 * 4096**3 / case.roofline.ceilings.flops["tf32"] / 0.65 * 1e6
    assert after_us(case, only(tf32, case)) == pytest.approx(1000 + product_us, rel=0.02)


@pytest.mark.parametrize(("type", "kernel"), [(BF16, MATMUL), (FLOAT, "cutlass_80_tensorop_s1688gemm_tf32_128x256")])
def test_products_on_tensor_cores_are_left_alone(tmp_path, type: str, kernel: str):
    program = Program()
    for _ in range(3):
        program.step(lambda: program.mm(4096, 4096, 4096, gpu=1 * MS, type=type, kernel=kernel))
    assert not list(tf32.find(program.case(tmp_path)))


def on_gpu(program: Program, name: str) -> Program:
    program.trace.top_level["deviceProperties"][0] |= {"name": name, "numSms": 80, "totalGlobalMem": 34 * GB}
    return program


def fp32_products(name: str, kernel: str = "volta_sgemm_128x64_nn", type: str = FLOAT) -> Program:
    program = on_gpu(Program(), name)
    for _ in range(3):
        program.step(lambda: program.mm(4096, 4096, 4096, gpu=12 * MS, type=type, kernel=kernel))
    return program


def test_a_gpu_without_bf16_is_advised_fp16(tmp_path):
    case = fp32_products("Tesla V100-SXM2-32GB").case(tmp_path)
    found = only(autocast, case)
    assert found.title == "fp16 autocast" and "GradScaler" in str(found.fix) and "bfloat16" not in str(found.fix)
    assert case.roofline is not None
    product_us = 2 * 4096**3 / case.roofline.ceilings.flops["fp16"] / 0.9 * 0.92 * 1e6
    assert product_us < after_us(case, found) < 12_000 / 3
    assert found.fix.patch is None
    assert ABSENT["tf32"].why(case) == "this GPU has no TF32"


def test_autocast_moves_attention_and_what_lies_between(tmp_path):
    """Attention in fp32 takes FlashAttention's time, at the shares of `eager_attention`; elementwise kernels of fp32
    half as long, where they follow a matrix multiplication."""
    program = Program()
    shape = [16, 16, 4096, 64]

    def body() -> None:
        program.mm(4096, 4096, 4096, gpu=4 * MS, type=FLOAT, kernel="sm90_xmma_gemm_tf32f32_tn")
        program.op(
            "aten::_scaled_dot_product_efficient_attention", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", 90 * MS,
            dims=[shape, shape, shape, [], [], [], [], []], types=[FLOAT] * 3 + [""] * 5,
        )  # fmt: skip
        program.op("aten::add", "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", 8 * MS)
        program.op("aten::add", "vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::BFloat16>>", 5 * MS)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    (found,) = autocast.find(case)
    assert case.roofline is not None and "with attention in fp32" in found.evidence[0].text
    before = case.graph.duration_ns
    kinds = np.append(case.trace.gpu.name, -1)[case.graph.gpu_row]

    def took(change, name: str) -> float:
        rows = np.isin(kinds, [i for i, text in enumerate(case.trace.strings) if name in text]) & case.graph.on_gpu
        return float(change(case.graph).duration_ns[rows].sum() / before[rows].sum())

    flops = 4 * 16 * 16 * 4096 * 4096 * 64
    flash_ns = flops / case.roofline.ceilings.flops["bf16"] / 0.42 * 1e9
    assert took(found.change, "fmha") == pytest.approx(flash_ns / (90e6), rel=0.02)
    assert [took(one, "add<float>") for one in (found.best, found.change, found.worst)] == [0.5, 0.75, 1.0]
    assert took(found.best, "add<c10") == 1.0


def test_formats_that_were_not_recorded_are_not_said_to_be_fine(tmp_path):
    """Matrix multiplications without recorded shapes may well run in fp32."""
    program = Program()

    def body() -> None:
        program.op("aten::mm", "cutlass_80_simt_sgemm_256x128", 12 * MS)
        program.mm(1024, 1024, 1024)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None and case.roofline.mfu(case.step_ns) is None, "most FLOPs are not known"
    for name in ("tf32", "autocast"):
        why = ABSENT[name].why(case)
        assert why is not None and "take 12 ms a step, and their operands are not known" in why


def adapter(program: Program, type: str = FLOAT) -> None:
    """A layer with an adapter of rank 8, as PEFT computes it: 1 ms the layer, 1.9 ms the adapter in fp32."""
    wide = [1, 4096, 4096]
    program.linear(4096, 4096, 4096, gpu=1 * MS)
    if type == FLOAT:
        program.cast(wide, BF16, FLOAT, gpu=300 * US)
    program.linear(4096, 4096, 8, gpu=400 * US, type=type)
    program.linear(4096, 8, 4096, gpu=200 * US, type=type)
    program.plain("mul", wide, [], gpu=200 * US, type=type)
    program.op("aten::add", PLAIN, 500 * US, [wide, wide, []], [BF16, type, "Scalar"])
    if type == FLOAT:
        program.cast(wide, FLOAT, BF16, gpu=300 * US)


def test_adapters_in_bf16_need_no_casts(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: [adapter(program) for _ in range(3)])
    case = program.case(tmp_path)
    assert case.step_ns / US == pytest.approx(3 * 2900, rel=0.01)
    # Matmuls keep 29 % of their time, the scaling 50 %, the sum of two formats 40 %, casts nothing.
    each = 1000 + 600 * 0.29 + 200 * 0.5 + 500 * 0.4
    assert after_us(case, only(adapter_casts, case)) == pytest.approx(3 * each, rel=0.02)


def test_adapters_in_the_models_format_are_left_alone(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: [adapter(program, BF16) for _ in range(3)])
    assert not list(adapter_casts.find(program.case(tmp_path)))


def quantised(program: Program) -> None:
    """A matmul of 1 ms with a 4-bit weight of 16 M that takes 500 µs to unpack."""
    start = program.now
    unpack, packed = "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", [8388608, 1]
    types = ["unsigned char", FLOAT]
    program.op(
        "bitsandbytes::dequantize_4bit", unpack, 500 * US, [packed, [262144]], types, grid=[8388608 // 512, 1, 1]
    )
    program.linear(4096, 4096, 4096, gpu=1 * MS)
    program.trace.op("MatMul4Bit", start, program.now)


def test_bf16_weights_are_not_unpacked(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: [quantised(program) for _ in range(4)])
    case = program.case(tmp_path)
    assert case.step_ns / US == pytest.approx(4 * 1500, rel=0.01)
    assert after_us(case, only(dequantize, case)) == pytest.approx(4 * 1000, rel=0.01)


def test_weights_stay_quantised_where_they_would_not_fit(tmp_path):
    program = Program(memory=100_000_000)
    for _ in range(3):
        program.step(lambda: [quantised(program) for _ in range(4)])
    assert not list(dequantize.find(program.case(tmp_path)))

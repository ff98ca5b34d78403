"""Findings about the GPU's work: small programs whose fixed step a hand computation tells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.case import only, run_of
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.present import present
from helpers.program import BF16, FLOAT, GB, MS, PLAIN, PRODUCT, US, Program, checkpointed

from gpuprof.costs.matmul_rates import half_precision_ns
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect import fused_sequences
from gpuprof.diagnosis.detect.proposal import CERTAIN_CHANCE
from gpuprof.diagnosis.findings import (
    ABSENT,
    adapter_casts,
    autocast,
    dequantize,
    eager_attention,
    expert_loop,
    exposed_communication,
    fused_elementwise,
    missing_kernels,
    padding,
    recompute,
    tf32,
    throttling,
)
from gpuprof.diagnosis.predicted_step import predict
from gpuprof.diagnosis.run_model import GpuTelemetry, RunMemory, Telemetry, Work
from gpuprof.replay.transform import scaled


def after_us(case: Analysis, proposal) -> float:
    """The expected step, µs."""
    return predict(case, proposal).expected / US


# -- experts


def experts(program: Program, count: int, between: str | None = None) -> None:
    """40 layers' worth of host time, then a loop over experts with 12 or 13 rows each; the host is always behind."""
    for _ in range(40):
        program.mm(1024, 1024, 1024)
    for number in range(count):
        rows = 12 + number % 2  # a router gives experts different numbers of rows
        program.nonzero([4, 1024])
        program.op("aten::index", PLAIN, dims=[[1024, 1024], []], types=[BF16, ""])
        program.mm(rows, 1024, 1024)
        program.plain("silu", [rows, 512])
        program.plain("mul", [rows, 512], [rows, 512])
        program.mm(rows, 512, 1024)
        if between:
            program.op(between, PLAIN)
        program.op(
            "aten::index_add_",
            PLAIN,
            dims=[[1024, 1024], [], [rows], [rows, 1024]],
            types=[BF16, "", "long int", BF16],
        )


def test_a_loop_over_experts_becomes_as_many_launches_as_grouped_experts_need(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: experts(program, 16))
    case = program.case(tmp_path)
    proposal = only(expert_loop, case)
    # 40 launches of 20 µs as before, and 33 of the loop's usual 19 instead of its 7 × 16; the GPU works less than that.
    assert after_us(case, proposal) == pytest.approx(40 * 20 + 33 * 19, rel=0.02)
    assert case.step_ns / US > 40 * 20 + 16 * 6 * 20
    assert "16 experts" in proposal.evidence[0].text
    assert "grouped_mm" in str(proposal.fix)


def test_grouped_experts_take_the_time_of_their_weights_where_those_are_large(tmp_path):
    program = Program()

    def body():
        for number in range(8):
            rows = 8 + number % 2
            program.nonzero([2, 64])
            program.op("aten::index", PLAIN, dims=[[64, 8192], []], types=[BF16, ""])
            program.mm(rows, 8192, 16384, gpu=90 * US)
            program.mm(rows, 16384, 8192, gpu=90 * US)
            program.op(
                "aten::index_add_",
                PLAIN,
                dims=[[64, 8192], [], [rows], [rows, 8192]],
                types=[BF16, "", "long int", BF16],
            )

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    # Two matrices of 8192 × 16384 for each of 8 experts, once, in bf16 at 48 % of the memory's rate; 33 launches.
    weights_us = 8 * 2 * 8192 * 16384 * 2 / case.roofline.ceilings.memory_bytes_per_s / 0.48 * 1e6
    assert after_us(case, only(expert_loop, case)) == pytest.approx(weights_us + 33 + 30, rel=0.05)


@pytest.mark.parametrize(
    ("count", "between"), [(3, None), (16, "aten::scaled_dot_product_attention"), (16, "aten::rsqrt")]
)
def test_few_experts_or_layers_that_repeat_are_no_loop_over_experts(tmp_path, count: int, between: str | None):
    program = Program()
    for _ in range(3):
        program.step(lambda: experts(program, count, between))
    assert not list(expert_loop.find(program.case(tmp_path)))


# -- attention


def attention(program: Program, around: tuple[str, ...] = (), keys: int = 2048, more: int = 0) -> None:
    """Scores of 64 heads of width 64: what the two matmuls and the softmax between them take is 3 ms."""
    start = program.now
    program.op("aten::bmm", PRODUCT, 500 * US, [[64, 2048, 64], [64, 64, keys]], [BF16, BF16])
    program.plain("add", [4, 16, 2048, keys], [4, 1, 2048, keys], gpu=1 * MS)
    program.op(
        "aten::softmax", PLAIN, 1 * MS, [[4, 16, 2048, keys + more], [], []], [BF16, "", ""], inner=("aten::_softmax",)
    )
    program.op("aten::bmm", PRODUCT, 500 * US, [[64, 2048, keys], [64, keys, 64]], [BF16, BF16])
    for name in around:
        program.trace.op(name, start, program.now)


def test_eager_attention_becomes_as_fast_as_its_arithmetic_allows(tmp_path):
    program = Program()

    def body():
        program.mm(8192, 4096, 4096, gpu=2 * MS)
        attention(program)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    assert case.step_ns / US == pytest.approx(5000, rel=0.01)
    # Two matmuls over the scores below the diagonal, at 42 % of the ceiling; three launches of a microsecond.
    flops = 2 * 2 * 64 * 64 * 2048 * 2049 / 2
    fused_us = flops / case.roofline.ceilings.flops["bf16"] / 0.42 * 1e6 + 3
    assert after_us(case, only(eager_attention, case)) == pytest.approx(2000 + fused_us, rel=0.02)


def test_replaced_work_is_as_much_longer_as_another_change_made_it(tmp_path):
    """Attention fused after a batch was doubled takes twice what it takes fused in the batch as it is."""
    program = Program()
    for _ in range(4):
        program.step(lambda: attention(program))
    case = program.case(tmp_path)
    change = only(eager_attention, case).change
    twice = scaled(case.graph, case.graph.on_gpu, 2.0)
    assert case.step_of(change(twice)) == pytest.approx(2 * case.step_of(change(case.graph)), rel=0.02)
    assert case.step_of(scaled(change(case.graph), case.graph.on_gpu, 2.0)) == case.step_of(change(twice))


def test_sinks_are_recognised_and_get_an_implementation_that_knows_them(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: attention(program, more=1))
    assert "flex_attention" in str(only(eager_attention, program.case(tmp_path)).fix)


def test_torchs_own_attention_and_other_softmaxes_are_no_eager_attention(tmp_path):
    program = Program()

    def body():
        attention(program, around=("aten::scaled_dot_product_attention",))
        program.op("aten::bmm", PRODUCT, 9 * MS, [[64, 2048, 64], [64, 64, 2048]], [BF16, BF16])
        program.op("aten::softmax", PLAIN, 9 * MS, [[4096, 128], [], []], [BF16, "", ""], inner=("aten::_softmax",))
        program.op("aten::bmm", PRODUCT, 9 * MS, [[64, 2048, 2048], [64, 2048, 64]], [BF16, BF16])

    for _ in range(3):
        program.step(body)
    assert not list(eager_attention.find(program.case(tmp_path)))


# -- formats


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


@pytest.mark.parametrize(("type", "kernel"), [(BF16, PRODUCT), (FLOAT, "cutlass_80_tensorop_s1688gemm_tf32_128x256")])
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
    """Kernels of matrix multiplications without shapes: they may well run in fp32."""
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
    # Products keep 29 %, the scaling 50 %, the sum of two formats 40 %, casts nothing.
    each = 1000 + 600 * 0.29 + 200 * 0.5 + 500 * 0.4
    assert after_us(case, only(adapter_casts, case)) == pytest.approx(3 * each, rel=0.02)


def test_adapters_in_the_models_format_are_left_alone(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: [adapter(program, BF16) for _ in range(3)])
    assert not list(adapter_casts.find(program.case(tmp_path)))


# -- traffic


def norm(program: Program, gpu: int = 200 * US) -> None:
    shape = [8, 2048, 4096]
    program.cast(shape, BF16, FLOAT, gpu=gpu)
    program.plain("pow", shape, [], gpu=gpu, type=FLOAT)
    program.plain("mean", shape, gpu=gpu, type=FLOAT)
    program.plain("rsqrt", [8, 2048, 1], type=FLOAT)
    program.plain("mul", shape, [8, 2048, 1], gpu=gpu, type=FLOAT)
    program.plain("mul", [4096], shape, gpu=gpu)


def norm_by_division(program: Program, gpu: int = 200 * US) -> None:
    """x / sqrt(mean(x · x) + ε) · w."""
    shape = [8, 2048, 4096]
    program.cast(shape, BF16, FLOAT, gpu=gpu)
    program.plain("mul", shape, shape, gpu=gpu, type=FLOAT)
    program.plain("mean", shape, gpu=gpu, type=FLOAT)
    program.plain("add", [8, 2048, 1], [], type=FLOAT)
    program.plain("sqrt", [8, 2048, 1], type=FLOAT)
    program.plain("div", shape, [8, 2048, 1], gpu=gpu, type=FLOAT)
    program.plain("mul", [4096], shape, gpu=gpu)


@pytest.mark.parametrize("written", [norm, norm_by_division], ids=["rsqrt", "division"])
def test_a_fused_norm_reads_and_writes_once(written, tmp_path):
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        written(program)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    fused_us = 2 * 8 * 2048 * 4096 * 2 / case.roofline.ceilings.memory_bytes_per_s / 0.65 * 1e6 + 1
    assert after_us(case, only(fused_elementwise, case)) == pytest.approx(1000 + fused_us, rel=0.02)


HEADS, HALF = [8, 2048, 32, 128], [8, 2048, 32, 64]
PAIRS, TABLE = [8, 2048, 32, 64, 2], [2048, 1, 64]
ROTARY = {
    "transformers": [
        ("mul", HEADS, HEADS), ("slice", HEADS), ("slice", HEADS), ("neg", HALF), ("cat", HALF), ("mul", HEADS, HEADS),
        ("add", HEADS, HEADS),
    ],
    "complex": [
        ("to", HEADS), ("reshape", HEADS), ("view_as_complex", PAIRS), ("unsqueeze", [2048, 64]), ("mul", HALF, TABLE),
        ("view_as_real", HALF), ("flatten", PAIRS), ("type_as", HEADS),
    ],
    "chunk": [
        ("chunk", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("sub", HALF, HALF), ("mul", HALF, TABLE),
        ("mul", HALF, TABLE), ("add", HALF, HALF), ("cat", HALF),
    ],
    "nanochat": [
        ("slice", HEADS), ("slice", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("add", HALF, HALF),
        ("neg", TABLE), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("add", HALF, HALF), ("cat", HALF), ("to", HEADS),
    ],
    "gpt-fast": [
        ("to", HEADS), ("reshape", HEADS), ("view", [2048, 64, 2]), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]),
        ("mul", HALF, TABLE), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE),
        ("sub", HALF, HALF), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE),
        ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE), ("add", HALF, HALF), ("stack", HALF),
        ("flatten", PAIRS), ("type_as", HEADS),
    ],
}  # fmt: skip
"""Ops of a rotary embedding as PyTorch 2.13 records them, with the shapes of their arguments."""


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embeddings_are_found_however_they_are_written(name, tmp_path):
    """Of queries and of keys, one after the other; the fused kernel reads and writes the queries in bf16."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        for op, *shapes in ROTARY[name] * 2:
            program.plain(op, *shapes, gpu=100 * US if op in ("mul", "add", "sub", "to", "cat", "stack") else 0)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    found = fused_sequences.find_sequences(case)
    assert found is not None
    assert found.kind.tolist() == [fused_sequences.ROPE] * 2 * case.steps
    assert set(found.bytes) == {2.0 * math.prod(HEADS)}
    assert list(fused_elementwise.pieces(case)) == ["rotary embedding"]


def test_halves_that_are_only_joined_are_no_rotary_embedding(tmp_path):
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        for op, *shapes in [("chunk", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("cat", HALF)]:
            program.plain(op, *shapes, gpu=100 * US)

    for _ in range(3):
        program.step(body)
    assert fused_sequences.find_sequences(program.case(tmp_path)) is None


def test_each_piece_has_a_price_of_its_own_and_may_lose(tmp_path):
    """Two norms' kernels of which the fused one takes about as long: alone as both, and at worst longer."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        norm(program, gpu=10 * US)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    (name,) = fused_elementwise.pieces(case)
    piece = fused_elementwise.pieces(case)[name]
    assert name == "norms"
    worst = case.step_of(present(piece.worst)(case.graph))
    assert case.step_of(piece.change(case.graph)) <= case.step_ns < worst


def test_where_the_host_limits_the_step_fused_kernels_are_no_fix(tmp_path):
    """Only launches that go may gain something, and what a fused call costs there is not known well."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096)
        norm(program, gpu=2 * US)

    for _ in range(3):
        program.step(body)
    found = list(fused_elementwise.find(program.case(tmp_path)))
    assert all(one.odds < CERTAIN_CHANCE and one.needs for one in found)


# -- memory for time


def test_without_checkpointing_the_repeated_forward_goes(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    case = program.case(tmp_path)
    proposal = only(recompute, case)
    assert case.step_ns / US == pytest.approx(7000, rel=0.01)
    assert after_us(case, proposal) == pytest.approx(5000, rel=0.02)
    assert "the present peak was not recorded" in str(proposal.fix)


def _restoring(program: Program) -> None:
    """Forward 2 ms of host; backward: 1 ms to restore the random state, the forward again (2 ms), 1 ms to start the
    backward pass inside, 3 ms of that, 0.2 ms to end. The GPU is never busy."""

    def products(count: int, gpu: int, repeated: bool = False) -> None:
        for _ in range(count):
            numbers = program.numbered() if repeated else {}
            program.op("aten::mm", PRODUCT, gpu, [[4096, 4096], [4096, 4096]], [BF16, BF16], **numbers)
            program.now += 1 * MS - 20 * US

    products(2, 5 * US)
    program.tid, start = AUTOGRAD, program.now
    program.now += 1 * MS
    products(2, 5 * US, repeated=True)
    program.now += 1 * MS
    products(3, 5 * US)
    program.now += 200 * US
    engine: dict = {"Sequence number": 1, "Fwd thread id": 1}
    program.trace.op("CheckpointFunctionBackward", start, program.now, AUTOGRAD, **engine)
    program.engine(start - US, program.now, "CheckpointFunctionBackward")
    program.tid = MAIN


def test_a_checkpoints_own_python_goes_with_it(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: _restoring(program))
    case = program.case(tmp_path)
    gone_us = case.step_ns / US - after_us(case, only(recompute, case))
    assert gone_us == pytest.approx(4000, rel=0.02)  # not the 0.2 ms at the end, which the engine may need anyway


def test_checkpointing_stays_where_the_memory_is_needed(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    full = run_of(memory=RunMemory(None, None, int(0.92 * 140 * GB)))
    assert not list(recompute.find(program.case(tmp_path, full)))
    half = run_of(memory=RunMemory(None, None, 70 * GB))
    assert "GiB that are free" in str(only(recompute, program.case(tmp_path, half)).fix)


def quantised(program: Program) -> None:
    """A product of 1 ms with a weight of 16 M in 4 bits that takes 500 µs to unpack."""
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


# -- tokens


def padded(tmp_path, real: float) -> Analysis:
    program = Program()

    def body():
        for _ in range(5):
            program.mm(8192, 4096, 4096, gpu=1 * MS)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path, run_of(work=Work(4.0, 8192.0, real * 8192, 1.0)))


def test_padding_costs_as_much_as_its_share_of_the_tokens(tmp_path):
    case = padded(tmp_path, 0.25)
    packed = only(padding, case, "packing")
    assert packed.work == pytest.approx(0.97 / 0.25)
    assert after_us(case, packed) == pytest.approx(5000, rel=0.01)
    # Products of 8192 rows are far above reading their weights: they scale with the rows.
    assert after_us(case, only(padding, case, "padding_free")) == pytest.approx(1250, rel=0.03)
    assert after_us(case, only(padding, case, "grouped")) == pytest.approx(5000 * (0.25 + 0.15 * 0.75), rel=0.03)


def test_padding_is_that_of_all_steps_of_the_run(tmp_path):
    """Few recorded steps can be of batches that are padded less, or more."""
    case = padded(tmp_path, 0.5)
    assert case.run
    case = case.with_facts(run=replace(case.run, work=Work(4.0, 8192.0, 4096.0, 1.0, 0.25)))
    packed = only(padding, case, "packing")
    assert packed.work == pytest.approx(0.97 / 0.25)
    assert packed.evidence[0].text.startswith("75 % of the tokens are padding, some 6,144 of 8,192 a step")
    assert after_us(case, only(padding, case, "padding_free")) == pytest.approx(1250, rel=0.03)


def test_rows_with_one_label_each_are_not_packed(tmp_path):
    """A reward model or classifier reads one output per row: only the lengths of rows may become alike."""
    case = padded(tmp_path, 0.5)
    for name in ("Qwen2ForSequenceClassification", "PeftModelForSequenceClassification"):
        found = padding.find(case.with_facts(stack=replace(case.stack, model_class=name)))
        assert [proposal.key for proposal in found] == ["grouped"]


def test_little_padding_or_none_known_is_no_finding(tmp_path):
    case = padded(tmp_path, 0.95)
    assert not list(padding.find(case))
    assert not list(padding.find(case.with_facts(run=None)))


# -- several GPUs


def exchange(program: Program, overlapped: bool, passes: int = 1) -> None:
    """Backward of 4 ms, then an all-reduce of 2 ms on a stream of its own: behind it all, or over its second half."""
    for _ in range(passes):
        program.tid, start = AUTOGRAD, program.now
        for number in range(4):
            program.op("aten::mm", PRODUCT, 1 * MS, [[4096, 4096], [4096, 4096]], [BF16, BF16])
            if number == 1 or not overlapped:
                program.free[20] = program.free[7]
        moved = {"Collective name": "allreduce", "In msg nelems": 44_000_000, "dtype": "Float", "Group size": 2}
        program.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", (program.now, program.now + 4 * US), 2 * MS, 20, **moved
        )
        program.now += 10 * US
        program.engine(start - US, program.now)
        program.tid = MAIN
        program.op("aten::add", dims=[[1], [1]], types=[FLOAT, FLOAT])
    program.free[7] = program.idle_at


def test_exposed_transfers_are_shorter_behind_computation(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=False), sync=True)
    case = program.case(tmp_path)
    before = case.step_ns / US
    proposal = only(exposed_communication, case, "overlap")
    # 60 % of the 2 ms hide, and 40 % of that comes back.
    assert before - after_us(case, proposal) == pytest.approx(720, rel=0.05)
    assert [p.key for p in exposed_communication.find(case)] == ["overlap"]
    assert "bucket_cap_mb=5," in str(proposal.fix)  # one exchange a step has nothing left to hide behind


def test_overlapped_transfers_are_no_finding(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=True), sync=True)
    assert not list(exposed_communication.find(program.case(tmp_path)))


def test_gradients_need_not_be_exchanged_between_micro_steps(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=False, passes=4), sync=True)
    case = program.case(tmp_path)
    proposal = only(exposed_communication, case, "no_sync")
    assert "no_sync" in str(proposal.fix)
    between = case.step_ns / US - after_us(case, proposal)
    assert 0 <= between <= 3 * 2000 * 1.02
    assert "3 all-reduces a step" in proposal.evidence[0].text


# -- the clock


def kinds(program: Program, slower: float) -> None:
    for kind in range(60):
        program.op(
            "aten::mm", f"{PRODUCT}_{kind}", round(100 * US * slower), [[4096, 4096], [4096, 4096]], [BF16, BF16]
        )


def test_kernels_that_get_slower_while_they_are_recorded_are_throttled(tmp_path):
    program = Program()
    for step in range(9):
        program.step(lambda step=step: kinds(program, 1 + 0.02 * step), sync=True)
    case = program.case(tmp_path)
    # From steps 0 to 2 to steps 6 to 8: 1.14 over 1.02.
    proposal = only(throttling, case)
    assert after_us(case, proposal) / (case.step_ns / US) == pytest.approx(1.02 / 1.14, rel=0.02)


def test_steady_kernels_are_not_throttled(tmp_path):
    program = Program()
    for step in range(9):
        program.step(lambda step=step: kinds(program, 1 + 0.01 * (step % 2)), sync=True)
    assert not list(throttling.find(program.case(tmp_path)))


@pytest.mark.parametrize(("reason", "found"), [("hw_thermal", True), ("sw_power_cap", False)])
def test_heat_holds_the_clock_back_and_a_power_limit_is_as_it_should_be(tmp_path, reason: str, found: bool):
    program = Program()
    for _ in range(4):
        program.step(lambda: program.mm(8192, 8192, 8192, gpu=2 * MS))
    gpu = GpuTelemetry(0, 500.0, 700.0, 1485.0, 1980.0, 88.0, 1.0, {reason: 0.8})
    case = program.case(tmp_path, run_of(telemetry=Telemetry((gpu,), 50, None)))
    proposals = list(throttling.find(case))
    assert bool(proposals) == found
    for proposal in proposals:
        assert after_us(case, proposal) == pytest.approx(2000 * 1485 / 1980, rel=0.02)


# -- matrix multiplications in another format


def test_small_matrix_multiplications_reach_a_small_part_of_what_large_ones_do():
    """On an H200: 4096³ reaches more than 90 % of the measured ceiling, 512³ less than a tenth."""
    bf16, memory = 796e12, 4.28e12
    sizes = np.array([4096.0, 512.0])
    flops, moved = 2 * sizes**3, 3 * 2 * sizes**2
    large, small = half_precision_ns(flops, moved, bf16, memory)
    took = np.hypot(flops[0] / bf16 / 1.06, moved[0] / memory / 0.84) * 1e9
    assert large == pytest.approx(0.99 * (4_000 + took))
    assert flops[0] / bf16 * 1e9 / large > 0.9 and flops[1] / bf16 * 1e9 / small < 0.1
    best, worst = (half_precision_ns(flops, moved, bf16, memory, level) for level in (0, 2))
    assert (best < [large, small]).all() and (worst > [large, small]).all()
    assert worst[1] / best[1] > 1.1 * worst[0] / best[0], "small ones scatter more"


def test_a_causal_convolution_is_priced_by_its_shape(tmp_path):
    """One over four tokens per channel with the SiLU after it; wide filters and mixed channels are another kernel's."""
    source, silu = [4, 4096, 2048], [4, 4096, 2048]

    def case(weight: list[int], folder: str) -> Analysis:
        program = Program()

        def body():
            program.mm(16384, 4096, 4096, gpu=1 * MS)
            program.plain("conv1d", source, weight, gpu=900 * US)
            program.plain("slice", source)
            program.plain("silu", silu, gpu=100 * US)

        for _ in range(4):
            program.step(body)
        return program.case(tmp_path / folder)

    found = case([4096, 1, 4], "causal")
    assert found.roofline is not None
    fused_us = 2 * 2 * math.prod(source) / found.roofline.ceilings.memory_bytes_per_s / 0.65 * 1e6 + 1
    proposal = only(missing_kernels, found, "convolutions")
    assert after_us(found, proposal) == pytest.approx(found.step_ns / US - 1000 + fused_us, rel=0.02)
    for weight in ([4096, 1, 31], [4096, 4096, 4], [2048, 1, 4]):
        assert not list(missing_kernels.find(case(weight, f"other{weight}")))

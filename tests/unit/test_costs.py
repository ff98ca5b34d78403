"""FLOPs and bytes of kernels: shapes, caches, and hand-made recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.make_trace import TraceBuilder, sequence
from helpers.op_arguments import H200, PLAIN, arguments
from helpers.present import present
from helpers.timeline import timeline_of

from gpuprof.costs.arguments import Tensor, parse
from gpuprof.costs.ceilings import ceilings
from gpuprof.costs.cost import Cost, Kernel
from gpuprof.costs.dtypes import CODE, UNKNOWN
from gpuprof.costs.formulas.attention import attention
from gpuprof.costs.formulas.foreach import CHUNK_ELEMENTS, chunk_fill, over_lists
from gpuprof.costs.formulas.from_kernel_name import by_name
from gpuprof.costs.formulas.gemm import function_name, gemm, tile
from gpuprof.costs.formulas.memory_ops import streaming
from gpuprof.costs.hardware import find
from gpuprof.costs.roofline import roofline
from gpuprof.costs.split import NO_BOUND, PARTS, split
from gpuprof.costs.work import KernelWork, kernel_work

CEILINGS = present(ceilings("NVIDIA H200", measurements={}))


def cost_of(name: str, dims, types=None, concrete=None, kernel: Kernel = PLAIN) -> Cost:
    """The cost of an op, on bfloat16 tensors unless specified."""
    types = types or ["c10::BFloat16" if d else "Scalar" for d in dims]
    given_ = arguments(name, dims, types, concrete=concrete)
    found = gemm(given_, kernel, H200) or streaming(given_, kernel, H200)
    assert found is not None
    return found


def test_a_causal_mask_leaves_the_lower_half():
    dims, types = [[1, 1, 64, 8]] * 3, ["float"] * 3
    full = attention(arguments("aten::_scaled_dot_product_efficient_attention", dims, types), PLAIN)
    concrete = ["", "", "", "", "False", "0.", "True"]
    half = attention(arguments("aten::_scaled_dot_product_efficient_attention", dims, types, concrete=concrete), PLAIN)
    assert full is not None and half is not None
    seen = sum(i + 1 for i in range(64))
    assert half.flops / full.flops == seen / 64**2


def test_packed_sequences_count_by_their_mean_length():
    dims = [[100, 4, 16]] * 3 + [[6], [6]]
    packed = arguments("aten::_flash_attention_forward", dims, ["float"] * 3 + ["int"] * 2)
    found = attention(packed, PLAIN)
    assert found is not None
    assert found.flops == 5 * 4 * (2 * 20 * 20 * (16 + 16))


# Shapes and caches.


def test_what_a_tensor_takes():
    assert Tensor((4, 1024, 4096), "c10::BFloat16").bytes == 4 * 1024 * 4096 * 2
    assert Tensor((4, 1024, 4096), "float", (1024, 1, 0)).bytes == 4 * 1024 * 4  # expanded: once
    assert Tensor((8, 64), "float", (128, 1)).bytes == 8 * 64 * 4  # every other row
    assert Tensor((64, 8), "float", (1, 64)).bytes == 8 * 64 * 4  # transposed
    assert Tensor((1000,), "c10::BFloat16", (2,)).bytes == 1999 * 2  # every other element: all sectors
    assert Tensor((1000,), "c10::BFloat16", (1000,)).bytes == 1000 * 32  # a sector each
    assert Tensor((), "long int", ()).bytes == 8
    assert Tensor((0, 5), "float", (5, 1)).bytes == 0


@pytest.mark.parametrize(
    "text", ["", "[", "[[1,2],", '{"a":1}', "3", "[[1.5]]", "[[-3]]", "null", '["x"]', "[[[[1]]]]"]
)
def test_arguments_that_are_broken_are_not_recorded(text):
    found = parse("aten::add", text, '["float", "float"]', text, text)
    assert found.tensors == []
    assert streaming(found, PLAIN, H200) is None


def test_tiles_of_kernel_names():
    assert tile("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT") == (128, 320)
    assert tile("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x32x8_stage3") == (32, 128)
    assert tile("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>") == (32, 128)
    assert tile("ampere_sgemm_64x64_nn") == (64, 64)
    assert tile("gemv2T_kernel_val") == (128, 128)


def test_fp32_products_run_on_tensor_cores_only_if_their_kernel_does():
    dims, types = [[64, 64], [64, 64]], ["float", "float"]
    for name, dtype in [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x32x8", "fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "fp32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>", "tf32"),
    ]:
        found = cost_of("aten::mm", dims, types, kernel=Kernel(name, (1, 1, 1), 128))
        assert found.dtype == CODE[dtype], name


@pytest.mark.parametrize(
    ("dims", "flops"),
    [
        ([[100, 32], [4, 32, 48], [4]], 2 * 100 * 32 * 48),  # rows belong to experts
        ([[4, 100, 32], [32, 48], [4]], 2 * 100 * 32 * 48),  # columns do
        ([[32, 100], [100, 48], [4]], 2 * 100 * 32 * 48),  # k does: gradients of the experts' weights
        ([[4, 25, 32], [4, 32, 48]], 2 * 100 * 32 * 48),
    ],
)
def test_grouped_products(dims, flops):
    found = cost_of("aten::_grouped_mm", dims, ["c10::BFloat16", "c10::BFloat16", "int"][: len(dims)])
    assert found.flops == pytest.approx(flops)


def test_quantised_products():
    fp8 = cost_of("aten::_scaled_mm", [[64, 128], [128, 96], [], []], ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2)
    assert (fp8.flops, fp8.dtype, fp8.write_bytes) == (2 * 64 * 128 * 96, CODE["fp8"], 64 * 96 * 2)
    packed = cost_of("bitsandbytes::gemv_4bit", [[1, 4096], [4096 * 1024 // 2, 1]], ["c10::BFloat16", "unsigned char"])
    assert packed.flops == 2 * 4096 * 1024
    assert packed.read_bytes == pytest.approx(4096 * 1024 / 2 + 4096 * 2)


def test_kernels_whose_names_hold_their_work():
    four = by_name(Kernel("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, …)", (1000, 1, 1), 64))
    assert four is not None
    assert four.write_bytes == 1000 * 1024 * 2
    assert four.read_bytes == 1000 * 512 + 1000 * 1024 / 64 * 4
    eight = by_name(Kernel("void kDequantizeBlockwise<float, 512, 64, 8, 0>(float*, …)", (1000, 1, 1), 64))
    assert eight is not None
    assert eight.write_bytes == 1000 * 512 * 4
    assert by_name(PLAIN) is None


def test_lists_of_tensors():
    names = ["TensorList"] * 4 + ["Scalar"]
    adam = Kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float const*, double>", (20, 1, 1), 512)
    shapes = [[100, 10], [24]]
    known = over_lists(arguments("aten::_fused_adamw_", [shapes] * 4 + [[]], names), adam, 1.0)
    assert known is not None
    assert (known.read_bytes, known.write_bytes, known.whole) == (1024 * 4 * 4, 1024 * 3 * 4, True)
    left_out = over_lists(arguments("aten::_fused_adamw_", [[]] * 5, names), adam, 0.25)
    assert left_out is not None
    assert (left_out.read_bytes, left_out.whole) == (20 * CHUNK_ELEMENTS * 0.25 * 16, False)
    assert chunk_fill([CHUNK_ELEMENTS // 2, CHUNK_ELEMENTS // 4]) == 0.375
    assert chunk_fill([CHUNK_ELEMENTS + 1]) == pytest.approx(0.5, rel=1e-3)
    assert chunk_fill([]) == 1.0


def test_softmax_of_long_rows_is_read_again_where_it_does_not_stay():
    kernel = "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, float, float, float>"
    rows = 4096

    def read(width: int, name: str) -> float:
        launched = Kernel(kernel.format(name), (rows, 1, 1), 1024)
        dims, types = [[rows, width], [], []], ["float", "Scalar", "Scalar"]
        return cost_of("aten::_log_softmax", dims, types, kernel=launched).read_bytes / (rows * width * 4)

    assert read(1024, "Forward") == 1
    assert 1 < read(32_000, "Forward") < read(128_256, "Forward") < 3
    assert read(128_256, "ForwardSmem") == 1


# Whole recordings.


def recorded_args(dims, types, strides=None, concrete=None) -> dict:
    found = {"Input Dims": dims, "Input type": types}
    if strides is not None:
        found["Input Strides"] = strides
    if concrete is not None:
        found["Concrete Inputs"] = concrete
    return found


MM = recorded_args([[512, 512], [512, 512]], ["c10::BFloat16"] * 2)
MM_FLOPS = 2 * 512**3


def test_kernels_of_one_op_share_it():
    """Two halves of a matmul share it by their durations; the kernel that adds partial sums has its own bytes, and no
    FLOPs."""
    trace = TraceBuilder().op("aten::mm", 0, 1000, **MM)
    for i, (name, length) in enumerate([("nvjet_a", 3000), ("nvjet_a", 1000), ("splitKreduce_kernel", 500)]):
        trace.launch(name, (100 * i + 10, 100 * i + 20), (2000 + 4000 * i, 2000 + 4000 * i + length))
    work = kernel_work(timeline_of(trace))
    assert work.flops.tolist() == [MM_FLOPS * 0.75, MM_FLOPS * 0.25, 0.0]
    assert work.traffic_bytes[0] == 3 * work.traffic_bytes[1]
    assert work.dtype.tolist() == [CODE["bf16"], CODE["bf16"], UNKNOWN]
    assert work.model.all()


GROUPED = "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm4CopyEEEvNT_6ParamsE"
"""CUTLASS's kernel for grouped matrix multiplications as it is recorded, with a copy among its template arguments."""


def test_experts_are_multiplied_by_the_kernel_that_multiplies():
    """The kernel that writes the groups' pointers does not count, and a matmul that is built with a copy is not a
    copy."""
    arguments = recorded_args([[64, 512], [8, 512, 256], [8]], ["c10::BFloat16", "c10::BFloat16", "int"])
    trace = TraceBuilder().op("aten::_grouped_mm", 0, 1000, **arguments)
    trace.launch("void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>", (10, 20), (2000, 2002))
    trace.launch(GROUPED, (110, 120), (3000, 3400))
    work = kernel_work(timeline_of(trace))
    assert work.flops.tolist() == [0.0, 2 * 64 * 512 * 256]
    assert work.bytes[0] == 0


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        (GROUPED, "cutlass::device_kernel"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "void cublasLt::splitKreduce_kernel"),
        ("_ZN5short", "short"),
        ("_ZN99cut", "cut"),
        ("nvjet_sm90_tst_64x32", "nvjet_sm90_tst_64x32"),
    ],
)
def test_a_kernels_function(kernel: str, function: str):
    assert function_name(kernel) == function


def test_an_op_without_arguments_takes_those_of_the_op_around_it():
    trace = TraceBuilder().op("aten::mm", 0, 1000, **MM).op("gemm_helper", 10, 900)
    trace.launch("nvjet_a", (20, 30), (2000, 3000))
    assert kernel_work(timeline_of(trace)).flops.tolist() == [MM_FLOPS]


def test_a_replayed_kernel_does_what_the_same_launch_did():
    launch: dict[str, Any] = {"grid": [4, 4, 1], "block": [128, 1, 1]}
    trace = TraceBuilder().op("aten::mm", 0, 1000, **MM)
    trace.launch("nvjet_a", (20, 30), (2000, 3000), **launch)
    trace.gpu("nvjet_a", 4000, 5000, **launch)
    trace.gpu("nvjet_a", 6000, 7000, grid=[8, 4, 1], block=[128, 1, 1])
    work = kernel_work(timeline_of(trace))
    assert work.flops[:2].tolist() == [MM_FLOPS] * 2
    assert not work.model[2]


def test_what_is_not_known_is_not_modelled():
    trace = TraceBuilder().op("aten::mm", 0, 100).op("CompiledRegion", 200, 900, **MM)
    trace.launch("nvjet_a", (20, 30), (2000, 3000))
    for i in range(5):
        trace.launch(f"triton_poi_{i}", (210 + 20 * i, 220 + 20 * i), (4000 + 1000 * i, 4500 + 1000 * i))
    trace.gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10_000, 20_000)
    work = kernel_work(timeline_of(trace))
    assert not work.model.any()
    assert np.isnan(work.flops).all()
    assert np.isnan(work.bytes).all()


def test_work_is_guessed_where_the_tensors_may_be_another_kernels():
    """An autograd function's tensors may be; those of a compiled kernel, a torch op and a library's op are not."""
    tensors = recorded_args([[1000], [1000]], ["float"] * 2)
    launch: dict[str, Any] = {"grid": [4, 1, 1], "block": [128, 1, 1]}
    names = ("Swiglu", "SwigluBackward", "_swiglu_kernel_3", "aten::silu", "library::silu.out")
    trace = TraceBuilder()
    for i, name in enumerate(names):
        at = 1000 * i
        trace.op(name, at, at + 900, **tensors)
        kernel = "_swiglu_kernel" if i == 2 else f"k{i}"
        trace.launch(kernel, (at + 10, at + 20), (10_000 + at, 10_900 + at), **launch)
    trace.gpu("k0", 20_000, 20_900, **launch)  # replayed: its work is the same as the first's, and as sure
    trace.gpu("k3", 21_000, 21_900, **launch)
    work = kernel_work(timeline_of(trace))
    assert work.model.all()
    assert work.guessed.tolist() == [True, True, False, False, False, True, False]


def test_a_compiled_kernel_moves_each_of_its_tensors_once():
    tensors = recorded_args([[1000], [1000], [1000], []], ["float", "c10::BFloat16", "float", "Scalar"])
    trace = TraceBuilder().op("triton_poi_fused_add_3", 0, 100, **tensors)
    trace.launch("triton_poi_fused_add_3", (20, 30), (2000, 3000))
    assert kernel_work(timeline_of(trace)).traffic_bytes.tolist() == [1000 * (4 + 2 + 4)]


def test_a_compiled_kernel_is_no_product_for_preparing_one():
    """And a kernel with the arguments of a matmul is nothing else."""
    for name, flops in [
        ("triton_poi_fused__scaled_dot_product_flash_attention_2", 0.0),
        ("triton_tem_fused_mm_1", 2 * 8**3),
    ]:
        trace = TraceBuilder().op(name, 0, 100, **recorded_args([[8, 8]] * 3, ["c10::BFloat16"] * 3))
        trace.launch(name, (20, 30), (2000, 3000))
        work = kernel_work(timeline_of(trace))
        assert (work.flops.tolist(), work.traffic_bytes.tolist()) == ([flops], [3 * 8 * 8 * 2])


def test_copies_and_sets_move_their_bytes():
    trace = TraceBuilder()
    for name in ("HtoD (Pinned -> Device)", "DtoH (Device -> Pinned)", "DtoD (Device -> Device)"):
        trace.launch(f"Memcpy {name}", (0, 10), (100, 200), cat="gpu_memcpy", bytes=1000)
    trace.launch("Memset (Device)", (20, 30), (300, 400), cat="gpu_memset", bytes=1000)
    work = kernel_work(timeline_of(trace))
    assert work.traffic_bytes.tolist() == [1000, 1000, 2000, 1000]
    assert work.over_link.tolist() == [True, True, False, False]


def test_what_limits_a_kernel():
    """A matmul at its ceiling, an elementwise kernel at half of the memory's, a kernel that does nothing, an unknown
    one."""
    flops = np.array([796e12 * 1e-3, 0, 0, np.nan])
    moved = np.array([1e6, 4.276e12 * 1e-3, 100, np.nan])
    work = KernelWork(
        flops, moved, moved, np.zeros(4), np.array([CODE["bf16"], UNKNOWN, UNKNOWN, UNKNOWN], np.uint8),
        np.zeros(4, bool), ~np.isnan(moved), np.zeros(4, bool),
    )  # fmt: skip
    found = split(np.array([1_000_200, 2_000_000, 3_000, 7_000]), work, CEILINGS)
    names = [PARTS[code] if code != NO_BOUND else None for code in found.bound.tolist()]
    assert names == ["compute", "memory", "latency", None]
    assert found.compute_ns[0] == pytest.approx(1_000_000, rel=1e-3)
    assert found.memory_ns[1] == pytest.approx(1_000_000, rel=1e-3)
    assert found.latency_ns.tolist()[1:3] == [1_000, 3_000]
    assert found.inefficient_ns[1] == pytest.approx(999_000, rel=1e-3)
    assert found.efficiency[:2] == pytest.approx([1, 0.5], rel=1e-3)


def test_model_flops_leave_out_what_is_computed_again():
    """A checkpointed matmul: forward, recomputed in the backward, and two for its gradients."""
    trace = TraceBuilder().step(0, 0, 100_000)
    numbered = sequence(1)
    trace.op("aten::mm", 10, 100, **MM, **numbered).launch("nvjet_a", (20, 30), (1000, 2000))
    node = "autograd::engine::evaluate_function: CheckpointBackward"
    trace.op(node, 5000, 9000, tid=200, **sequence(2, 1))
    trace.op("aten::mm", 5100, 5200, tid=200, **MM, **numbered).launch("nvjet_a", (5110, 5120), (6000, 7000), tid=200)
    for i in range(2):
        at = 6000 + 1000 * i
        trace.op("aten::mm", at, at + 100, tid=200, **MM, **sequence(1, 1))
        trace.launch("nvjet_a", (at + 10, at + 20), (at + 2000, at + 3000), tid=200)
    found = roofline(timeline_of(trace))
    assert found is not None
    assert found.hardware_flops == {"bf16": 4 * MM_FLOPS}
    assert found.model_flops == {"bf16": 3 * MM_FLOPS}
    assert found.hfu(100_000) == pytest.approx(4 * MM_FLOPS / (989.4e12 * 100e-6))
    assert found.mfu(100_000) == pytest.approx(3 * MM_FLOPS / (989.4e12 * 100e-6))


def test_no_roofline_for_an_unknown_gpu():
    trace = TraceBuilder(deviceProperties=[{"id": 0, "name": "Voodoo 3", "totalGlobalMem": 16 << 20}])
    trace.op("aten::mm", 0, 100, **MM).launch("gemm", (10, 20), (100, 200))
    timeline = timeline_of(trace)
    assert roofline(timeline) is None
    assert kernel_work(timeline).flops.tolist() == [MM_FLOPS]
    assert roofline(timeline, CEILINGS) is not None
    assert find("Voodoo 3") is None

"""FLOPs and bytes of kernels: against torch's own counts, shapes and schemas, and on hand-made recordings."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
from helpers.make_trace import TraceBuilder
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.costs.arguments import Arguments, Tensor, parse
from gpuprof.costs.attention import _OPS, attention
from gpuprof.costs.cache import kept_bytes, rereads
from gpuprof.costs.ceilings import ceilings
from gpuprof.costs.convolution import convolution
from gpuprof.costs.cost import Cost, Kernel, Machine
from gpuprof.costs.dtypes import CODE, UNKNOWN
from gpuprof.costs.elementwise import ARITY
from gpuprof.costs.gemm import gemm, tile, traffic
from gpuprof.costs.hardware import find
from gpuprof.costs.lists import CHUNK, chunk_fill, over_lists
from gpuprof.costs.named import by_name
from gpuprof.costs.roofline import roofline
from gpuprof.costs.split import NO_BOUND, PARTS, split
from gpuprof.costs.streaming import streaming
from gpuprof.costs.work import KernelWork, kernel_work
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.small import read_small

H200 = Machine(50e6, 132)
PLAIN = Kernel("some_kernel", (132, 1, 1), 256)
CEILINGS = ceilings("NVIDIA H200", measurements={})
assert CEILINGS is not None


def arguments(name: str, dims, types, strides=None, concrete=None) -> Arguments:
    return parse(name, *(None if x is None else json.dumps(x) for x in (dims, types, strides, concrete)))


def cost_of(name: str, dims, types=None, concrete=None, kernel: Kernel = PLAIN) -> Cost:
    """Of an op on bfloat16 tensors unless said otherwise."""
    types = types or ["c10::BFloat16" if d else "Scalar" for d in dims]
    given_ = arguments(name, dims, types, concrete=concrete)
    found = gemm(given_, kernel, H200) or streaming(given_, kernel, H200)
    assert found is not None
    return found


# Against torch.


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


TYPES = {"float32": "float", "bfloat16": "c10::BFloat16", "float16": "c10::Half", "int64": "long int", "bool": "bool"}


def recorded_as(torch, values) -> tuple[list, list, list, list]:
    """Arguments as the profiler writes them."""
    dims, types, strides, concrete = [], [], [], []
    for value in values:
        tensor = isinstance(value, torch.Tensor)
        dims.append(list(value.shape) if tensor else [])
        strides.append(list(value.stride()) if tensor else [])
        types.append(TYPES[str(value.dtype).removeprefix("torch.")] if tensor else "" if value is None else "Scalar")
        concrete.append("" if tensor or value is None else str(value))
    return dims, types, strides, concrete


def counted(torch, call) -> int:
    """FLOPs of a call as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(64, 128), (128, 96)]),
        ("mm", [(1, 4096), (4096, 7)]),
        ("bmm", [(6, 32, 64), (6, 64, 16)]),
        ("addmm", [(96,), (64, 128), (128, 96)]),
        ("addmm", [(64, 96), (64, 128), (128, 96)]),
        ("baddbmm", [(6, 32, 16), (6, 32, 64), (6, 64, 16)]),
    ],
)
def test_products_cost_what_torch_counts(torch, name, shapes):
    tensors = [torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
    found = gemm(arguments(f"aten::{name}", *recorded_as(torch, tensors)), PLAIN, H200)
    assert found is not None
    out = getattr(torch, name)(*tensors)
    assert found.flops == counted(torch, lambda: getattr(torch, name)(*tensors))
    assert found.write_bytes == out.numel() * 2
    assert found.read_bytes == sum(t.numel() * 2 for t in tensors)  # all of it fits in the L2
    assert found.dtype == CODE["bf16"]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_cost_what_torch_counts(torch, padding, groups, stride):
    x = torch.empty(2, 8, 17, 19, device="meta", requires_grad=True)
    weight = torch.empty(12, 8 // groups, 3, 5, device="meta", requires_grad=True)
    args = (x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    found = convolution(arguments("aten::convolution", *recorded_as(torch, args)), PLAIN)
    assert found is not None
    assert found.flops == counted(torch, lambda: torch.convolution(*args))
    out = torch.convolution(*args)
    back = (
        out.detach(),
        x,
        weight,
        None,
        [stride] * 2,
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        groups,
        [True, True, False],
    )
    found = convolution(arguments("aten::convolution_backward", *recorded_as(torch, back)), PLAIN)
    assert found is not None
    if groups == 1:  # torch's own count of the weights' gradient leaves the groups out of account
        assert found.flops == counted(torch, lambda: out.backward(torch.empty_like(out)))
    assert found.flops == 2 * counted(torch, lambda: torch.convolution(*args))


def test_attention_costs_what_torch_counts(torch):
    """Without a mask, with key heads shared or not, forward and backward."""
    sdpa = torch.ops.aten._scaled_dot_product_flash_attention
    for heads in (8, 2):
        q = torch.empty(2, 8, 40, 16, device="meta")
        k = v = torch.empty(2, heads, 24, 16, device="meta")
        forward = arguments("aten::_cudnn_attention_forward", *recorded_as(torch, (q, k, v)))
        found = attention(forward, PLAIN)
        assert found is not None
        everywhere = torch.empty(2, 8, 24, 16, device="meta")  # torch counts with as many key heads as query heads
        assert found.flops == counted(torch, partial(sdpa, q, everywhere, everywhere))
        back = attention(arguments("aten::_cudnn_attention_backward", *recorded_as(torch, (q, q, k, v, q))), PLAIN)
        assert back is not None
        assert back.flops == 2.5 * found.flops
        assert back.repeated_flops == back.flops / 5


def test_a_causal_mask_leaves_the_lower_half():
    dims, types = [[1, 1, 64, 8]] * 3, ["float"] * 3
    full = attention(arguments("aten::_scaled_dot_product_efficient_attention", dims, types), PLAIN)
    concrete = ["", "", "", "", "False", "0.", "True"]
    half = attention(arguments("aten::_scaled_dot_product_efficient_attention", dims, types, concrete=concrete), PLAIN)
    assert full is not None and half is not None
    seen = sum(i + 1 for i in range(64))
    assert half.flops / full.flops == seen / 64**2


def test_where_attention_ops_hold_their_arguments(torch):
    """Positions of the query, the causal flag and the lengths are those of torch's schemas."""
    checked = 0
    for name, layout in _OPS.items():
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, name.removeprefix("aten::")):
            continue
        schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
        names = [argument.name for argument in schema.arguments]
        assert names[layout.query : layout.query + 3] in (["query", "key", "value"],), name
        assert names[layout.causal] in ("is_causal", "custom_mask_type"), name
        if layout.lengths is not None:
            assert names[layout.lengths] in ("cum_seq_q", "cu_seqlens_q"), name
        checked += 1
    assert checked >= 10


def test_packed_sequences_count_by_their_mean_length():
    dims = [[100, 4, 16]] * 3 + [[6], [6]]
    packed = arguments("aten::_flash_attention_forward", dims, ["float"] * 3 + ["int"] * 2)
    found = attention(packed, PLAIN)
    assert found is not None
    assert found.flops == 5 * 4 * (2 * 20 * 20 * (16 + 16))


def calls(torch, name: str):
    """What torch gives for an op on small tensors that expand to one another: pairs of inputs and output."""
    op = getattr(torch.ops.aten, name, None)
    for overload in op.overloads() if op else ():
        needed = [a for a in getattr(op, overload)._schema.arguments if not a.has_default_value()]
        if any(a.is_out or str(a.type) not in ("Tensor", "number", "float") for a in needed):
            continue
        for dtype in (torch.float32, torch.bfloat16):
            shapes = iter([(4, 6), (6,), (4, 1), (1, 6)])
            values = [
                torch.zeros(next(shapes), dtype=dtype, device="meta") if str(a.type) == "Tensor" else 2.0
                for a in needed
            ]
            if name == "clamp" and len(values) == 1:
                values.append(2.0)
            if name in ("where", "masked_fill"):
                at = ("where", "masked_fill").index(name)
                values[at] = torch.zeros(values[at].shape, dtype=torch.bool, device="meta")
            try:
                out = getattr(op, overload)(*values)
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, IndexError):
                continue  # not for these
            if isinstance(out, torch.Tensor) and str(out.dtype).removeprefix("torch.") in TYPES:
                yield values, out


def test_elementwise_ops_read_and_write_what_torch_says(torch):
    """Bytes of the ops: inputs once, and an output of torch's own shape and type."""
    tried, wrong = set(), []
    losses = {name for name in ARITY if name.endswith(("_loss", "_with_logits"))}
    for name in sorted(ARITY.keys() - losses):  # a loss is folded by an op of its own, which torch's output shows
        for values, out in calls(torch, name):
            found = streaming(arguments(f"aten::{name}", *recorded_as(torch, values)), PLAIN, H200)
            assert found is not None
            read = sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
            if (found.read_bytes, found.write_bytes) != (read, out.numel() * out.element_size()):
                wrong.append((name, [getattr(v, "dtype", v) for v in values], out.dtype, found))
            tried.add(name)
    assert not wrong, "\n".join(map(str, wrong))
    assert len(tried) > 0.75 * len(ARITY)


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


@given(st.floats(1, 1e10), st.floats(1, 1e10), st.integers(1, 500), st.integers(1, 500), st.integers(1, 300))
def test_a_product_reads_its_factors_once_at_least(left, right, rows, columns, beside):
    read = traffic(left, right, rows, columns, beside, 50e6)
    assert read >= (left + right) * (1 - 1e-12)
    assert read <= left * columns + right * rows + left + right  # each tile on its own
    if left + right <= 50e6 or rows * columns <= beside:
        assert read == pytest.approx(left + right)


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_what_stays_in_the_cache_was_written_and_fits(read, write):
    assert 0 <= kept_bytes(read, write, 50e6) <= min(write, 25e6)
    assert rereads(write, read, 50e6) <= write


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


def test_kernels_that_tell_by_themselves():
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
    assert (left_out.read_bytes, left_out.whole) == (20 * CHUNK * 0.25 * 16, False)
    assert chunk_fill([CHUNK // 2, CHUNK // 4]) == 0.375
    assert chunk_fill([CHUNK + 1]) == pytest.approx(0.5, rel=1e-3)
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


def timeline_of(trace: TraceBuilder) -> Timeline:
    data = trace.text().encode()
    found = build_timeline(build(read_small(data), "t.json", len(data)))
    assert found is not None
    return found


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
    """Two halves of a product by their durations; what adds up partial sums has bytes of its own, and no FLOPs."""
    trace = TraceBuilder().op("aten::mm", 0, 1000, **MM)
    for i, (name, length) in enumerate([("nvjet_a", 3000), ("nvjet_a", 1000), ("splitKreduce_kernel", 500)]):
        trace.launch(name, (100 * i + 10, 100 * i + 20), (2000 + 4000 * i, 2000 + 4000 * i + length))
    work = kernel_work(timeline_of(trace))
    assert work.flops.tolist() == [MM_FLOPS * 0.75, MM_FLOPS * 0.25, 0.0]
    assert work.traffic_bytes[0] == 3 * work.traffic_bytes[1]
    assert work.dtype.tolist() == [CODE["bf16"], CODE["bf16"], UNKNOWN]
    assert work.model.all()


def test_an_op_without_arguments_takes_those_of_the_op_around_it():
    trace = TraceBuilder().op("aten::mm", 0, 1000, **MM).op("gemm_helper", 10, 900)
    trace.launch("nvjet_a", (20, 30), (2000, 3000))
    assert kernel_work(timeline_of(trace)).flops.tolist() == [MM_FLOPS]


def test_a_replayed_kernel_does_what_the_same_launch_did():
    launch = {"grid": [4, 4, 1], "block": [128, 1, 1]}
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
    """An autograd function's may be; those of a compiled kernel, a torch op and a library's op are not."""
    tensors, launch = recorded_args([[1000], [1000]], ["float"] * 2), {"grid": [4, 1, 1], "block": [128, 1, 1]}
    names = ("Swiglu", "SwigluBackward", "_swiglu_kernel_3", "aten::silu", "library::silu.out")
    trace = TraceBuilder()
    for i, name in enumerate(names):
        at = 1000 * i
        trace.op(name, at, at + 900, **tensors)
        kernel = "_swiglu_kernel" if i == 2 else f"k{i}"
        trace.launch(kernel, (at + 10, at + 20), (10_000 + at, 10_900 + at), **launch)
    trace.gpu("k0", 20_000, 20_900, **launch)  # replayed: its work is that of the first, and as sure
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
    """Nor is one whose arguments are those of a product anything else."""
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


work_columns = st.lists(
    st.tuples(
        st.integers(-5, 10**9),  # duration
        st.one_of(st.just(math.nan), st.floats(0, 1e15)),  # FLOPs
        st.one_of(st.just(math.nan), st.floats(0, 1e13)),  # bytes
        st.sampled_from([UNKNOWN, CODE["bf16"], CODE["fp64"], CODE["fp32"]]),
        st.booleans(),
    ),
    max_size=20,
)


@given(work_columns)
def test_the_split_sums_to_the_duration(rows):
    duration = np.array([row[0] for row in rows], np.int64)
    flops, moved = (np.array([row[i] for row in rows], float) for i in (1, 2))
    work = KernelWork(
        flops, moved, moved, np.zeros(len(rows)), np.array([row[3] for row in rows], np.uint8),
        np.array([row[4] for row in rows], bool), ~np.isnan(moved), np.zeros(len(rows), bool),
    )  # fmt: skip
    found = split(duration, work, CEILINGS)
    assert (sum(found.parts) == duration.clip(0)).all()
    assert all((part >= 0).all() for part in found.parts)
    known = found.bound != NO_BOUND
    assert (found.unmodelled_ns[~known] == duration.clip(0)[~known]).all()
    assert np.isnan(found.efficiency[~known]).all()
    efficiency = found.efficiency[known & (duration > 0)]
    assert ((efficiency >= 0) & (efficiency <= 1)).all()


def test_what_limits_a_kernel():
    """A product at its ceiling, an elementwise kernel at half of the memory's, a kernel of nothing, one not known."""
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
    """A checkpointed product: forward, recomputed in the backward, and two for its gradients."""
    trace = TraceBuilder().step(0, 0, 100_000)
    numbered = {"Sequence number": 1, "Fwd thread id": 0}
    trace.op("aten::mm", 10, 100, **MM, **numbered).launch("nvjet_a", (20, 30), (1000, 2000))
    node = "autograd::engine::evaluate_function: CheckpointBackward"
    trace.op(node, 5000, 9000, tid=200, **{"Sequence number": 2, "Fwd thread id": 1})
    trace.op("aten::mm", 5100, 5200, tid=200, **MM, **numbered).launch("nvjet_a", (5110, 5120), (6000, 7000), tid=200)
    for i in range(2):
        at = 6000 + 1000 * i
        trace.op("aten::mm", at, at + 100, tid=200, **MM, **{"Sequence number": 1, "Fwd thread id": 1})
        trace.launch("nvjet_a", (at + 10, at + 20), (at + 2000, at + 3000), tid=200)
    found = roofline(timeline_of(trace))
    assert found is not None
    assert found.hardware_flops == {"bf16": 4 * MM_FLOPS}
    assert found.model_flops == {"bf16": 3 * MM_FLOPS}
    assert found.hfu(100_000) == pytest.approx(4 * MM_FLOPS / (989.4e12 * 100e-6))
    assert found.mfu(100_000) == pytest.approx(3 * MM_FLOPS / (989.4e12 * 100e-6))


def test_no_roofline_for_a_gpu_that_nobody_knows():
    trace = TraceBuilder(deviceProperties=[{"id": 0, "name": "Voodoo 3", "totalGlobalMem": 16 << 20}])
    trace.op("aten::mm", 0, 100, **MM).launch("gemm", (10, 20), (100, 200))
    timeline = timeline_of(trace)
    assert roofline(timeline) is None
    assert kernel_work(timeline).flops.tolist() == [MM_FLOPS]
    assert roofline(timeline, CEILINGS) is not None
    assert find("Voodoo 3") is None

"""Steps, phases, links and categories, on hand-made traces where the truth is obvious."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder, external, forward_thread, graph_node, sequence
from helpers.timeline import timeline_of

from gpuprof.errors import GpuprofError
from gpuprof.timeline.categories import CATEGORIES, categorize
from gpuprof.timeline.frames import frame_of_stack
from gpuprof.timeline.phases import PHASES


def training(steps: int, micro: int = 1, ranges: bool = True, period: int = 1000) -> TraceBuilder:
    """Steps of `micro` forward/backward passes and one optimizer step; ProfilerStep counts passes."""
    trace = TraceBuilder()
    for i in range(steps * micro):
        at = i * period
        if ranges:
            trace.step(i, at, at + period - 10)
        trace.op("aten::mm", at + 10, at + 100, **sequence(i))
        trace.launch("fwd_gemm", (at + 20, at + 30), (at + 40, at + 140))
        engine = "autograd::engine::evaluate_function: MmBackward0"
        trace.op(engine, at + 200, at + 500, AUTOGRAD, **sequence(i, 1))
        trace.launch("bwd_gemm", (at + 220, at + 230), (at + 240, at + 480), tid=AUTOGRAD)
        if i % micro == micro - 1:
            trace.op("aten::_foreach_norm", at + 550, at + 580)
            trace.launch("norm", (at + 560, at + 570), (at + 570, at + 590))
            trace.annotation("Optimizer.step#AdamW.step", at + 600, at + 800)
            trace.launch("adam", (at + 620, at + 630), (at + 640, at + 700))
            trace.op("aten::item", at + 850, at + 900)
            trace.launch("copy", (at + 860, at + 870), (at + 880, at + 890))
    return trace


def test_profiler_steps():
    steps = timeline_of(training(3)).steps
    assert (steps.source, steps.start_ns.tolist(), steps.end_ns.tolist()) == (
        "profiler_step",
        [0, 1000, 2000],
        [990, 1990, 2990],
    )


def test_micro_steps_of_an_accumulation_are_one_step():
    steps = timeline_of(training(3, micro=4)).steps
    assert (steps.merged, steps.start_ns.tolist()) == (4, [0, 4000, 8000])


def test_skip_and_named_steps():
    assert timeline_of(training(3), skip=2).steps.start_ns.tolist() == [2000]
    named = timeline_of(training(3).annotation("my step", 0, 400).annotation("my step", 500, 2900), step="my st.p")
    assert named.steps.start_ns.tolist() == [0, 500]
    for options, word in (
        ({"skip": 9}, "--skip 9"),
        ({"step": "nothing"}, "matches no"),
        ({"step": "("}, "not a reg"),
    ):
        with pytest.raises(GpuprofError, match=word):
            timeline_of(training(3), **options)


def test_ranges_of_generated_code_are_not_suggested_as_steps():
    trace = training(3).annotation("## Call CompiledFxGraph f4rbvghz ##", 0, 400).annotation("my step", 500, 900)
    with pytest.raises(GpuprofError, match="my step") as raised:
        timeline_of(trace, step="-1")
    assert "CompiledFxGraph" not in str(raised.value)


def test_passes_in_a_closure_are_not_the_optimizers():
    """Lightning's optimizers run forward and backward in their own step."""
    trace = TraceBuilder()
    for i in range(2):
        at = 1000 * i
        trace.step(i, at, at + 990)
        trace.annotation("Optimizer.step#SGD.step", at + 10, at + 900)
        trace.op("aten::mm", at + 20, at + 100, **sequence(i))
        trace.launch("fwd_gemm", (at + 30, at + 40), (at + 50, at + 140))
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 150, at + 160)
        engine = "autograd::engine::evaluate_function: MmBackward0"
        trace.op(engine, at + 200, at + 500, AUTOGRAD, **sequence(i, 1))
        trace.launch("bwd_gemm", (at + 220, at + 230), (at + 240, at + 480), tid=AUTOGRAD)
        trace.op("aten::_foreach_add_", at + 600, at + 700)
        trace.launch("sgd", (at + 620, at + 630), (at + 640, at + 700))
        trace.launch("bare", (at + 820, at + 830), (at + 840, at + 850))
        trace.op("aten::item", at + 950, at + 960)
        trace.launch("logged", (at + 952, at + 954), (at + 956, at + 958))
    timeline = timeline_of(trace)
    names = [trace.strings[i] for trace in [timeline.trace] for i in trace.gpu.name]
    phases = {name: PHASES[phase] for name, phase in zip(names, timeline.phase, strict=True)}
    assert phases == {
        "fwd_gemm": "forward", "bwd_gemm": "backward", "sgd": "optimizer", "bare": "optimizer", "logged": "other",
    }  # fmt: skip
    moments = timeline.host.at(np.full(4, timeline.main_thread, np.int32), np.array([15, 120, 560, 930]))
    assert [PHASES[phase] for phase in moments] == ["forward", "forward", "optimizer", "other"]


def test_steps_from_optimizer_ranges_and_user_ranges():
    bare = timeline_of(training(4, ranges=False)).steps
    assert (bare.source, bare.start_ns.tolist()) == ("optimizer", [800, 1800, 2800])
    trace = training(4, ranges=False)
    for i in range(4):
        trace.annotation(f"train_step_{i}", i * 1000, i * 1000 + 990)
    assert timeline_of(trace).steps.source == "user_range"


def test_steps_from_the_period_of_the_kernels():
    trace = TraceBuilder()
    for i in range(6):
        at = i * 100_000
        for k in range(20):
            trace.op("aten::mm", at + k * 1000, at + k * 1000 + 500, **sequence(k))
            trace.launch(
                f"layer_{k % 4}",
                (at + k * 1000, at + k * 1000 + 10),
                (at + k * 1000 + 20, at + k * 1000 + 900),
            )
        engine = "autograd::engine::evaluate_function: MmBackward0"
        trace.op(engine, at + 30_000, at + 40_000, AUTOGRAD, **forward_thread(1))
        trace.launch("loss_backward", (at + 31_000, at + 31_010), (at + 32_000, at + 39_000), tid=AUTOGRAD)
    steps = timeline_of(trace).steps
    assert steps.source == "periodicity"
    assert set((steps.end_ns - steps.start_ns).tolist()) == {100_000}


def test_a_cut_last_step_is_left_out():
    trace = training(3)
    trace.step(3, 3000, 3100)
    trace.launch("fwd_gemm", (3010, 3020), (3030, 3090))
    steps = timeline_of(trace).steps
    assert (len(steps.start_ns), steps.cut) == (3, 1)


def test_phases_of_a_step():
    timeline = timeline_of(training(2))
    names = [timeline.trace.strings[i] for i in timeline.trace.gpu.name]
    phases = [PHASES[code] for code in timeline.phase]
    assert dict(zip(names, phases, strict=True)) == {
        "fwd_gemm": "forward",
        "bwd_gemm": "backward",
        "norm": "optimizer",
        "adam": "optimizer",
        "copy": "other",
    }


def test_forward_between_two_micro_steps_is_forward():
    timeline = timeline_of(training(2, micro=3))
    names = np.array([timeline.trace.strings[i] for i in timeline.trace.gpu.name])
    assert {PHASES[code] for code in timeline.phase[names == "fwd_gemm"]} == {"forward"}


def test_recompute_is_distinguished_from_backward():
    trace = TraceBuilder().step(1, 0, 1000)
    engine = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    backward = sequence(5, 1)
    trace.op(engine, 100, 900, AUTOGRAD, **backward)
    trace.op("aten::linear", 200, 300, AUTOGRAD, **sequence(9))
    trace.launch("again", (210, 220), (230, 290), tid=AUTOGRAD)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 400, 500, AUTOGRAD, **backward)
    trace.launch("grad", (410, 420), (430, 490), tid=AUTOGRAD)
    timeline = timeline_of(trace)
    assert [PHASES[code] for code in timeline.phase] == ["recompute", "backward"]


def test_links_by_flow_and_external_id():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.op("aten::mm", 0, 100, **external(41))
    trace.op("cudaLaunchKernel", 20, 30, cat="cuda_runtime")
    trace.gpu("by_flow", 200, 300, correlation=0)
    trace.flow("ac2g", 1, (1, MAIN, 20), (0, 7, 200))
    trace.gpu("by_external", 400, 500, correlation=77, **external(41))
    timeline = timeline_of(trace)
    assert timeline.links.op.tolist() == [1, 1]
    assert timeline.links.begun_ns.tolist()[0] == 20


def test_an_external_id_that_repeats_the_correlation_names_no_op():
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 100, **external(77))
    trace.gpu("k", 400, 500, correlation=77, **external(77))
    assert timeline_of(trace).links.op.tolist() == [-1]


def test_a_graph_launch_owns_all_its_kernels():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.call("cudaGraphLaunch", 0, 10, correlation=5)
    for i in range(4):
        trace.gpu("k", 100 + i * 50, 140 + i * 50, correlation=5, **graph_node(i + 1))
    timeline = timeline_of(trace)
    assert timeline.links.call.tolist() == [0, 0, 0, 0]
    assert timeline.trace.gpu.graph_node.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("op", "kernel", "category"),
    [
        ("aten::mm", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "gemm"),
        ("aten::mm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>", "gemm"),
        (None, "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16", "gemm"),
        ("aten::_grouped_mm", "cutlass::device_kernel<GemmUniversal<GroupProblemShape>>", "grouped_gemm"),
        (
            "aten::_cudnn_attention_forward",
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
            "attention",
        ),
        (None, "void pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("aten::_softmax", "void (anonymous namespace)::cunn_SoftMaxForward<8>", "softmax"),
        ("aten::copy_", "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>", "cast/copy"),
        ("aten::mul", "void at::native::vectorized_elementwise_kernel<4, MulFunctor>", "elementwise"),
        ("aten::sum", "void at::native::reduce_kernel<512, 1>", "reduction"),
        ("aten::index", "void at::native::index_elementwise_kernel", "gather/scatter/index"),
        (
            "aten::_fused_adamw_",
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
            "optimizer",
        ),
        ("unsloth::x", "_nf4_dequant_kernel", "dequantize"),
        (None, "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "dequantize"),
        ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        (None, "void deep_ep::intranode::dispatch<8>", "communication"),
        (None, "triton_poi_fused_add_mul_0", "triton_fused"),
        ("aten::nll_loss_forward", "void at::native::nll_loss_forward_reduce_cuda_kernel_2d", "loss"),
        ("aten::native_layer_norm", "vectorized_layer_norm_kernel", "norm"),
        ("_rope_embedding", "_rope_embedding_QK", "rope"),
        (None, "my_kernel", "other"),
        # An unknown kernel is not named after an op that is unknown too.
        ("aten::_assert_async", "void at::native::_assert_async_cuda_kernel<bool>", "other"),
        # Inductor names kernels after the ops fused in them, and after ops that they only prepare.
        ("triton_poi_fused_view_1", "triton_poi_fused__scaled_dot_product_flash_attention_cat_view_10", "triton_fused"),
        ("triton_red_fused_1", "triton_red_fused_add_addmm_clone_convolution_native_layer_norm_1", "triton_fused"),
        ("triton_tem_fused_mm_1", "triton_tem_fused_mm_1", "gemm"),
        ("triton_tem_fused_2", "triton_tem_fused_flex_attention_2", "attention"),
        # A library's name says nothing about its kernel.
        (
            "fbgemm::bounds_check_indices",
            "void bounds_check_indices_kernel<long>(fbgemm::A)",
            "gather/scatter/index",
        ),
        (None, "void fbgemm_gpu::permute_2D_data_kernel<true>", "gather/scatter/index"),
        ("fbgemm::FloatToFP8RowwiseQuantized", "void fbgemm_gpu::_get_FP8_qparam_cuda_kernel<float>", "cast/copy"),
        # Next to convolutions.
        ("aten::miopen_convolution", "batched_transpose_32x32_half", "cast/copy"),
        ("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float, float>", "cast/copy"),
        ("aten::convolution_backward", "SubTensorOpWithScalar1d", "elementwise"),
        ("aten::convolution_backward", "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x16", "gemm"),
        ("aten::max_pool2d_with_indices", "void at::native::max_pool_forward_nchw<float>", "reduction"),
        (None, "_ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_24GridwiseGemm", "gemm"),
        # Of inference engines: TensorRT-LLM, vLLM, SGLang, FlashInfer, AITER, CK, hipBLASLt, Triton kernels.
        ("vllm::moe_forward", "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256_swiGlu_dynBatch_sm100f", "grouped_gemm"),
        (None, "bmm_Bfloat16_E4m3_Fp32_t128x8x512_TN", "gemm"),
        (None, "fused_moe_kernel", "grouped_gemm"),
        (None, "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "grouped_gemm"),
        (None, "_ZN5aiter42fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", "grouped_gemm"),
        (None, "void marlin::Marlin<half, 256, 1, 8, 8>", "gemm"),
        (None, "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "gemm"),
        ("vllm::moe_forward", "void moe::dev::routing::routingIndicesHistogramKernel<P>", "gather/scatter/index"),
        ("vllm::moe_forward", "void moe::dev::finalize::finalizeKernelVecLoad<P>", "gather/scatter/index"),
        (
            None,
            "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4>>",
            "gather/scatter/index",
        ),
        (None, "void moe::dev::activation::activationKernel<KernelParams<cutlass::float_e4m3_t>>", "elementwise"),
        (None, "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_tn_align8>", "gemm"),
        (None, "void vllm::moe::moe_align_block_size_kernel<int>", "gather/scatter/index"),
        ("sgl_kernel::silu_and_mul", "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16", "elementwise"),
        ("_C_cache_ops::x", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "gather/scatter/index"),
        ("sglang::store_cache", "void store_kvcache<2048l, 4, false, long>", "gather/scatter/index"),
        ("_C::static_scaled_fp8_quant", "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16>", "cast/copy"),
        ("aiter::rmsnorm", "_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", "norm"),
        (
            "_C::fused_add_rms_norm",
            "std::enable_if<(((8)>(0))), void>::type vllm::fused_add_rms_norm_kernel<B, 8>",
            "norm",
        ),
        (None, "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "norm"),
        (None, "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernel", "attention"),
        ("Torch-Compiled Region: 0/0", "sage_fwd", "attention"),
        (None, "void flashinfer::BatchDecodeWithPagedKVCacheKernel<1>", "attention"),
        (None, "kernel_unified_attention_2d", "attention"),
        (None, "void at::native::detail::chunk_cat_cuda_kernel<char, char>(char**)", "cast/copy"),
        (None, "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)", "cast/copy"),
        (None, "void at::native::(anonymous namespace)::krn_partials_per_segment<long>(long*)", "embedding"),
        (None, "void at_cuda_detail::cub::DeviceCompactInitKernel<int*>(int*)", "gather/scatter/index"),
    ],
)
def test_categories(op, kernel, category):
    assert categorize(op, kernel) == category
    assert category in CATEGORIES


@pytest.mark.parametrize(
    ("stack", "named"),
    [
        ("train.py(7): step", "train.py(7): step"),
        (
            "/env/site-packages/torch/nn/f.py(3): norm;model.py(9): forward;train.py(7): <module>",
            "model.py(9): forward",
        ),
        ("torch/optim/adam.py(3): step;torch/optim/optimizer.py(9): wrap", "torch/optim/adam.py(3): step"),
    ],
)
def test_of_a_whole_stack_of_2021_the_innermost_line_of_the_users_code_is_named(stack: str, named: str):
    assert frame_of_stack(stack) == named

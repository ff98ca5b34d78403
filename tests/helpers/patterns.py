"""Small traces with patterns that occur in files of other tools, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.make_trace import AUTOGRAD, TraceBuilder

MS = 1_000_000
SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def graph_capture() -> TraceBuilder:
    """Warm-up, and then the capture of a CUDA graph, which takes most of the recording."""
    builder = TraceBuilder()
    for i in range(20):
        t = i * 50_000
        builder.op("aten::mm", t, t + 40_000, **SHAPES).launch("gemm", (t + 1_000, t + 5_000), (t + 6_000, t + 36_000))
    builder.call("hipStreamBeginCapture", MS, MS + 1_000)
    for i in range(200):
        t = MS + 10_000 + i * 20_000
        builder.op("aten::mm", t, t + 15_000, **SHAPES)
        builder.call("hipModuleLaunchKernel", t + 1_000, t + 3_000, correlation=10_000 + i)
    return builder.call("hipStreamEndCapture", 6 * MS, 6 * MS + 5_000)


def unequal_steps() -> TraceBuilder:
    """Steps of 10, 10 and 16 ms whose kernels were launched by calls that were not recorded."""
    builder, at = TraceBuilder(), 0
    for number, length in enumerate((10 * MS, 10 * MS, 16 * MS)):
        builder.step(number, at, at + length).op("aten::mm", at, at + length, **SHAPES)
        for k in range(20):
            start = at + k * length // 20
            builder.gpu("gemm", start, start + length // 25, correlation=1_000 + 100 * number + k)
        at += length
    return builder


def ahead() -> TraceBuilder:
    """A CPU whose steps of 10 ms launch 12.5 ms of GPU work each."""
    builder, done = TraceBuilder(), 0
    for number in range(4):
        at = number * 10 * MS
        builder.step(number, at, at + 10 * MS).op("aten::mm", at, at + 10 * MS, **SHAPES)
        for k in range(20):
            call = at + k * 500_000
            done = max(done, call + 20_000) + 1_000
            builder.launch("gemm", (call, call + 10_000), (done, done + 624_000))
            done += 624_000
    return builder


def small_batch() -> TraceBuilder:
    """Two CPU-bound training steps: kernels of 2 µs, launched every 50 µs, forward and backward."""
    builder = TraceBuilder()
    for number in range(2):
        at = number * 10 * MS
        builder.step(number, at, at + 10 * MS)
        for k in range(100):
            call, tid = at + k * 90_000, AUTOGRAD if k >= 50 else 100
            more: dict[str, Any] = {"Sequence number": k % 50 + 50 * number, "Fwd thread id": 1 if k >= 50 else 0}
            builder.op("aten::mm", call, call + 45_000, tid, **SHAPES, **more)
            builder.launch("gemm", (call + 5_000, call + 15_000), (call + 20_000, call + 22_000), tid=tid)
    return builder


def of_weights(side: int, kernels: int) -> TraceBuilder:
    """Two CPU-bound steps of a model whose three weights have sides that are multiples of this one."""
    builder = TraceBuilder()
    for number in range(2):
        at = number * 10 * MS
        builder.step(number, at, at + 10 * MS)
        for k in range(kernels):
            call, width = at + k * 90_000, side * (k % 3 + 1)
            sizes: dict[str, Any] = {"Input Dims": [[32, side], [side, width]]}
            builder.op("aten::mm", call, call + 45_000, **sizes)
            builder.launch("gemm", (call + 5_000, call + 15_000), (call + 20_000, call + 22_000))
    return builder


def far_kernel() -> TraceBuilder:
    """A kernel that a step launched and that is said to have run a century later."""
    return small_batch().launch("gemm", (5_000, 6_000), (4 * 10**18, 4 * 10**18 + 5_000), stream=9)


def beyond_peak() -> TraceBuilder:
    """Shapes that come to more FLOPs than the device can do."""
    builder = small_batch()
    for event in builder.events:
        if "Input Dims" in event.get("args", {}):
            event["args"] |= {"Input Dims": [[65536, 65536], [65536, 65536]]}
    return builder


def one_kernel() -> TraceBuilder:
    """A step with nothing in it but a kernel of 20 ns."""
    builder = TraceBuilder().step(0, 0, MS).op("aten::add", 0, MS, **SHAPES)
    return builder.launch("add", (1_000, 2_000), (3_000, 3_020))


def silent_end() -> TraceBuilder:
    """A step that continues for 13 s after the last event in it."""
    builder = small_batch()
    builder.events = [e for e in builder.events if not e["name"].startswith("ProfilerStep")]
    return builder.step(0, 0, 13_000 * MS)


def inference_engine() -> TraceBuilder:
    """Decoding by an engine whose kernels have names of their own, on a GPU that the file gives no name."""
    gpu = {"id": 0, "name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "numSms": 304}
    builder = TraceBuilder(deviceProperties=[gpu])
    names = (
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "void store_kvcache<2048l, 4, false, long>", "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256_dynBatch_sm100f", "kernel_unified_attention_3d",
    )  # fmt: skip
    for number in range(3):
        at = number * MS
        builder.step(number, at, at + MS)
        for k in range(40):
            t = at + k * 24_000
            builder.op("sgl_kernel::step", t, t + 20_000)
            builder.launch(names[k % len(names)], (t + 1_000, t + 5_000), (t + 6_000, t + 26_000))
    return builder


def silent_decode() -> TraceBuilder:
    """One iteration of a decoding engine, which launches its pass as a graph in 2.4 ms and waits, unrecorded, to 17."""
    builder = TraceBuilder().annotation("execute_context_0(0)_generation_8(8)", 0, 2_400_000)
    for k in range(40):
        t = 200_000 + k * 40_000
        builder.op("aten::copy_", t, t + 30_000, **{"Input Dims": [[8], [8]], "Input type": ["long", "long"]})
        builder.launch("elementwise_copy", (t + 5_000, t + 12_000), (t + 15_000, t + 17_000))
    builder.call("cudaGraphLaunch", 2 * MS, 2_300_000, correlation=777)
    names = ("nvjet_hsh_128x64", "void vllm::rms_norm_kernel<c10::BFloat16>", "flash_fwd_splitkv_kernel<bfloat16>")
    for k in range(200):
        t = 2_350_000 + k * 72_000
        node: dict[str, Any] = {"graph id": 7, "graph node id": k}
        builder.gpu(names[k % len(names)], t, t + 71_500, correlation=777, **node)
    return builder


def early_end(silent_ms: int = 25) -> TraceBuilder:
    """CPU-bound training steps of 5 ms, the last of which continues without further events."""
    builder = TraceBuilder()
    for number in range(3):
        at = number * 5 * MS
        builder.step(number, at, at + (5 * MS if number < 2 else (5 + silent_ms) * MS))
        for k in range(50):
            call = at + k * 90_000
            builder.op("aten::mm", call, call + 45_000, **SHAPES)
            builder.launch("gemm", (call + 5_000, call + 15_000), (call + 20_000, call + 22_000))
    return builder


PATTERNS: tuple[Callable[[], TraceBuilder], ...] = (
    graph_capture, unequal_steps, ahead, small_batch, far_kernel, beyond_peak, one_kernel, silent_end, inference_engine,
    silent_decode, early_end,
)  # fmt: skip

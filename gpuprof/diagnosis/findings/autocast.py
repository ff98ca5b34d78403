"""Matrix multiplications and attention in fp32 or TF32 that autocast would run on faster tensor cores, in bf16 (fp16 on
GPUs without bf16)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.costs.dtypes import type_in_kernel_name
from gpuprof.costs.matmul_rates import half_precision_ns
from gpuprof.diagnosis.detect.attention.attention_planning import bf16_would_plan
from gpuprof.diagnosis.detect.attention.cast_up import (
    CAST_BYTES_AN_ELEMENT,
    find_cast_up,
    half_attention_ns,
    single_precision,
)
from gpuprof.diagnosis.detect.attention.kernels_off import computed_wide
from gpuprof.diagnosis.detect.compiled.compiled_passes import shapes_vary
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.matmul_types import operand_bytes, typed_fp32, why_unknown
from gpuprof.diagnosis.detect.passes import host_ns_per_launch
from gpuprof.diagnosis.result.fix import Code, Fix, assigned, call, code, joined, option
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import model_phases
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.costs.roofline import Roofline
    from gpuprof.diagnosis.analysis import Analysis, Change

BETWEEN = ("elementwise", "cast/copy", "dropout")
"""Categories of kernels between matrix multiplications that take their inputs' format."""
BYTES_WITH_RESULT: Assumed[Ratio] = 1.5
"""Bytes of two operands and a result over those of the operands, if it is as large as one of them."""
LEAST_MATMUL_SHARE: Assumed[Share] = 0.05
"""Smallest share of GPU time of such matrix multiplications for a proposal."""
SCALED = joined(
    (
        "",
        assigned("scaler", call("torch.amp.GradScaler", "cuda")),
        code("scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"),
    )
)
NO_PLANNING = joined(
    (
        "",
        call("torch.backends.cuda.enable_cudnn_sdp", False),
        "# bf16 moves attention to cuDNN, which plans for every new length",
    )
)

PAGE = Page(
    id="autocast",
    title="Matrix multiplications run in fp32 or TF32",
    means="""
Under `torch.autocast` with bf16, matrix multiplications, convolutions and attention run in bf16, on tensor cores that
are twice as fast as in TF32 and many times as fast as in fp32, and read half the bytes. Weights and the optimizer stay
in fp32. Every input and weight is cast first, which costs kernels and launches of their own.
""",
    detected=f"""
Matrix multiplications and fused attention whose operands are fp32 and that take at least {percent(LEAST_MATMUL_SHARE)}
% of the GPU's time. On a GPU without TF32 (V100, T4) the recorded types of the operands are enough; elsewhere the FLOPs
must be known, too.
""",
    gain=f"""
Each of them takes {calibrated.MATMUL_SCATTER.value:g} × ({us(calibrated.MATMUL_ADDED_NS.value)} µs + √(a² + b²)): a is
the time of its FLOPs at {percent(calibrated.MATMUL_TENSOR.value)} % of the bf16 ceiling (the rate that large ones
sustain), b that of half its bytes at {percent(calibrated.MATMUL_MEMORY.value)} % of the memory ceiling. The factor is
{calibrated.MATMUL_SCATTER.low:g} to {calibrated.MATMUL_SCATTER.high:g}, or {calibrated.MATMUL_SMALL_SCATTER.low:g} to
{calibrated.MATMUL_SMALL_SCATTER.high:g} for those that take little more than {us(calibrated.MATMUL_ADDED_NS.value)} µs.
This fits 2,877 shapes of 52 recordings. Each gets {calibrated.AUTOCAST_CASTS.low:g} to
{calibrated.AUTOCAST_CASTS.high:g} casts, kernels and launches, which read {calibrated.AUTOCAST_CAST_OPERANDS.low:g} to
{calibrated.AUTOCAST_CAST_OPERANDS.high:g} of its operands. Fused attention in fp32 becomes FlashAttention, at the
shares of the finding `eager_attention`. {percent(calibrated.AUTOCAST_HALVED.value)} % of the memory-bound time of fp32
elementwise ops and copies (none to all of it) takes half as long. The shares of casts and of what is halved are
assumed. Programs limited by the CPU or by small kernels gain nothing. A GPU without bf16 tensor cores (V100, T4) is
advised fp16, with the same shares.
""",
    wrong="""
bf16 keeps 7 bits of mantissa: compare the loss of a short run. fp16 has a small range, so gradients are scaled, and
steps whose gradients overflow are skipped. On Hopper and Blackwell torch chooses cuDNN's attention in bf16, which
plans at every new length: a BERT whose lengths vary took 160 to 190 ms a step instead of 31 to 37 in its first 32
steps. Where lengths vary, the fix therefore turns that off (`enable_cudnn_sdp(False)`).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes bf16 autocast, or fp16 if the GPU has no bf16, for matmuls in fp32 or TF32."""
    roof = case.roofline
    half = _half(roof)
    if roof is None or half is None:
        return
    graph = case.graph
    nodes = _matmuls(case, roof)
    attention = _attention(case, roof)
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes | attention, graph.on_gpu))
    if took < LEAST_MATMUL_SHARE * whole or not took:
        return
    text = (
        f"{case.per_step(nodes.sum()):,.0f} matrix multiplications {case.unit.a} of fp32 operands: "
        f"{duration(case.per_step(took))}, {100 * took / whole:,.0f} % of the GPU's time"
        + (", with attention in fp32" if attention.any() else "")
    )
    launch_ns = host_ns_per_launch(case, nodes, model_phases(graph))
    would_plan = half == "bf16" and bf16_would_plan(case) and shapes_vary(case)
    yield Proposal(
        title="bf16 autocast without cuDNN attention" if would_plan else _TITLES[half],
        evidence=spans(case, text, nodes | attention),
        fix=_fix(case, half) + (NO_PLANNING if would_plan else ""),
        change=_cast(case, roof, nodes, launch_ns, half, 1),
        best=_cast(case, roof, nodes, launch_ns, half, 0),
        worst=_cast(case, roof, nodes, launch_ns, half, 2),
        changes=_CHANGES[half],
        claims=("matmul_types", "fp32_matmuls"),
    )


_TITLES = {"bf16": "bf16 autocast", "fp16": "fp16 autocast"}
_CHANGES = {
    "bf16": "matrix multiplications round to bf16 (8 bits of mantissa)",
    "fp16": "matrix multiplications round to fp16, and gradients are scaled",
}


_SERVED = {"vllm": "vllm serve", "sglang": "sglang", "tgi": "text-generation-launcher"}
"""Serving engine → its command, which has an option for the dtype."""


def _half(roof: Roofline | None) -> str | None:
    """The 16-bit format that the GPU's tensor cores multiply in; None without one."""
    return None if roof is None else next((name for name in ("bf16", "fp16") if name in roof.ceilings.flops), None)


def _fix(case: Analysis, half: str) -> Fix:
    stack, dtype = case.stack, {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[half]
    own = code("with ") + call("torch.autocast", "cuda", dtype=Code(dtype)) + code(":")
    own += "  # around the forward pass and the loss"
    name = dtype.removeprefix("torch.")
    served = _SERVED.get(case.workload.engine or "")
    loaded = call("from_pretrained", ..., dtype=Code(dtype)).otherwise()
    fix = stack.fix(
        own + (SCALED if half == "fp16" else ""),
        stack.setting({half: True}),
        inference=option(f"{served} ... --dtype {name}", "--dtype", name, served)
        if served
        else call("model.to", Code(dtype)) + "  # or " + loaded,
        lightning=call("Trainer", precision=f"{'bf16' if half == 'bf16' else '16'}-mixed"),
    )
    return fix.by("autocast") if half == "bf16" else fix  # the patch has no gradient scaler, which fp16 needs


def _absent(case: Analysis) -> str | None:
    roof = case.roofline
    if roof is None:
        return None
    if _half(roof) is None:
        return "this GPU has no tensor cores for a 16-bit format"
    nodes = _matmuls(case, roof)
    took = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    known = (
        f"fp32 matrix multiplications take {duration(took)} {case.unit.a}" if took else "nothing is multiplied in fp32"
    )
    return why_unknown(case, roof) or known


ABSENT = Absent("16-bit autocast", _absent)


def _matmuls(case: Analysis, roof: Roofline) -> Mask:
    """Nodes of the model's matrix multiplications with fp32 operands, on tensor cores (TF32) or not, except those that
    torch's own attention casts up."""
    typed = case.nodes_of_gpu(typed_fp32(case, roof)) & case.graph.on_gpu & model_phases(case.graph)
    return (single_precision(case, roof, "gemm", "grouped_gemm") | typed) & ~computed_wide(case)


def _work(case: Analysis, roof: Roofline, level: int) -> tuple[F64, F64]:
    """(FLOPs, bytes) of every GPU event. For matrix multiplications of which only fp32 operands are known, the FLOPs
    are those that the GPU can do in their time, and the result is assumed to be as large as an operand."""
    typed, gpu = typed_fp32(case, roof), case.trace.gpu
    flops, moved = roof.work.flops, np.nan_to_num(roof.work.bytes)
    if not typed.any():
        return flops, moved
    reached = roof.ceilings.flops["fp32"] * calibrated.AUTOCAST_FP32_REACHED.rising[level]
    took_s = (gpu.end_ns - gpu.start_ns).clip(0) / 1e9
    return np.where(typed, took_s * reached, flops), np.where(
        typed, BYTES_WITH_RESULT * operand_bytes(case, typed), moved
    )


def _attention(case: Analysis, roof: Roofline) -> Mask:
    """Nodes of attention in fp32 that autocast is for: not where only attention's own inputs are wide."""
    return single_precision(case, roof, "attention") & (find_cast_up(case) is None)


def _between(case: Analysis) -> Mask:
    """Nodes of the model's elementwise kernels and copies within GPU memory that are named after fp32."""
    names = case.trace.gpu.name
    rows = case.category(*BETWEEN) & case.trace.rows_named(names, lambda text: type_in_kernel_name(text) == "float")
    return case.nodes_of_gpu(rows) & case.graph.on_gpu & model_phases(case.graph)


def _cast(case: Analysis, roof: Roofline, nodes: Mask, launch_ns: float, half: str, level: int) -> Change:
    """The graph with these matrix multiplications and attention in a 16-bit format, casts before them, and some of the
    work between them on half the bytes; level 0: at best, 2: at worst."""
    attention, between = np.flatnonzero(_attention(case, roof)), _between(case)
    attention_ns = half_attention_ns(case, roof, attention, half, level)
    left = 1 - calibrated.AUTOCAST_HALVED.falling[level] / 2
    rows = np.flatnonzero(nodes)
    event = case.graph.gpu_row[rows]
    ceilings = roof.ceilings
    flops, moved = (each[event] for each in _work(case, roof, level))
    matmul_ns = half_precision_ns(flops, moved / 2, ceilings.flops[half], ceilings.memory_bytes_per_s, level)
    # A third of what a matrix multiplication moves is one operand.
    elements = moved / 4 / 3
    operands, casts = calibrated.AUTOCAST_CAST_OPERANDS.rising[level], calibrated.AUTOCAST_CASTS.rising[level]
    casts_ns = operands * elements * CAST_BYTES_AN_ELEMENT / ceilings.memory_bytes_per_s * 1e9
    casts_ns = casts_ns / calibrated.BF16_MEMORY.falling[level] + casts * latency_calibrated.MATMUL_NS.value / 2
    launcher = launcher_of(case.graph)[rows]
    launcher = launcher[launcher >= 0]

    def change(graph: Graph) -> Graph:
        duration = graph.duration_ns.copy()
        duration[rows] = np.minimum(duration[rows], matmul_ns) + casts_ns
        np.add.at(duration, launcher, casts * launch_ns)
        duration[attention] = np.minimum(duration[attention], attention_ns)
        duration[between] = np.maximum(
            duration[between] * left, np.minimum(duration[between], latency_calibrated.ELEMENTWISE_NS.value)
        )
        return graph.with_durations(duration)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    lowers=("slow_matmuls",),
    synonyms=("bf16", "amp", "mixed_precision", "fp16"),
    titles=("bf16_autocast", "bf16_autocast_without_cudnn_attention", "fp16_autocast"),
)

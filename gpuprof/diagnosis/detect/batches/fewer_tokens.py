"""The step with a part of its tokens: how much of each kernel remains."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import padding as calibrated
from gpuprof.costs.split import roof_ns
from gpuprof.diagnosis.detect.batches.batch_scaling import micro_tokens
from gpuprof.projection.changes.batch import once_for_each_weight
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_PADDING: Assumed[Share] = 0.08
"""Share of padding below which nothing is advised: packing leaves some of the last row empty too."""


def fewer_tokens(case: Analysis, part: float, grows: float = 1.0) -> Change:
    """The change to this part of the tokens.

    grows: exponent with which kernel time scales with work.
    """
    left, graph = np.append(left_with(case, part) ** grows, 1.0)[case.graph.gpu_row], case.graph
    # Work launched before the recording began belongs to the previous step: the same work.
    model = graph.on_gpu & (np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE)) | (graph.call < 0))
    return partial(scaled, nodes=model, factor=left)


def left_with(case: Analysis, part: float) -> F64:
    """Per GPU event the share of its time that remains with this part of the tokens."""
    gpu = case.trace.gpu
    ns = np.maximum((gpu.end_ns - gpu.start_ns).astype(np.float64), 1.0)
    matmul = case.category("gemm", "grouped_gemm")
    share = np.full(len(gpu), part)
    if case.roofline is not None:
        work, limits = case.roofline.work, case.roofline.ceilings
        compute, memory = (np.nan_to_num(ns) for ns in roof_ns(work, limits))
        # A matmul with T rows does 2·T FLOPs per weight, and reads all weights for any number of rows.
        tokens = micro_tokens(case)
        weights = np.nan_to_num(work.flops) / tokens / limits.memory_bytes_per_s * 1e9 if tokens else np.zeros(len(gpu))
        weights = np.where(matmul, np.minimum(weights, memory), 0.0)
        # Compute and memory do not overlap completely, as with larger batches.
        before = np.hypot(compute, memory)
        after = np.hypot(part * compute, part * (memory - weights) + weights)
        share = np.divide(after, before, out=share, where=before > 0)
    attention = case.category("attention")
    share[attention] = min(part, calibrated.SPREAD_LENGTHS.value * part * part)
    floor = np.minimum(
        np.where(matmul, latency_calibrated.MATMUL_NS.value, latency_calibrated.ELEMENTWISE_NS.value), ns
    )
    once = once_for_each_weight(case.timeline) | case.category("communication", "memset")
    return np.where(once, 1.0, np.maximum(share * ns, floor) / ns)

"""Kernels slower than the usual rate of their kind and size, and those for which no rate is known."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gpuprof.calibration import reach as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.ledger_part import Cost, LedgerPart
from gpuprof.diagnosis.detect.gpu.kernel_reach import (
    ATTENTION,
    COPY,
    GEMM,
    KIND_NAMES,
    OPTIMIZER,
    OTHER,
    KernelReach,
    kernel_reach,
)
from gpuprof.diagnosis.reach.named_groups import LEAST_GROUP_SHARE
from gpuprof.diagnosis.reach.reasons import reason
from gpuprof.replay.graph import DEVICE, TRANSFER
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, I64, KERNEL, Mask
from gpuprof.units import Convention, Entries

MOST_GROUPS: Convention[Entries] = 6
"""Most groups of kernels that are listed separately; the others are combined."""

_COSTS: dict[int, Cost] = {
    GEMM: "slow_matmuls", ATTENTION: "slow_attention", OPTIMIZER: "slow_optimizer", COPY: "slow_copies",
}  # fmt: skip


def slow_kernels(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Kernels that take longer than nine of ten of their kind and size would, by kind and op."""
    if case.roofline is None:
        return
    found = _reach(case)
    rows = np.flatnonzero(found.slow & _in_graph(case))
    excess = np.zeros(len(found.slow))
    ns = _durations(case)
    excess[rows] = ns[rows] - found.reach_ns[rows]
    for kind, mine in _groups(case, rows, excess, found.kind):
        share = np.append(np.where(mine, np.divide(found.reach_ns, ns, out=np.ones(len(ns)), where=ns > 0), 1.0), 1.0)
        nodes = np.append(mine, False)[case.graph.gpu_row]
        whole = float(case.graph.duration_ns[nodes].sum())
        factor = np.where(nodes, share[case.graph.gpu_row], 1.0)
        left = float((case.graph.duration_ns * factor)[nodes].sum())
        yield LedgerPart(
            kind="gpu",
            what=f"slow {KIND_NAMES[kind]}",
            nodes=nodes,
            change=lambda graph, nodes=nodes, factor=factor: scaled(graph, nodes, factor),
            reach=left / whole if whole else 0.0,
            why=reason(case, np.flatnonzero(mine)),
            cost=_COSTS.get(kind, "slow_kernels"),
        )


def unknown_kernels(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Kernels whose work, or the rate of their kind, is unknown: they count with their whole time."""
    gpu = case.trace.gpu
    ns = _durations(case)
    known = np.isfinite(_reach(case).reach_ns) if case.roofline is not None else np.zeros(len(gpu), bool)
    mine = _in_graph(case) & ~known & (gpu.kind == KERNEL) & (ns > calibrated.ELEMENTWISE_TINY_NS.high)
    compute = np.zeros(len(gpu), bool)
    nodes = np.flatnonzero(np.isin(case.graph.resource, (DEVICE, TRANSFER)) & case.graph.on_gpu)
    compute[case.graph.gpu_row[nodes]] = True
    rows = np.flatnonzero(mine & compute)
    kind = np.full(len(gpu), OTHER, np.int64)
    for _, group in _groups(case, rows, np.where(mine, ns, 0.0), kind):
        of = np.append(group, False)[case.graph.gpu_row]
        yield LedgerPart(
            kind="gpu",
            what="kernels without a known rate",
            nodes=of,
            change=lambda graph, of=of: scaled(graph, of, 0.0),
            reach=None,
        )


def _reach(case: Analysis) -> KernelReach:
    """What every kernel should take; computed once."""
    assert case.roofline is not None
    if "kernel_reach" not in case.memo:
        case.memo["kernel_reach"] = kernel_reach(case.timeline, case.roofline)
    return case.memo["kernel_reach"]


def _durations(case: Analysis) -> F64:
    gpu = case.trace.gpu
    return (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)


def _in_graph(case: Analysis) -> Mask:
    """GPU events that are replayed."""
    rows = np.zeros(len(case.trace.gpu), bool)
    rows[case.graph.gpu_row[case.graph.on_gpu]] = True
    return rows


def _groups(case: Analysis, rows: I64, size: F64, kind: I64) -> Iterator[tuple[int, Mask]]:
    """(kind, mask of GPU events) per kind and op, or kernel name if there is no op: the largest first, the small ones
    combined."""
    trace, op = case.trace, case.timeline.links.op
    if not len(rows):
        return
    named = np.where(op[rows] >= 0, np.append(trace.ops.name, -1)[op[rows]], trace.gpu.name[rows])
    keys, inverse = np.unique(np.stack([kind[rows], named]), axis=1, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=size[rows], minlength=keys.shape[1])
    least = LEAST_GROUP_SHARE * case.step_ns * case.steps
    order = np.argsort(-total, kind="stable").tolist()
    alone = [k for k in order[:MOST_GROUPS] if total[k] >= least]
    for k in alone:
        mask = np.zeros(len(size), bool)
        mask[rows[inverse.ravel() == k]] = True
        yield int(keys[0, k]), mask
    rest = rows[~np.isin(inverse.ravel(), alone)]
    if size[rest].sum() >= least:
        mask = np.zeros(len(size), bool)
        mask[rest] = True
        yield OTHER, mask

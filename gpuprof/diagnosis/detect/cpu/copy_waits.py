"""Waits of the CPU for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.detect.loops.recurrent_loops import fed_nodes
from gpuprof.diagnosis.result.fix import Fix, call
from gpuprof.replay.graph import COPY, SYNC
from gpuprof.timeline.categories import TENSOR_CATEGORIES
from gpuprof.timeline.phases import FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Bytes, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_COPIED_BYTES: Assumed[Bytes] = 1 << 20
"""Fewest bytes a step whose copies from pageable memory take time; with less, a copy takes no longer than a small
kernel."""
LEAST_SLOWDOWN: Assumed[Ratio] = 1.01
"""Smallest factor by which all waits of a kind together lengthen the step for a proposal."""


def copies_to_device(case: Analysis, waits: Mask) -> Mask:
    """Waits in ops that copy from the CPU to the device."""
    return in_copies(case, waits, case.trace.rows_named(case.trace.gpu.name, lambda text: "HtoD" in text))


def in_copies(case: Analysis, waits: Mask, copies: Mask) -> Mask:
    """Waits in the calls that launch these copies, or in the ops around them. `copies`: mask of GPU events."""
    trace, graph, links = case.trace, case.graph, case.timeline.links
    copying = np.zeros(len(trace.ops) + 1, bool)
    copying[links.op[copies]] = True
    copying[-1] = False
    calls = np.zeros(len(trace.calls) + 1, bool)
    calls[links.call[copies]] = True
    calls[-1] = False
    return waits & (copying[graph.scope] | calls[graph.call])


def device_waits(case: Analysis) -> Mask:
    """All nodes in which the CPU waits for the device, a stream or a copy."""
    graph = case.graph
    waits = np.zeros(len(graph), bool)
    waits[graph.edges.target[np.isin(graph.edges.kind, (SYNC, COPY))]] = True
    return waits & graph.waits


def pageable_copies(case: Analysis, way: str) -> Mask:
    """Copies of one direction (HtoD, DtoH) from or to pageable memory: GPU nodes."""
    rows = case.trace.rows_named(case.trace.gpu.name, lambda text: way in text and "Pageable" in text)
    return case.nodes_of_gpu(rows) & case.graph.on_gpu


def copied_bytes(case: Analysis) -> F64:
    """Bytes of each node's copy."""
    return np.append(case.trace.gpu.bytes, 0)[case.graph.gpu_row].clip(0).astype(np.float64)


def awaited_copies(case: Analysis) -> Mask:
    """Waits for copies to the GPU that need none, where copying itself takes no time worth speaking of: not for what is
    kept in host memory, and not in a loop whose results decide what is copied next. Found once for a case."""
    if "awaited_copies" not in case.memo:
        waits = copies_to_device(case, device_waits(case))
        if waits.any() and copied_bytes(case)[pageable_copies(case, "HtoD")].sum() >= LEAST_COPIED_BYTES * case.steps:
            waits = np.zeros(len(waits), bool)
        if waits.any():
            waits &= ~fed_nodes(case)
        if waits.any() and (found := find_offload(case)) is not None:
            kept = np.zeros(len(case.trace.gpu), bool)
            kept[case.graph.gpu_row[found.copies]] = True
            waits &= ~in_copies(case, waits, kept)
        case.memo["awaited_copies"] = waits
    return case.memo["awaited_copies"]


def awaited_batches(case: Analysis) -> Mask:
    """Those of these waits that are for a batch, before its forward pass."""
    waits = awaited_copies(case)
    if not waits.any():
        return waits
    up = case.trace.rows_named(case.trace.gpu.name, lambda text: "HtoD" in text)
    inside = np.zeros(len(case.trace.gpu), bool)
    inside[case.graph.gpu_row[within_a_pass(case, case.nodes_of_gpu(up) & case.graph.on_gpu)]] = True
    return waits & ~in_copies(case, waits, inside)


def within_a_pass(case: Analysis, copies: Mask) -> Mask:
    """Those of some copies (GPU nodes) that a forward pass makes: its matrix multiplications come before them. A batch
    comes before the pass, so the last one before it is the backward pass's, or none of the step's."""
    graph = case.graph
    nodes = np.flatnonzero(graph.on_gpu)
    nodes = nodes[np.lexsort((graph.recorded_start_ns[nodes], graph.step[nodes]))]
    kernel = np.append(case.category(*TENSOR_CATEGORIES), False)[graph.gpu_row[nodes]]
    last = np.maximum.accumulate(np.where(kernel, np.arange(len(nodes)), -1))
    before = nodes[np.maximum(last, 0)]
    inside = (
        (last >= 0) & (graph.step[before] == graph.step[nodes]) & np.isin(graph.phase[before], (FORWARD, RECOMPUTE))
    )
    found = np.zeros(len(graph), bool)
    found[nodes[inside]] = True
    return found & copies


def runs_ahead_alone(case: Analysis) -> bool:
    """Whether a CPU that no longer waits gains: a rank that runs ahead otherwise waits for its peers instead, unless
    these run ahead as well."""
    return case.sensitivities.communication <= case.sensitivities.host


def asynchronous(case: Analysis) -> Fix:
    """Batches from pinned memory, copied without waiting."""
    return case.stack.fix(
        call("DataLoader", ..., pin_memory=True)
        + ", then "
        + call("batch.to", "cuda", non_blocking=True)
        + "\nand other tensors: tensor.pin_memory() once, before the training",
        case.stack.setting(
            {"dataloader_pin_memory": True},
            {"accelerator_config": {"non_blocking": True}},
            note='\nand what you copy yourself: tensor.pin_memory().to("cuda", non_blocking=True)',
        ),
        inference=call("inputs.pin_memory().to", "cuda", non_blocking=True)
        + "  # or buffers that are pinned once and reused",
    )

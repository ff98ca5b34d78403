"""Finds what a training keeps or computes in host memory: its optimizer, weights, activations, or ops of a pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.calibration import offload as calibrated
from gpuprof.calibration import slow as slow_calibrated
from gpuprof.replay.cpu_compute import computes, without_launches
from gpuprof.timeline.cpu.slow_calls import within_slow
from gpuprof.timeline.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from gpuprof.tracefile.trace import MEMCPY, Mask
from gpuprof.units import Assumed, Copies, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

COPIED_SHARE: Assumed[Share] = 0.5
"""Smallest share of the bytes copied in a phase that classifies the copies by that phase."""
BYTES_PER_PARAMETER: Assumed[tuple[Ratio, Ratio]] = (0.25, 16.0)
"""Range of bytes moved per step and parameter: usually 2 to 4, less with several ranks, more with accumulation."""
FEWEST_TENSORS: Assumed[Copies] = 20
"""Fewest copies per step of offloaded weights: a model has hundreds of tensors, a batch a few."""
_UPDATES = re.compile(r"^aten::(_foreach_)?(addcdiv|addcmul|lerp)_$")
"""Ops that only optimizers use."""
LEAST_UPDATES: Assumed[Share] = 0.1
FEWEST_SIZES: Assumed[Entries] = 3
"""Fewest different sizes of weights; tensors of a batch have one or two sizes."""
GPU_BYTES_PER_COPIED: Assumed[Ratio] = 4.0
"""Largest GPU memory of such ops as a multiple of what is copied: their inputs, results and gradients."""
Kind = Literal["optimizer", "weights", "activations", "ops", "copies"]


@dataclass(frozen=True, slots=True)
class Offload:
    """Data that is kept in host memory."""

    kind: Kind
    copies: Mask
    """GPU nodes of the copies."""
    stretches: Mask
    """CPU nodes: of an optimizer those that launch nothing for a long time, of ops and copies those that compute."""
    down_bytes: float
    """Copied to the CPU per step; `up_bytes`: to the GPU."""
    up_bytes: float
    needed_bytes: float
    """Additional GPU memory without offloading."""


def find_offload(case: Analysis) -> Offload | None:
    """What is offloaded, from the copies of a step; None if nothing is."""
    trace, graph, timeline = case.trace, case.graph, case.timeline
    gpu = trace.gpu
    size = np.where(gpu.kind == MEMCPY, gpu.bytes, 0).clip(0).astype(np.float64)
    member = np.zeros(len(gpu), bool)
    member[timeline.members] = True
    down = member & trace.rows_named(gpu.name, lambda text: "DtoH" in text)
    up = member & trace.rows_named(gpu.name, lambda text: "HtoD" in text)
    down_bytes, up_bytes = (float(size[rows].sum()) / case.steps for rows in (down, up))
    if up_bytes < COPIED_SHARE * down_bytes:
        kept = _of_copies(case, down & (size > 0), down_bytes, up_bytes)
        if kept is not None:
            return kept
    if up_bytes < calibrated.LEAST_BYTES.value:
        return None
    forward = np.isin(timeline.phase, (FORWARD, RECOMPUTE))
    copies = case.nodes_of_gpu((down | up) & (size > 0)) & graph.on_gpu
    nothing = np.zeros(len(graph), bool)
    trained = trained_parameters(case)
    if down_bytes >= calibrated.LEAST_BYTES.value:
        stretches = _stretches(case)
        in_forward = float(size[down & forward].sum()) / case.steps
        silent = case.per_step(float(graph.duration_ns[stretches].sum()))
        if in_forward > COPIED_SHARE * down_bytes and silent < calibrated.LEAST_SILENCE.value * case.step_ns:
            return Offload("activations", copies, nothing, down_bytes, up_bytes, down_bytes)
        if not stretches.any():
            return None
        if _outside_optimizer(case) > COPIED_SHARE:
            nodes = computed(case)
            if case.per_step(float(graph.duration_ns[nodes].sum())) < calibrated.LEAST_SILENCE.value * case.step_ns:
                return None
            return Offload("ops", copies, nodes, down_bytes, up_bytes, GPU_BYTES_PER_COPIED * (down_bytes + up_bytes))
        if not all(_is_of(trained, one) for one in (down_bytes, up_bytes)):
            return None
        stretches |= _optimizer_on_cpu(case)
        return Offload("optimizer", copies, stretches, down_bytes, up_bytes, calibrated.STATE_BYTES.value * trained)
    if float(size[up & forward].sum()) / case.steps > COPIED_SHARE * up_bytes and _of_weights(
        case, up & (size > 0), up_bytes
    ):
        return Offload("weights", case.nodes_of_gpu(up) & graph.on_gpu, nothing, down_bytes, up_bytes, up_bytes)
    return None


def _of_copies(case: Analysis, down: Mask, down_bytes: float, up_bytes: float) -> Offload | None:
    """Weights or gradients that are copied to the CPU, which computes with them and sends nothing back: an average of
    weights, norms, statistics. None if little is copied, in few tensors, or if the CPU computes little."""
    if down_bytes < calibrated.LEAST_BYTES.value or not _of_weights(case, down, down_bytes):
        return None
    nodes = computed(case)
    if case.per_step(float(case.graph.duration_ns[nodes].sum())) < calibrated.LEAST_SILENCE.value * case.step_ns:
        return None
    return Offload("copies", case.nodes_of_gpu(down) & case.graph.on_gpu, nodes, down_bytes, up_bytes, down_bytes)


def computed_on_cpu(case: Analysis) -> Offload | None:
    """The offload if the CPU computes on tensors that come from the GPU, in a pass of the model or with copies of
    weights; else None."""
    found = find_offload(case)
    return found if found is not None and found.kind in ("ops", "copies") else None


def trained_parameters(case: Analysis) -> float:
    """Number of trained parameters, from the model or else the optimizer; 0 if unknown."""
    run = case.run
    known = ((run.model or {}).get("trainable"), (run.optimizer or {}).get("parameters")) if run else ()
    return float(next((count for count in known if count), 0))


def _stretches(case: Analysis) -> Mask:
    """CPU nodes of over 1 ms that launch nothing: outside all calls, and outside ops that launch."""
    slow = np.append(within_slow(case.timeline), False)[case.graph.scope]
    return without_launches(case.graph) & ~slow & (case.graph.duration_ns >= slow_calibrated.STRETCH_NS.value)


def _optimizer_on_cpu(case: Analysis) -> Mask:
    """CPU nodes of the optimizer, including short ones, that launch nothing: the CPU computes in them."""
    return without_launches(case.graph) & (case.graph.phase == OPTIMIZER)


def computed(case: Analysis) -> Mask:
    """CPU work in ops that compute on tensors in host memory, without compiling, planning or loading code."""
    slow = np.append(within_slow(case.timeline, known=True), False)[case.graph.scope]
    return computes(case.graph) & ~slow


def _outside_optimizer(case: Analysis) -> float:
    """Share of the CPU's computing on host tensors outside the optimizer: a loss, metrics, a part of the model."""
    graph = case.graph
    ns = np.where(computed(case), graph.duration_ns, 0.0)
    updates = np.append(case.ops_named(_UPDATES.match), False)[graph.scope]
    if float(ns[updates].sum()) >= LEAST_UPDATES * float(ns.sum()):
        return 0.0
    return float(ns[np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))].sum()) / max(float(ns.sum()), 1.0)


def _is_of(parameters: float, moved_bytes: float) -> bool:
    """Whether the moved bytes match gradients or weights of these parameters, also for one of several ranks."""
    return BYTES_PER_PARAMETER[0] * parameters <= moved_bytes <= BYTES_PER_PARAMETER[1] * parameters and parameters > 0


def _of_weights(case: Analysis, copied: Mask, copied_bytes: float) -> bool:
    """Whether what is copied one way are weights: many tensors, and a large part of the model's parameters."""
    if int(copied.sum()) < FEWEST_TENSORS * case.steps:
        return False
    parameters = float(((case.run.model or {}).get("parameters") if case.run else None) or 0)
    return _is_of(parameters, copied_bytes) or _come_again(case, copied)


def _come_again(case: Analysis, copied: Mask) -> bool:
    """Whether the same set of different sizes is copied in each step: weights of a model that is not trained."""
    sizes, count = np.unique(case.trace.gpu.bytes[copied], return_counts=True)
    return case.steps > 1 and len(sizes) >= FEWEST_SIZES and bool((count % case.steps == 0).all())

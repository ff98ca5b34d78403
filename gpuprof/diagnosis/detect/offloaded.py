"""What a training keeps or computes in host memory: its optimizer, weights, activations, or ops of a pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.calibration import offload as calibrated
from gpuprof.calibration import slow as slow_calibrated
from gpuprof.replay.cpu_compute import computes, without_launches
from gpuprof.timeline.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from gpuprof.timeline.slow_calls import within_slow
from gpuprof.tracefile.trace import MEMCPY, Mask
from gpuprof.units import Assumed, Copies, Entries, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_BYTES = calibrated.LEAST_BYTES.value
STRETCH_NS = slow_calibrated.STRETCH_NS.value
LEAST_SILENCE = calibrated.LEAST_SILENCE.value
"""Share of the step in long stretches without a launch, from which on an optimizer runs in them, wherever the copies
are."""
COPIED_SHARE: Assumed[Share] = 0.5
"""Share of the bytes that must be copied in a phase for that to be what they are."""
BYTES_PER_PARAMETER: Assumed[tuple[Ratio, Ratio]] = (0.25, 16.0)
"""Bytes that are moved in a step for each parameter: 2 to 4, less on each of several ranks, more with accumulation."""
FEWEST_TENSORS: Assumed[Copies] = 20
"""Copies of a step, at least, that are weights: a model has hundreds, a batch a few."""
_UPDATES = re.compile(r"^aten::(_foreach_)?(addcdiv|addcmul|lerp)_$")
"""Ops that only optimizers use; of the CPU's computing it is an optimizer's where they take this share of it:"""
LEAST_UPDATES: Assumed[Share] = 0.1
FEWEST_SIZES: Assumed[Entries] = 3
"""Weights are of different sizes; what a batch holds is of one or two."""
MOST_KEPT_RATIO: Assumed[Ratio] = 4.0
"""Times what is copied, at most, that ops need on the GPU: their inputs, results and gradients."""
Kind = Literal["optimizer", "weights", "activations", "ops"]


@dataclass(frozen=True, slots=True)
class Offload:
    """What is kept in host memory."""

    kind: Kind
    copies: Mask
    """Nodes of the GPU's copies."""
    stretches: Mask
    """Nodes of the CPU in which it launches nothing for long; only of an optimizer."""
    down_bytes: float
    """Copied to the host in a step; `up_bytes` to the GPU."""
    up_bytes: float
    needed_bytes: float
    """More on the GPU without it."""


def find_offload(case: Analysis) -> Offload | None:
    """What is offloaded, by the copies of a step; None where nothing is."""
    trace, graph, timeline = case.trace, case.graph, case.timeline
    gpu = trace.gpu
    size = np.where(gpu.kind == MEMCPY, gpu.bytes, 0).clip(0).astype(np.float64)
    member = np.zeros(len(gpu), bool)
    member[timeline.members] = True
    down = member & trace.rows_named(gpu.name, lambda text: "DtoH" in text)
    up = member & trace.rows_named(gpu.name, lambda text: "HtoD" in text)
    down_bytes, up_bytes = (float(size[rows].sum()) / case.steps for rows in (down, up))
    if up_bytes < LEAST_BYTES:
        return None
    forward = np.isin(timeline.phase, (FORWARD, RECOMPUTE))
    copies = case.nodes_of_gpu((down | up) & (size > 0)) & graph.on_gpu
    nothing = np.zeros(len(graph), bool)
    trained = trained_parameters(case)
    if down_bytes >= LEAST_BYTES:
        stretches = _stretches(case)
        in_forward = float(size[down & forward].sum()) / case.steps
        silent = case.per_step(float(graph.duration_ns[stretches].sum()))
        if in_forward > COPIED_SHARE * down_bytes and silent < LEAST_SILENCE * case.step_ns:
            return Offload("activations", copies, nothing, down_bytes, up_bytes, down_bytes)
        if not stretches.any():
            return None
        if _outside_optimizer(case) > COPIED_SHARE:
            nodes = computed(case)
            if case.per_step(float(graph.duration_ns[nodes].sum())) < LEAST_SILENCE * case.step_ns:
                return None
            return Offload("ops", copies, nodes, down_bytes, up_bytes, MOST_KEPT_RATIO * (down_bytes + up_bytes))
        if not all(_is_of(trained, one) for one in (down_bytes, up_bytes)):
            return None
        stretches |= _optimizer_on_cpu(case)
        return Offload("optimizer", copies, stretches, down_bytes, up_bytes, calibrated.STATE_BYTES.value * trained)
    if float(size[up & forward].sum()) / case.steps > COPIED_SHARE * up_bytes and _of_weights(
        case, up & (size > 0), up_bytes
    ):
        return Offload("weights", case.nodes_of_gpu(up) & graph.on_gpu, nothing, down_bytes, up_bytes, up_bytes)
    return None


def computed_on_cpu(case: Analysis) -> Offload | None:
    """What the CPU computes in a pass of the model, on tensors that come from the GPU; None where it does not."""
    found = find_offload(case)
    return found if found is not None and found.kind == "ops" else None


def trained_parameters(case: Analysis) -> float:
    """Parameters that are trained, by the model, else by the optimizer; 0 where neither is known."""
    run = case.run
    known = ((run.model or {}).get("trainable"), (run.optimizer or {}).get("parameters")) if run else ()
    return float(next((count for count in known if count), 0))


def _stretches(case: Analysis) -> Mask:
    """Pieces of the CPU's work of over 1 ms in which it launches nothing: in no call, and in no op that launches."""
    slow = np.append(within_slow(case.timeline), False)[case.graph.scope]
    return without_launches(case.graph) & ~slow & (case.graph.duration_ns >= STRETCH_NS)


def _optimizer_on_cpu(case: Analysis) -> Mask:
    """Pieces of the optimizer's work, short ones too, in which the CPU launches nothing: it computes there itself."""
    return without_launches(case.graph) & (case.graph.phase == OPTIMIZER)


def computed(case: Analysis) -> Mask:
    """The CPU's work in ops that compute on tensors in host memory; none that compiles, plans or loads code."""
    slow = np.append(within_slow(case.timeline, known=True), False)[case.graph.scope]
    return computes(case.graph) & ~slow


def _outside_optimizer(case: Analysis) -> float:
    """Share of the CPU's computing on host tensors that lies in no optimizer: a loss, metrics, a part of the model."""
    graph = case.graph
    ns = np.where(computed(case), graph.duration_ns, 0.0)
    updates = np.append(case.ops_named(_UPDATES.match), False)[graph.scope]
    if float(ns[updates].sum()) >= LEAST_UPDATES * float(ns.sum()):
        return 0.0
    return float(ns[np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))].sum()) / max(float(ns.sum()), 1.0)


def _is_of(parameters: float, moved_bytes: float) -> bool:
    """Whether as many bytes are moved as gradients or weights of these parameters have, of one rank of several too."""
    return BYTES_PER_PARAMETER[0] * parameters <= moved_bytes <= BYTES_PER_PARAMETER[1] * parameters and parameters > 0


def _of_weights(case: Analysis, up: Mask, up_bytes: float) -> bool:
    """Whether what comes to the GPU are weights: many tensors, and a good part of the model's parameters."""
    if int(up.sum()) < FEWEST_TENSORS * case.steps:
        return False
    parameters = float(((case.run.model or {}).get("parameters") if case.run else None) or 0)
    return _is_of(parameters, up_bytes) or _come_again(case, up)


def _come_again(case: Analysis, up: Mask) -> bool:
    """Whether tensors of the same different sizes come in each step: weights of another model than the trained one."""
    sizes, count = np.unique(case.trace.gpu.bytes[up], return_counts=True)
    return case.steps > 1 and len(sizes) >= FEWEST_SIZES and bool((count % case.steps == 0).all())

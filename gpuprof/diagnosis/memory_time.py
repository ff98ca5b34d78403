"""What a change that saves memory does to the mean step: from a replay of the recorded steps, and where the recording
holds nothing like it, from published measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuprof.calibration import allocator
from gpuprof.calibration import memory as calibrated
from gpuprof.costs.gemm import is_matmul
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.diagnosis.detect.batch_scaling import scaled_batch
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.detect.proposal import Finder, Proposal
from gpuprof.diagnosis.findings import BUILT_IN
from gpuprof.diagnosis.fix import Fix
from gpuprof.diagnosis.predict import predict_together
from gpuprof.memory.advice import Bounds
from gpuprof.projection.batch import model_phases
from gpuprof.projection.memory import RecordedMemory, Trained
from gpuprof.projection.memory_fixes import MemoryFix, recorded_footprint
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD, OPTIMIZER
from gpuprof.tracefile.trace import NO_TEXT, Mask

FINDERS: dict[str, Finder] = {one.memory: one.find for one in BUILT_IN if one.memory and one.find}
"""Changes that a finding replays."""
REPEATED = (0.85, 1.0, 1.1)
"""Of the forward pass what checkpointing repeats: neither head nor loss, but with work of its own."""
STATE_MOVED = {"eight_bit_optimizer": 4, "paged_eight_bit_optimizer": 4, "paged_optimizer": 16}
"""bitsandbytes' optimizers, which update tensor by tensor → bytes per parameter of state that is read and written."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """What one change does to a step."""

    proposals: tuple[Proposal, ...] = ()
    """Replayed."""
    more_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Not replayed: at least, usually, at most."""


def step_with(fixes: Sequence[MemoryFix], case: Analysis, memory: RecordedMemory) -> tuple[Bounds | None, str | None]:
    """The mean step for the recorded work with one change, or several at once, ns; or why it is not known."""
    found: list[_Priced] = []
    for fix in fixes:
        priced = _priced(fix, case, memory)
        if isinstance(priced, str):
            return None, priced
        found.append(priced)
    proposals = [proposal for one in found for proposal in one.proposals]
    step = predict_together(case, proposals)
    work = math.prod(proposal.work for proposal in proposals)
    ends = zip((step.low, step.expected, step.high), *(one.more_ns for one in found), strict=True)
    return Bounds(*(round(ns / work + sum(more)) for ns, *more in ends)), None


def _priced(fix: MemoryFix, case: Analysis, memory: RecordedMemory) -> _Priced | str:
    """One change; or why its time is not known."""
    if fix.id == "offloaded_optimizer":
        return _offloaded(memory.trained)
    if fix.id == "offloaded_activations":
        return _offloaded_activations(case, memory)
    finder = FINDERS.get(fix.id)
    if finder is not None:
        proposal = next(iter(finder(case)), None)
        return _Priced((proposal,)) if proposal else "its finding does not see in this recording what it would replace"
    if fix.id in STATE_MOVED:
        make = _per_tensor_step(fix.id, case, memory.trained)
    elif fix.id == "chunked_loss":
        make = _chunked_loss(case, memory)
    else:
        make = _of_passes(fix, case)
    if make is None:
        return "nothing in the recording says what it would take"
    return _Priced((Proposal(fix.title, (), Fix(), make(1), make(0), make(2)),))


def _offloaded(trained: Trained | None) -> _Priced | str:
    """The state of Adam on the CPU, which updates the parameters."""
    if trained is None or not trained.adam:
        return "how fast this CPU updates the parameters is not in the recording"
    low, usual, high = (each * trained.parameters for each in calibrated.OFFLOAD_NS.rising)
    return _Priced(more_ns=(low, usual, high))


def _offloaded_activations(case: Analysis, memory: RecordedMemory) -> _Priced | str:
    """What layers keep goes to the CPU during the forward pass and comes back during the backward pass: at best next to
    the GPU's work, at worst after it."""
    link = case.roofline.ceilings.link_bytes_per_s if case.roofline is not None else None
    tokens = case.run.work.tokens if case.run is not None else None
    if not link or not tokens:
        return "the tokens of a step, or the GPU's link to the CPU, are not known"
    now, graph = recorded_footprint(memory).likely, case.graph
    moved = (now.layers + now.scores) * tokens
    quick, usual, slow = (1e9 * moved / (link * rate) for rate in allocator.PINNED_RATE.falling)
    works = [
        float(graph.duration_ns[graph.on_gpu & (graph.phase == phase)].sum()) / graph.steps
        for phase in (FORWARD, BACKWARD)
    ]
    hidden = [sum(max(ns - work, 0.0) for work in works) for ns in (quick, usual)]
    return _Priced(more_ns=(hidden[0], (hidden[1] + 2 * usual) / 2, 2 * slow))


def _of_passes(fix: MemoryFix, case: Analysis) -> Callable[[int], Change] | None:
    """What a change of the forward and backward passes does to the graph: 0 at best, 1 usually, 2 at worst."""
    if fix.share:
        return lambda level: partial(_repeats, share=fix.share * REPEATED[level])
    makers: dict[str, Callable[[int], Change]] = {
        "half_micro_batch": lambda level: partial(_twice, smaller=scaled_batch(case, 0.5, level)),
        "half_length": lambda level: scaled_batch(case, 0.5, level),
    }
    return makers.get(fix.id)


def _chunked_loss(case: Analysis, memory: RecordedMemory) -> Callable[[int], Change] | None:
    """The same of a loss that goes through the logits in chunks, or in one fused kernel; None where the recording does
    not show the ops of the head and the loss."""
    loss = memory.recorded.loss
    products, rest = _ops_of_logits(case, loss.vocabulary if loss else 0)
    if not products.any() or not rest.any():
        return None
    passes = np.isin(case.graph.phase, (FORWARD, BACKWARD))
    multiplies, others = case.nodes_within(products) & passes, case.nodes_within(rest) & passes

    def change(level: int, graph: Graph) -> Graph:
        host = ~graph.on_gpu & ~graph.waits
        for nodes, number in (
            (multiplies & graph.on_gpu, calibrated.CHUNKED_PRODUCTS),
            (others & ~multiplies & graph.on_gpu, calibrated.CHUNKED_REST),
            ((multiplies | others) & host, calibrated.CHUNKED_HOST),
        ):
            graph = scaled(graph, nodes, number.rising[level])
        return graph

    return lambda level: partial(change, level)


def _ops_of_logits(case: Analysis, vocabulary: int) -> tuple[Mask, Mask]:
    """Ops that are the head's matmuls, and others whose tensors have the vocabulary as their width."""
    ops = case.trace.ops
    texts = np.unique(ops.dims[ops.dims != NO_TEXT])
    shapes = {int(text): [one for one in shapes_in(case, int(text)) if one and len(one) > 1] for text in texts}
    any_side = [text for text, found in shapes.items() if any(vocabulary in one for one in found)]
    last_side = [text for text, found in shapes.items() if any(one[-1] == vocabulary for one in found)]
    products = np.isin(ops.dims, any_side) & case.ops_named(is_matmul)
    return products, np.isin(ops.dims, last_side) & ~products


def _per_tensor_step(name: str, case: Analysis, trained: Trained | None) -> Callable[[int], Change] | None:
    """The same of one of bitsandbytes' optimizers, all of whose state is on the GPU."""
    tensors = float((case.run.optimizer or {}).get("tensors") or 0) if case.run is not None else 0.0
    if not tensors or case.roofline is None or trained is None:
        return None
    # Weights are read and written, gradients and state read and the state written, at the memory's ceiling.
    moved = 3 * trained.gradient_bytes + STATE_MOVED[name] * trained.parameters
    moved_ns = 1e9 * moved / case.roofline.ceilings.memory_bytes_per_s
    paged = calibrated.PAGED_HOST_NS.rising if name.startswith("paged") else (0.0, 0.0, 0.0)
    return lambda level: partial(
        _per_tensor,
        host_ns=tensors * (calibrated.EIGHT_BIT_HOST_NS.rising[level] + paged[level]),
        gpu_ns=tensors * calibrated.EIGHT_BIT_GPU_NS.rising[level] + moved_ns,
    )


def _repeats(graph: Graph, share: float) -> Graph:
    """The forward pass a second time, where the backward pass needs it: as long again, on the CPU and the GPU."""
    return scaled(graph, (graph.phase == FORWARD) & ~graph.waits, 1 + share)


def _twice(graph: Graph, smaller: Change) -> Graph:
    """Each pass twice, with half the batch."""
    less = smaller(graph)
    return scaled(less, model_phases(less) & ~less.waits, 2.0)


def _per_tensor(graph: Graph, host_ns: float, gpu_ns: float) -> Graph:
    """The optimizer's step as a kernel for each tensor."""
    own = graph.phase == OPTIMIZER
    for nodes, ns in ((own & graph.on_gpu, gpu_ns), (own & ~graph.on_gpu & ~graph.waits, host_ns)):
        now = float(graph.duration_ns[nodes].sum()) / graph.steps
        if now > 0:
            graph = scaled(graph, nodes, ns / now)
    return graph

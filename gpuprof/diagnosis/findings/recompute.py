"""Gradient checkpointing computes the forward pass twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import memory as memory_calibrated
from gpuprof.calibration import recompute as calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.batch_scaling import FACTORS, indices
from gpuprof.diagnosis.detect.batches.inner_passes import inner_passes
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.kept_ops import kept_of, mean_tokens
from gpuprof.diagnosis.detect.pair.candidates import OWN_WEIGHT, Candidate, is_model_wait
from gpuprof.diagnosis.detect.pair.quantities import kernel_counts, kernel_ns, quantity
from gpuprof.diagnosis.detect.repeated.recomputed_passes import CHECKPOINT, free_bytes, recomputed
from gpuprof.diagnosis.result.fix import Fix, call, code, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_changes import INPUT_BYTES_AN_ELEMENT
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.replay.graph import HOST, Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed
from gpuprof.replay.unprofiled.planning import planning
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.cells import Cell
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.projection.memory.recorded_memory import RecordedMemory


PAGE = Page(
    id="recompute",
    applies=("training",),
    title="Gradient checkpointing repeats the forward pass",
    means="""
Gradient checkpointing keeps only the inputs of each layer and recomputes the rest in the backward pass. It saves
memory and costs up to a third more work. If memory is available, that time is wasted; many recipes enable it by
default.
""",
    detected=f"""
Forward ops that run inside the backward pass, on autograd's thread, with gradients enabled. Whether memory suffices is
estimated from the run's peak and from what autograd would keep of the repeated ops, counted op by op; where they are
not ops of torch, from what they read and write: about {percent(calibrated.SAVED_SHARE.value)} % of that,
{percent(calibrated.SAVED_SHARE.high)} % at most. If no peak was recorded the fix says so, and nothing is advised that
could not fit even into an empty GPU.
""",
    gain=f"""
The repeated ops are removed from the graph, on the CPU and on the GPU, together with the Python code between them; if
checkpointing is an autograd function of its own, also everything it does before its backward pass begins. Checkpointing
without one (`use_reentrant=False`) calls a Python function for every tensor that the forward pass saves and the
backward pass fetches; without it {percent(calibrated.HOOKED_SHARE.value)} % of the forward's and
{percent(calibrated.UNPACKED_SHARE.value)} % of the backward's CPU time is left, except in libraries that plan a kernel
for a new shape, and in passes of a reference model, which save nothing. Plans are cached per thread, so repeating the
forward pass also plans new shapes again: that share of their cost, as recorded, is removed.
""",
    wrong="""
Memory must suffice for the longest batch. Checkpointing only some layers, or keeping only the results of matrix
multiplications (selective checkpointing), gains in proportion to what is no longer repeated.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes the step without its second forward pass, if the memory may suffice."""
    again = recomputed(case)
    if not again.any():
        return
    extra = extra_bytes(case)
    free, size = free_bytes(case)
    if (
        extra is not None
        and size is not None
        and extra[0] > (free if free is not None else calibrated.USABLE_SHARE.value * size)
    ):
        return
    graph = case.graph
    gpu_ns = case.per_step(float(graph.duration_ns[again & graph.on_gpu].sum()))
    host_ns = case.per_step(float(graph.duration_ns[again & ~graph.on_gpu].sum()))
    text = (
        f"{duration(gpu_ns)} of GPU and {duration(host_ns)} of CPU time a step repeat the forward pass inside"
        f" the backward"
    )

    by_loss = inner_passes(case) is not None
    yield Proposal(
        title="a loss that encodes its batch once" if by_loss else "no gradient checkpointing",
        evidence=spans(case, text, again),
        fix=(_ENCODED_ONCE if by_loss else _not_checkpointed(case)) + _memory_text(extra, free, size),
        change=without(case, again, 1),
        best=without(case, again, 0),
        worst=without(case, again, 2),
        lumps=_planned_once(case, again),
        claims=("free_memory",) if _fills(extra, free, size) else (),
    )


_ENCODED_ONCE = (
    code("loss = losses.MultipleNegativesRankingLoss(model)") + "  # in place of its cached form, where all passes fit"
)


def _not_checkpointed(case: Analysis) -> Fix:
    return case.stack.fix(
        without_call(
            "remove model.gradient_checkpointing_enable() or torch.utils.checkpoint",
            "model.gradient_checkpointing_enable",
            "torch.utils.checkpoint",
        ),
        case.stack.setting({case.stack.checkpointing: False}),
        unsloth=call("FastLanguageModel.get_peft_model", ..., use_gradient_checkpointing=False),
    ).by("recompute")


def without(case: Analysis, again: Mask, level: int = 1) -> Change:
    """The graph without the repetition and the hooks that checkpointing needs, at best (0), likely, or at worst (2)."""
    return partial(_once, again=again, hooked=_hooked(case, again), level=level)


def _planned_once(case: Analysis, again: Mask) -> dict[str, float]:
    """Factor on the excess of new shapes: libraries cache plans per thread, so a recomputed pass plans again on
    autograd's thread. Empty if no planning was recorded."""
    graph, nodes = case.graph, planning(case.graph).nodes
    took = np.where(nodes, graph.recorded_end_ns - graph.recorded_start_ns, 0.0)
    whole = float(took.sum())
    return {"new_shapes": 1 - float(took[again].sum()) / whole} if whole else {}


def _absent(case: Analysis) -> str | None:
    if not recomputed(case).any():
        return "no forward work is repeated in the backward pass"
    extra, (free, size) = extra_bytes(case), free_bytes(case)
    room = free if free is not None else calibrated.USABLE_SHARE.value * size if size is not None else None
    if extra is None or room is None:
        return None
    return f"it needs about {extra[0] / 2**30:,.0f} GiB more at the peak, and {room / 2**30:,.0f} GiB are free"


ABSENT = Absent("no gradient checkpointing", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """More or less of the forward pass that is computed again."""
    phases = ("recompute",)
    again = kernel_counts(a, b, (), phases)
    # A model of fewer kernels recomputes fewer: what counts is how much of the forward pass is run again.
    part = quantity(a, b, lambda side: side.counts.count((), phases) / max(side.counts.count((), ("forward",)), 1.0))
    if not (again.fell() and part.fell(least=0.0) and part.more == again.more):
        return
    # Checkpointing without an autograd function of its own hands each saved tensor to a Python function, both ways.
    hooked = not (a if again.a > again.b else b).counts.checkpoint_functions

    def claim(cell: Cell) -> float:
        if cell[2] == "recompute":
            return OWN_WEIGHT
        return again.difference if hooked and is_model_wait(cell) and cell[1] in ("launch", "python") else 0.0

    yield Candidate(
        PAGE.id,
        "recomputation of the forward pass",
        f"kernels that recompute: {again} a step, {kernel_ns(a, b, (), phases).ms} ms of GPU time"
        + (", with hooks around every tensor that is saved" if hooked else ""),
        claim,
        again.more,
    )


def _fills(extra: tuple[float, float] | None, free: float | None, size: float | None) -> bool:
    """Whether the kept activations would fill the GPU with the largest batch that may be proposed together with this:
    then the memory serves one fix or the other."""
    room = free if free is not None else calibrated.USABLE_SHARE.value * size if size is not None else None
    return extra is None or room is None or FACTORS[-1] * extra[1] > room


def _once(graph: Graph, again: Mask, hooked: tuple[Mask, Mask], level: int) -> Graph:
    """Without the repetition, and without the hooks around the ops of forward and backward."""
    shorter = removed(graph, again)
    duration = np.where(again, calibrated.READ_BACK.rising[level] * graph.duration_ns, shorter.duration_ns)
    for nodes, share in zip(
        hooked, (calibrated.HOOKED_SHARE.rising[level], calibrated.UNPACKED_SHARE.rising[level]), strict=True
    ):
        duration = np.where(nodes, share * duration, duration)
    return shorter.with_durations(duration)


def _hooked(case: Analysis, again: Mask) -> tuple[Mask, Mask]:
    """CPU work of forward and of backward in which each saved tensor goes through a Python function: in checkpointing
    that is not an autograd function of its own (whose backward would have its name).

    An op that plans a kernel takes its time in the library, whatever is saved; a pass without a backward pass (a
    reference model's) saves nothing.
    """
    named = case.ops_named(CHECKPOINT.search) & (case.timeline.host.op == BACKWARD)
    graph = case.graph
    host = (graph.resource == HOST) & (graph.lane >= 0) & ~again & (not named.any())
    host &= graph.duration_ns < thresholds_calibrated.PLANNING_NS.value
    host &= inner_passes(case) is None  # nor does a loss that runs the forward pass again itself
    forward = host & (graph.phase == FORWARD) & (graph.lane == case.timeline.main_thread)
    if forward.any() and case.frozen_passes is not None:
        forward &= nodes_in(graph, case.frozen_passes.stretches) < 0
    return forward, host & (graph.phase == BACKWARD)


def extra_bytes(case: Analysis) -> tuple[float, float] | None:
    """(usual, largest) bytes that would have to be kept if nothing is repeated: counted op by op, else from what the
    repeated ops read and write; None if that is unknown as well."""
    return _counted_bytes(case) or _moved_share(case)


def _counted_bytes(case: Analysis) -> tuple[float, float] | None:
    """Bytes that autograd would keep of the recorded ops of the longest pass, minus the layers' inputs, which are kept
    already; None if that cannot be counted."""
    model = (case.run.model if case.run else None) or {}
    micro = case.run.work.micro_steps if case.run and case.run.work.micro_steps else 1.0
    passes = case.steps * case.devices * max(micro, 1.0)
    counted, mean, longest = kept_of(case, model, passes), mean_tokens(case, passes), indices(case)
    if counted is None or not mean or not longest:
        return None
    inputs = (model.get("layers") or 0) * (model.get("hidden_size") or 0) * INPUT_BYTES_AN_ELEMENT * mean
    extra = max(counted.total_bytes - inputs, 0.0) * math.prod(longest) / mean
    return extra, memory_calibrated.KEPT_MAY.high * extra


def _moved_share(case: Analysis) -> tuple[float, float] | None:
    """A share of the bytes that the repeated ops read and write."""
    if case.roofline is None:
        return None
    again = np.zeros(len(case.trace.gpu), bool)
    again[case.timeline.members] = True
    again &= case.timeline.phase == RECOMPUTE
    moved = float(np.nansum(case.roofline.work.traffic_bytes[again])) / case.steps
    micro = case.run.work.micro_steps if case.run and case.run.work.micro_steps else 1.0
    moved /= max(micro, 1.0) * case.devices
    return (calibrated.SAVED_SHARE.value * moved, calibrated.SAVED_SHARE.high * moved) if moved else None


def _memory_text(extra: tuple[float, float] | None, free: float | None, size: float | None) -> str:
    if extra is None:
        return "\n# needs more memory: how much is not known here"
    gib = extra[0] / 2**30
    needs = f"\n# {f'about {gib:,.0f}' if gib >= 1 else 'less than 1'} GiB more memory at the peak"
    if free is not None:
        return f"{needs}, of {max(free, 0) / 2**30:,.0f} GiB that are free"
    return f"{needs}; {f'this GPU has {size / 2**30:,.0f} GiB, but ' if size else ''}the present peak was not recorded"


def less_memory(memory: RecordedMemory, _: float | None) -> Iterator[MemoryFix]:
    """The memory without checkpointing: what the layers then keep."""
    recorded = memory.recorded
    if not recorded.layers or not recorded.hidden or not recorded.checkpointing:
        return
    if recorded.layer_bytes is None:
        why = "what its layers would keep cannot be counted from the recorded ops"
        yield MemoryFix("no_checkpointing", "no gradient checkpointing", None, unknown=why)
        return
    inputs = recorded.layers * recorded.kept_bytes
    without = changes.without_checkpointing(recorded.layers, recorded.layer_bytes, inputs)
    yield MemoryFix("no_checkpointing", "no gradient checkpointing", without)


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """The forward pass that checkpointing recomputes."""
    again = recomputed(case)
    if not again.any():
        return
    by_loss = inner_passes(case) is not None
    yield part_of(
        case.graph,
        without(case, again),
        "the forward pass computed again",
        "a loss encodes its batch part by part, first without gradients"
        if by_loss
        else "gradient checkpointing keeps less memory and computes more",
        kind="memory",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    ledger=LedgerParts(ledger_parts, stage="repeated"),
    same_ops=True,
    memory=MemoryRemedy(("no_checkpointing",), less_memory),
    synonyms=("gradient_checkpointing", "checkpointing", "activation_checkpointing", "recomputation"),
    titles=("no_gradient_checkpointing", "a_loss_that_encodes_its_batch_once"),
)

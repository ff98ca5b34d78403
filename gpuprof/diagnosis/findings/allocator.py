"""Every step allocates memory from the driver, or returns memory to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import allocator as calibrated
from gpuprof.calibration.quoted import less
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_idle
from gpuprof.diagnosis.detect.pair.quantities import idle_ns, quantity
from gpuprof.diagnosis.result.fix import environment, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import SYNC, Graph
from gpuprof.replay.transform import scaled, without_edges
from gpuprof.timeline.cpu.runtime_calls import ALLOCATOR_CALL
from gpuprof.tracefile.trace import ANNOTATION

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts


EMPTY = "torch.cuda.empty_cache"

PAGE = Page(
    id="allocator",
    title="Memory is returned to the driver in every step",
    means="""
torch keeps memory that it got from the driver and reuses it. When it finds no block that fits, or when
`torch.cuda.empty_cache()` is called, it returns memory (`cudaFree`, which waits for the GPU) and requests new memory
(`cudaMalloc`). Either call blocks the CPU for 0.1 to several milliseconds, and nothing is launched meanwhile.
""",
    detected="""
`cudaMalloc`, `cudaFree` and similar calls in every recorded step. At least two steps must be recorded, or the run
must have settled before: the first steps of a training always allocate.
""",
    gain=f"""
The calls do not wait, and {less(calibrated.CALL_TIME_LEFT.value)} % of their own time is removed
({less(calibrated.CALL_TIME_LEFT.high)} to {less(calibrated.CALL_TIME_LEFT.low)} %): in one measured program removing 31
ms of calls gained 13 to 51 ms, in another removing 12 ms gained 0 to 4 ms. Nothing is gained where the CPU was ahead of
the GPU anyway.
""",
    wrong="""
Close to the limit of the GPU's memory the allocator has to return blocks that it cannot use; then only using less
memory helps: a smaller batch, or gradient checkpointing.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes expandable segments, or no empty_cache, if every step allocates."""
    trace, graph = case.trace, case.graph
    calls = trace.rows_named(trace.calls.name, ALLOCATOR_CALL.search)
    nodes = case.nodes_in_calls(calls)
    settled = graph.steps >= 2 or case.run is not None  # a run is recorded once its steps have settled
    if not nodes.any() or len(np.unique(graph.step[nodes])) < graph.steps or not settled:
        return
    own = nodes & ~graph.waits
    free = trace.rows_named(trace.calls.name, lambda text: "Free" in text)
    in_python = ~np.append(trace.ops.kind != ANNOTATION, False)[graph.scope]
    emptied = case.nodes_in_calls(free) & own & in_python
    frees = case.nodes_in_calls(free) & own
    by_hand = bool(frees.any()) and 2 * int(emptied.sum()) >= int(frees.sum())

    def without(left: float) -> Change:
        def change(graph: Graph) -> Graph:
            waits = nodes[graph.edges.target] & (graph.edges.kind == SYNC)
            return scaled(without_edges(graph, waits), own, left)

        return change

    count = len(np.unique(graph.call[nodes])) / graph.steps
    host_ns = case.per_step(float(graph.duration_ns[own].sum()))
    names = sorted({trace.strings[i] for i in np.unique(trace.calls.name[graph.call[nodes]]).tolist()})
    segments = environment("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    segments += "  # before torch 2.9: PYTORCH_CUDA_ALLOC_CONF"
    fix = segments
    if by_hand:
        fix = case.stack.fix(
            without_call("remove torch.cuda.empty_cache() from the training loop", EMPTY),
            case.stack.setting(
                {"torch_empty_cache_steps": None}, note="  # and no torch.cuda.empty_cache() in callbacks"
            ),
            inference=without_call("remove torch.cuda.empty_cache() from the loop", EMPTY),
        )
        fix += "\nor, if memory is short without it: " + segments.otherwise()
    yield Proposal(
        title=f"no empty_cache() in the {case.unit}" if by_hand else "memory kept by the allocator",
        evidence=spans(
            case, f"{count:,.0f} calls of {', '.join(names)} {case.unit.a} take the CPU {duration(host_ns)}", own
        ),
        fix=fix.by("allocator"),
        change=without(calibrated.CALL_TIME_LEFT.rising[1]),
        best=without(calibrated.CALL_TIME_LEFT.rising[0]),
        worst=without(calibrated.CALL_TIME_LEFT.rising[2]),
    )


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer driver calls that allocate or free memory."""
    calls, waits = quantity(a, b, lambda side: side.counts.allocator_calls), idle_ns(a, b, "allocator")
    if calls.fell(least=2.0) and waits.more:
        yield Candidate(
            PAGE.id,
            "memory requested from the driver",
            f"calls that allocate or free: {calls} {a.unit.a}",
            claim_idle("allocator"),
            calls.more,
        )


FINDING = Declaration(
    page=PAGE,
    find=find,
    change=change,
    lowers=("allocating",),
    synonyms=("empty_cache", "expandable_segments", "cudamalloc", "memory_fragmentation"),
    titles=("no_empty_cache_in_the_step", "memory_kept_by_the_allocator"),
)

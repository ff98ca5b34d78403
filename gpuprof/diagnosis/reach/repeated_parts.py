"""Work that a step could do without: reference implementations, repeated work, padding."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gpuprof.calibration import reference as reference_calibrated
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.diagnosis.detect.fewer_tokens import fewer_tokens
from gpuprof.diagnosis.detect.ledger_item import Stage
from gpuprof.diagnosis.detect.loss_head import loss_head
from gpuprof.diagnosis.detect.offloaded import find_offload
from gpuprof.diagnosis.detect.zeroed_work import find_zeroed
from gpuprof.diagnosis.findings import BUILT_IN, missing_kernels, needless_logits, offload, recompute, redundant_forward
from gpuprof.diagnosis.findings.padding import LEAST_PADDING
from gpuprof.diagnosis.reach.part import Part
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Convention, Names

MOST_NAMED: Convention[Names] = 3
"""Most classes of modules that are named."""
_OFFLOADED = dict.fromkeys(("optimizer", "weights", "activations"), "training state in host memory") | {
    "ops": "ops that the CPU computes between two copies",
}


def references(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Ops for which others compute the same result faster; the time of their replacement is the reach."""
    yield from _of_findings(case, advised, "replaced")


def collections(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Python's garbage collection in every step; its time was measured."""
    yield from _of_findings(case, advised, "stalled")


def faster(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Norms, gates and losses in many kernels, and matrix multiplications in float32, in the work that remains."""
    yield from _of_findings(case, advised, "faster")


def _of_findings(case: Analysis, advised: Collection[str], stage: Stage) -> Iterator[Part]:
    """The items that findings declare for a stage of the ledger; plug-ins have none."""
    for one in BUILT_IN:
        item, find = one.ledger, one.find
        if item is None or find is None or item.stage != stage or not (item.unadvised or one.id in advised):
            continue
        for proposal in find(case):
            if proposal.work != 1.0 or (proposal.changes and not item.changes_digits):
                continue
            nodes, left = _shorter(case.graph, proposal.change)
            own, on_gpu = (float(case.graph.duration_ns[mask].sum()) for mask in (nodes, nodes & case.graph.on_gpu))
            yield Part(
                kind="gpu" if 2 * on_gpu > own else "host",
                what=item.what,
                nodes=nodes,
                change=proposal.change,
                reach=left,
                why=item.why,
                findings=(one.id,),
            )
            break


def _shorter(graph: Graph, change: Change) -> tuple[Mask, float]:
    """(the nodes that a change makes shorter, the share of their time that remains)."""
    after = change(graph)
    nodes = after.duration_ns < graph.duration_ns
    own = float(graph.duration_ns[nodes].sum())
    return nodes, float(after.duration_ns[nodes].sum()) / own if own else 0.0


def reference_modules(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Modules for which a library warned that it uses a slow reference implementation."""
    program = case.run.program if case.run else None
    names = sorted({each.name for each in program.reference}) if program else []
    nodes = missing_kernels.modules_nodes(case, names)
    if nodes is None or not nodes.any():
        return
    left = reference_calibrated.LEFT.value
    yield Part(
        kind="gpu",
        what=f"a reference implementation in {', '.join(names[:MOST_NAMED])}",
        nodes=nodes,
        change=lambda graph: scaled(graph, nodes, left),
        reach=left,
        why="the package with its kernel is missing, as the library warns; a kernel is assumed to need a quarter",
        findings=(missing_kernels.PAGE.id,),
    )


def offloaded(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Data kept in host memory although the GPU has room: its copies, and the optimizer on the CPU."""
    found = find_offload(case) if offload.PAGE.id in advised else None
    if found is None:
        return
    for proposal in offload.on_gpu(case, found):
        nodes, left = _shorter(case.graph, proposal.change)
        yield Part(
            kind="memory",
            what=_OFFLOADED[found.kind],
            nodes=nodes,
            change=proposal.change,
            reach=left,
            why="it is copied there and back, or computed there, although it fits on the GPU",
            findings=(offload.PAGE.id,),
        )


def called_again(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Calls of a model that repeat an earlier one in the step, and work that is multiplied by zero."""
    zero = find_zeroed(case)
    if zero is not None:
        named = f", in {', '.join(zero.modules)}" if zero.modules else ""
        yield Part(
            kind="gpu",
            what=f"work that is multiplied by zero{named}",
            nodes=zero.nodes,
            change=lambda graph: removed(graph, zero.nodes),
            why="the loss depends on its result only through a constant zero",
            findings=(redundant_forward.PAGE.id,),
        )
    found = redundant_forward.find_repeated(case)
    if found is None:
        return
    yield Part(
        kind="gpu",
        what=f"the same forward pass again, of {', '.join(found.models)}",
        nodes=found.nodes,
        change=lambda graph: removed(graph, found.nodes),
        why="inputs and weights are the same as in an earlier call of the step",
        findings=(redundant_forward.PAGE.id,),
    )


def recomputed(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """The forward pass that checkpointing recomputes."""
    again = recompute.recomputed(case)
    if not again.any():
        return

    change = recompute.without(case, again)
    nodes, left = _shorter(case.graph, change)
    yield Part(
        kind="memory",
        what="the forward pass computed again",
        nodes=nodes,
        change=change,
        reach=left,
        why="gradient checkpointing keeps less memory and computes more",
        findings=("recompute",),
    )


def unlabelled(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Logits of tokens without a label, and their part of the loss."""
    share, head = needless_logits.labelled_share(case), loss_head(case)
    if share is None or share > needless_logits.MOST_LABELLED or head is None:
        return
    nodes = needless_logits.logits_nodes(case, head)
    if not nodes.any():
        return
    left = needless_logits.left_for(case, share, 1)
    own = float(case.graph.duration_ns[nodes].sum())
    yield Part(
        kind="gpu",
        what=f"logits of tokens without a label, {100 * (1 - share):.0f} % of them",
        nodes=nodes,
        change=lambda graph: scaled(graph, nodes, left),
        reach=float((case.graph.duration_ns * left)[nodes].sum()) / own if own else 0.0,
        why="the output layer and the loss compute logits for every token",
        findings=(needless_logits.PAGE.id,),
    )


def padding(case: Analysis, advised: Collection[str]) -> Iterator[Part]:
    """Tokens that are padding."""
    work = case.run.work if case.run else None
    real = None if work is None else work.real_share
    if real is None and work is not None and work.tokens and work.real_tokens:
        real = work.real_tokens / work.tokens
    if real is None or not case.trains_on_tokens or real >= 1 - LEAST_PADDING:
        return
    graph = case.graph
    nodes = graph.on_gpu & np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))
    yield Part(
        kind="gpu",
        what=f"padding, {100 * (1 - real):.0f} % of the tokens",
        nodes=nodes,
        change=fewer_tokens(case, real),
        reach=real,
        why="rows of a batch are padded to its longest",
        findings=("padding",),
    )

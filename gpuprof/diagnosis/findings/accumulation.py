"""Gradients are accumulated over more passes than memory requires."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.batches.batch_scaling import (
    largest_factor,
    micro_size,
    room_note,
    scaled_batch,
    slower_host,
)
from gpuprof.diagnosis.detect.batches.inner_passes import InnerPasses, inner_passes
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batch_of, micro_batches
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, call, joined
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import model_phases
from gpuprof.record.patches import BATCH
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import SAME_PACE
from gpuprof.replay.transform import removed
from gpuprof.timeline.phases import DATA
from gpuprof.tracefile.trace import I64

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

PAGE = Page(
    id="accumulation",
    applies=("training",),
    title="Gradients are accumulated over small micro-batches",
    means="""
With gradient accumulation an optimizer step runs several forward and backward passes. Every pass launches all kernels
again, reads all weights again, and small kernels do not fill the GPU. Fewer passes over larger micro-batches do the
same training in less time, as long as the activations fit in memory.
""",
    detected="""
Steps with the same number of backward passes, two or more. Not where an optimizer steps between two of them, or the
program writes weights or gradients in place there without autograd (adversarial samples, sharpness-aware minimisation):
these passes are of different weights. The micro-batch is multiplied by each divisor of that number that fits in 90 % of
the GPU's memory, if a run reports its use. The other case is a loss that encodes its batch in parts (the cached losses
of sentence-transformers, GradCache): the same module is called as often in the forward pass as inside one backward
pass, with a backward pass after each of those calls.
""",
    gain="""
The kernels of a pass grow as they do for a larger batch (see `larger_batch`), and the passes that are no longer needed
are removed from the replay. The optimizer, clipping and the time to fetch all samples stay. For parts of a loss, the
smallest parts whose step is within 3 % of the shortest are proposed.
""",
    wrong="""
The optimizer step sees the same samples, so the training stays the same, with two exceptions: batch statistics
(BatchNorm, losses with in-batch negatives see more samples at once) and losses averaged per micro-batch instead of
per token. With padding, a larger micro-batch is padded to its longest sample; length-grouped batches avoid that.
Without a run the free memory is not known.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes the fastest number of passes."""
    inner = inner_passes(case)
    if inner is not None:
        yield from _of_loss(case, inner)
        return
    count = micro_batches(case)
    if count is None or count < 2:
        return
    limit = largest_factor(case)
    number = micro_batch_of(case, count)
    known = [k for k in range(2, count + 1) if count % k == 0 and (limit is None or k <= limit)]
    if not known:
        return
    steps = {k: case.step_of(merged(case, number, count, k, 1)(case.graph)) for k in known}
    factor = min(steps, key=lambda k: steps[k])
    left = count // factor
    samples = micro_size(case)
    size = f"{samples * factor}" if samples else f"{factor} * batch_size"
    before = f"{samples} × {count}" if samples else f"{count} passes"
    after = f"{samples * factor} × {left}" if samples else f"{left}, each {factor} times as large"
    text = (
        f"an optimizer step accumulates {count} passes; {left} over {factor} times the samples would take "
        f"{duration(case.stated(steps[factor]))} of {case.usual_step}"
    )
    room = room_note(case)
    fix = case.stack.fix(
        call("DataLoader", ..., batch_size=Code(size)) + f"  # and accumulate over {left} instead of {count}{room}",
        case.stack.setting({"per_device_train_batch_size": Code(size), "gradient_accumulation_steps": left}, note=room),
        lightning=joined(
            (call("DataLoader", ..., batch_size=Code(size)), call("Trainer", accumulate_grad_batches=left))
        )
        + room,
    )
    yield Proposal(
        title=f"micro-batch {before} → {after}",
        evidence=spans(case, text, model_phases(case.graph) & (case.graph.lane >= 0)),
        # The patch changes the arguments of transformers' trainers; a plain loop must be changed by hand.
        fix=fix.by(BATCH, factor) if case.stack.has("gradient_accumulation_steps") else fix,
        change=merged(case, number, count, factor, 1),
        best=merged(case, number, count, factor, 0),
        worst=slower_host(case, merged(case, number, count, factor, 2)),
        claims=("free_memory",),
    )


def _of_loss(case: Analysis, inner: InnerPasses) -> Iterator[Proposal]:
    """Larger parts of the batch in a loss that encodes it part by part: the smallest that are nearly as fast as any."""
    chosen = _parts_factor(case, inner)
    if chosen is None:
        return
    (factor, step_ns), count = chosen, inner.count
    text = (
        f"the loss encodes a batch in {count} passes {case.unit.a}, and again with gradients; {count // factor} would"
        f" take {duration(case.stated(step_ns))} of {case.usual_step}"
    )
    yield Proposal(
        title=f"parts of the batch in the loss {factor} × as large",
        evidence=spans(case, text, (inner.number >= 0) & (case.graph.lane >= 0)),
        fix=call("CachedMultipleNegativesRankingLoss", ..., mini_batch_size=Code(f"{factor} * mini_batch_size"))
        + f"  # or another loss that caches gradients{room_note(case)}",
        change=_larger_parts(case, inner, factor, 1),
        best=_larger_parts(case, inner, factor, 0),
        worst=slower_host(case, _larger_parts(case, inner, factor, 2)),
        claims=("free_memory",),
        key="parts",
    )


def _parts_factor(case: Analysis, inner: InnerPasses) -> tuple[int, float] | None:
    """(how many parts become one, the step then in ns); None if not even two fit."""
    limit, count = largest_factor(case), inner.count
    known = [k for k in range(2, count + 1) if count % k == 0 and (limit is None or k <= limit)]
    steps = {k: case.step_of(_larger_parts(case, inner, k, 1)(case.graph)) for k in known}
    return next(((k, ns) for k, ns in steps.items() if ns <= (1 + SAME_PACE) * min(steps.values())), None)


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """The time that small parts of a batch in a loss take beyond that of larger parts."""
    inner = inner_passes(case)
    chosen = None if inner is None else _parts_factor(case, inner)
    if inner is not None and chosen is not None:
        yield part_of(
            case.graph,
            _larger_parts(case, inner, chosen[0], 1),
            "passes of a loss over small parts of the batch",
            "larger parts would fit, and each pass launches all kernels again",
        )


def _larger_parts(case: Analysis, inner: InnerPasses, factor: int, level: int) -> Change:
    """The step with `factor` passes of each round merged into one; all else is as it was."""
    inside = inner.number >= 0
    gone = inside & (inner.number % factor != factor - 1) & model_phases(case.graph)
    larger = scaled_batch(case, factor, level)

    def change(graph: Graph) -> Graph:
        grown = np.where(inside, larger(graph).duration_ns, graph.duration_ns)
        return removed(graph.with_durations(grown), gone)

    return change


def merged(case: Analysis, number: I64, count: int, factor: int, level: int) -> Change:
    """The step with `factor` passes merged into one; level: 0 at best, 1 as expected, 2 at worst.

    The last passes stay, since a distributed training communicates in the last one.
    """
    gone = (number >= 0) & (number < count - count // factor) & (model_phases(case.graph) | (case.graph.phase == DATA))
    larger = scaled_batch(case, factor, level)

    def change(graph: Graph) -> Graph:
        return removed(larger(graph), gone)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    same_ops=True,
    ledger=LedgerParts(ledger_parts, stage="repeated"),
    synonyms=("gradient_accumulation", "gradient_accumulation_steps", "micro_batch", "micro_batches"),
    titles=("parts_of_the_batch_in_the_loss_as_large",),
)

"""Numbers for logging are computed from large tensors in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.losses.logged_values import find_logged
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.units import Assumed, Convention, Entries, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_GPU_SHARE: Assumed[Share] = 0.02
"""Smallest share of the GPU's time in such work for a proposal."""
STEPS_A_LINE: Assumed[Steps] = 50
"""Steps from one log line to the next that a person still can follow."""
NAMES_SHOWN: Convention[Entries] = 3

PAGE = Page(
    id="step_metrics",
    title="Numbers for logging are computed in each step",
    means=f"""
Accuracy, entropy, top-k or calibration over all logits of a batch pass several times over the largest tensors of the
step, and reading each value makes the CPU wait. No gradient needs them, and a log line every {STEPS_A_LINE} steps is as
useful.
""",
    detected=f"""
Ops between passes for which the backward pass evaluates nothing (by autograd's numbers; with or without `no_grad`), in
a run that ends with a copy to the CPU and takes at least {percent(LEAST_GPU_SHARE)} % of the GPU's time. A run has no
matrix multiplications, convolutions or attention (a teacher or reference model), no in-place ops on large tensors
(moving averages), no ops on lists of tensors (optimizers, norms of gradients) and no random numbers. It comes after the
last op with gradients, or after the backward pass, so that the loss cannot contain it. Not detected in front of the
loss, in compiled code, and in recordings without autograd's numbers.
""",
    gain=f"""
The ops, their launches, the Python between them and their waits are left in one step of {STEPS_A_LINE}. At worst only
the GPU's work is, and the CPU still waits for values in each step.
""",
    wrong="""
If what is read decides what the program does next (early stopping, a skipped step), it is needed in each step. A mean
over all steps becomes a mean over those that are logged.
""",
    applies=("training",),
)


def find(case: Analysis) -> Iterator[Proposal]:
    """The same numbers in one step of 50."""
    found = find_logged(case)
    if found is None:
        return
    graph = case.graph
    work = found.nodes & graph.on_gpu
    took, whole = (float(graph.duration_ns[mask].sum()) for mask in (work, graph.on_gpu))
    if took < LEAST_GPU_SHARE * whole:
        return
    shape = " × ".join(f"{side:,}" for side in found.largest)
    text = (
        f"{', '.join(found.names[:NAMES_SHOWN])} of tensors up to {shape}, which no gradient needs:"
        f" {duration(case.per_step(took))} of GPU time {case.unit.a} for {found.reads / case.steps:,.3g} values that"
        " the CPU reads"
    )

    def rarely(graph: Graph) -> Graph:
        now = graph.duration_ns
        left = removed(without_waits(graph, found.waits), found.nodes)
        return left.with_durations(np.where(found.nodes, now / STEPS_A_LINE, left.duration_ns))

    yield Proposal(
        title=f"metrics every {STEPS_A_LINE} steps",
        evidence=spans(case, text, found.nodes),
        fix=code(f"if step % {STEPS_A_LINE} == 0:\n    log(metrics(logits.detach(), labels))")
        + "  # computed, not only read, in these steps",
        change=rarely,
        best=rarely,
        worst=lambda graph: scaled(graph, work, 1 / STEPS_A_LINE),
        claims=("values_read",),
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "metrics of large tensors in each step",
        "no gradient needs them: they are only read for a log",
        stage="discarded",
    ),
    lowers=("waiting_for_gpu",),
    same_ops=True,
    synonyms=("metrics_each_step", "logged_metrics", "token_accuracy"),
    titles=("metrics_every_steps",),
)

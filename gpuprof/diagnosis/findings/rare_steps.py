"""Some steps take far longer than the others: they save, evaluate or log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.evidence import spans
from gpuprof.diagnosis.proposal import Page, Proposal
from gpuprof.replay.graph import Graph
from gpuprof.timeline.phases import OTHER

FEWEST = 4
"""Recorded steps of which a rare one can be told; with fewer none is usual."""
LONG = 1.5
"""Times the median; steps that do the same differ by 20 %."""
SHARE = 0.5
"""Part of what a long step takes more that must lie in saving, evaluating, logging: a batch may also just be longer."""

PAGE = Page(
    id="rare_steps",
    title="Saving, evaluating or logging holds the training up",
    means="""
Every so many steps the training writes a checkpoint, evaluates or logs. The GPU does no training in that time, and if
it happens often it costs more than any slow kernel.
""",
    detected="""
Of at least four recorded steps one that takes 1.5 times the median and more, with at least half of what it takes more
in host work that is in none of the phases of a step.
""",
    gain="""
All steps take the median: the mean of the recorded steps is compared with it.
""",
    wrong="""
A recording of few steps that happens to hold a rare one makes it look frequent: compare with how often the training
saves. Steps that were not recorded are not looked at.
""",
)


def find(case: Case) -> Iterator[Proposal]:
    """Rarer or asynchronous saving, where recorded steps show what it costs."""
    graph = case.graph
    if graph.steps < FEWEST:
        return
    each = case.schedule.each_ns
    median, mean = float(np.median(each)), float(each.mean())
    rare = each > LONG * median
    if not rare.any() or median <= 0:
        return
    other = (graph.phase == OTHER) & (graph.lane >= 0) & ~graph.waits
    in_step = np.bincount(graph.step[other], weights=graph.duration_ns[other], minlength=graph.steps)
    extra = in_step - np.median(in_step)
    rare &= extra >= SHARE * (each - median)
    if not rare.any():
        return
    mean = float(np.where(rare | (each <= LONG * median), each, median).mean())
    lost = float((each - median)[rare].sum())
    text = (
        f"{int(rare.sum())} of {graph.steps} recorded steps take {lost / rare.sum() / 1e6:,.0f} ms more than the usual "
        f"{median / 1e6:,.0f} ms, for work outside forward, backward and optimizer"
    )
    yield Proposal(
        title="saving and evaluating less often",
        evidence=spans(case, text, other & rare[graph.step]),
        fix=case.stack.fix(
            "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)  # and fewer evaluations",
            transformers=f'{case.stack.arguments}(save_strategy="epoch", eval_strategy="epoch", save_only_model=True)\n'
            "or larger save_steps, eval_steps and logging_steps",
            lightning="Trainer(val_check_interval=1.0)\nModelCheckpoint(every_n_epochs=1, save_weights_only=True)",
        ),
        change=_unchanged,
        work=mean / median,
    )


def _unchanged(graph: Graph) -> Graph:
    return graph

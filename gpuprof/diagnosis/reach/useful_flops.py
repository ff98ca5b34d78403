"""Useful model FLOPs: without padding, scores that a mask discards, logits of tokens without a label, and what is
computed again or multiplied by zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.attention.masked_scores import masked_kernels, useful_share
from gpuprof.diagnosis.reach.declared_parts import useless_parts
from gpuprof.diagnosis.result.diagnosis import UsefulWork
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import Mask

IN_BATCHES = (
    ("real_share", "tokens", "no attention mask was seen in host memory"),
    (
        "useful_pairs",
        "attention_scores",
        "no mask, positions that start again with each document, or lengths were seen in host memory",
    ),
    ("labelled_share", "labels", "no labels of tokens were seen in host memory"),
)
"""(field of a step's work, what it says, why it is not known)."""


def with_useful_flops(case: Analysis, roof: Roofline) -> Roofline:
    """The roofline with the model FLOPs of useful work, which MFU counts; HFU counts everything that ran. What is not
    known to be useless counts as useful.

    For attention with a mask, the useful share is that of scores within one document; for the rest of the model it is
    that of non-padding tokens, and for each item of the ledger that is useless work what the item says.
    """
    if not roof.model_flops:
        return roof
    timeline, found, useful = case.timeline, roof.work, np.ones(len(case.trace.gpu))
    for kernels, share in _shares(case):
        useful[kernels] = np.minimum(useful[kernels], share)
    if not (useful < 1).any():
        return roof
    flops = np.nan_to_num(found.flops - found.repeated_flops) * (1 - useful)
    rows = timeline.members
    known = rows[(found.dtype[rows] != UNKNOWN) & (flops[rows] > 0)]
    shares = len(timeline.steps.start_ns) * max(len(timeline.devices), 1)
    wasted = np.bincount(found.dtype[known], weights=flops[known], minlength=len(DTYPES)) / shares
    left = {
        dtype: max(all_of_it - float(wasted[DTYPES.index(dtype)]), 0.0) for dtype, all_of_it in roof.model_flops.items()
    }
    return replace(roof, model_flops=left)


def _shares(case: Analysis) -> Iterator[tuple[Mask, float]]:
    """(GPU events, share of their FLOPs that is useful)."""
    phase = case.timeline.phase
    passes = np.isin(phase, (FORWARD, BACKWARD))
    work = case.run.work if case.run and case.trains_on_tokens else None
    if work is not None and work.real_share is not None:
        yield passes & ~case.category("attention"), work.real_share
    pairs = None if work is None else useful_share(case)
    if pairs is not None and pairs < 1:
        yield passes & masked_kernels(case), pairs * (0.5 if case.stack.is_causal else 1.0)
    for part in useless_parts(case):
        kernels = np.zeros(len(case.trace.gpu), bool)
        kernels[case.graph.gpu_row[part.nodes & case.graph.on_gpu]] = True
        yield kernels & (phase != RECOMPUTE), part.useful or 0.0


def useful_work(case: Analysis, roof: Roofline) -> tuple[Roofline, UsefulWork]:
    """The roofline with useful FLOPs alone, their share, and what the recording does not show of them, with the
    reason."""
    found = with_useful_flops(case, roof)
    before, after = (sum(one.model_flops.values()) for one in (roof, found))
    return found, UsefulWork(after / before if before else None, _unknown(case))


def _unknown(case: Analysis) -> dict[str, str]:
    """What is not known of a batch → why."""
    if case.run is None:
        why = "batches are seen only by gpuprof trace"
    elif not case.trains_on_tokens:
        why = "the model is not trained on tokens"
    elif case.run.work.tokens is None:
        why = "no batch of tokens was seen in host memory"
    else:
        return {what: why for field, what, why in IN_BATCHES if getattr(case.run.work, field) is None}
    return {what: why for _, what, _ in IN_BATCHES}

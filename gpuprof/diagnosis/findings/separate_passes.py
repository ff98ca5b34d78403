"""A model is called on one part of the batch after another, where one call takes them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import loops as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.batch_scaling import passes_at_once, slower_host
from gpuprof.diagnosis.detect.batches.compared_pairs import find_compared_pairs
from gpuprof.diagnosis.detect.batches.separate_passes import (
    FEWEST_FROZEN,
    SeparatePasses,
    find_frozen_parts,
    find_separate_passes,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import shorter_walk
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_PASSES_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step's CPU or GPU time in all passes but the first for a proposal."""

PAGE = Page(
    id="separate_passes",
    applies=("training",),
    title="A model runs once for each part of the batch",
    means="""
The model is called separately for the two sentences of a pair, for an anchor, a positive and a negative, for several
views of a picture, for real and generated samples, or for samples in a loop; then one loss takes all results. Every
call launches all kernels again, forward and backward, reads all weights again, and its kernels are smaller. The same
samples in one batch need one call: `model(torch.cat((a, b))).chunk(2)`. The same holds for a function that compares
what a model made with what was wanted: their spectra, features or statistics; and for a frozen encoder that is called
for one frame of a video after another, or for a few tiles of a picture at a time.
""",
    detected=f"""
Before one backward pass the same ops run in the same order two times or more, each time from the lookup of tokens in
the model's largest embedding, or from a convolution of a picture (at most 4 channels) in a model whose convolutions
of the picture's size return another number of channels: a predicted frame may be the next input. All of them record
gradients, and the gradients that are accumulated are those of one model; or of several models of one structure, if
each is called equally often on inputs of a shape of its own (discriminators at several scales). Recurrent cells do not
count, nor passes that the recorder saw repeat the same inputs (see `redundant_forward`). Without gradients
{FEWEST_FROZEN} passes or more, of a model that has no passes with gradients, with no batch loaded in between; each
begins with a convolution of a picture, and no convolution returns as many channels as a picture has.

Or, directly before a loss or a difference of two tensors of one shape, the same ops on the same shapes twice in a row:
at least 8 different ones, none with weights of a layer, the first of them on a tensor of at least half the result's
size and of another shape than the result.
""",
    gain="""
The first pass's kernels take the work of all of them, growing as they do for a larger batch (see `larger_batch`); the
CPU work and the kernels of the others are removed, forward and backward.
""",
    wrong=f"""
If one pass depends on a choice made from the result of another (a sampled token), or on a memory that it returned
(segments of a long text), they cannot be merged: the probability is {percent(calibrated.AT_ONCE.value)} %, or
{percent(calibrated.AT_ONCE_PADDED.value)} % where inputs have different shapes and must be padded to one (assumed).
Batch norms then compute their statistics over all samples together. For a function of two tensors that are compared it
is {percent(calibrated.COMPARED.value)} % (assumed): its matrices are constants, or the second call would need others.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one pass over all parts, and one call for two tensors that are compared; and one pass of a frozen
    model."""
    found = find_separate_passes(case)
    yield from () if found is None else _passes(case, found)
    pairs = find_compared_pairs(case) if found is None else None
    yield from () if pairs is None else _pairs(case, pairs)
    frozen = find_frozen_parts(case)
    yield from () if frozen is None else _passes(case, frozen, frozen=True)


def _pairs(case: Analysis, found: SeparatePasses) -> Iterator[Proposal]:
    """Proposes one call of a function on both sides of a comparison."""
    others, busy = _others(case, found)
    if case.per_step(max(busy)) < LEAST_PASSES_SHARE * case.step_ns:
        return
    pairs = case.per_step(len(found.place) / 2)
    text = (
        f"a function without trained weights runs on both of two tensors, and its results are compared"
        f" ({pairs:,.0f} {case.unit.a}): the second calls take {duration(case.per_step(busy[1]))} of CPU and"
        f" {duration(case.per_step(busy[0]))} of GPU time"
    )
    yield Proposal(
        title="one call for both sides of a comparison",
        evidence=spans(case, text, others),
        fix=code("one, other = features(torch.cat((made, wanted))).chunk(2)")
        + "  # not features(made), features(wanted)",
        change=_at_once(case, found, others, 1),
        best=_at_once(case, found, others, 0),
        worst=slower_host(case, _at_once(case, found, others, 2)),
        odds=calibrated.COMPARED.value,
        needs="the function treats samples one by one",
        key="compared",
    )


def _others(case: Analysis, found: SeparatePasses) -> tuple[Mask, list[float]]:
    """(nodes of all passes but the first, their GPU and their CPU time, ns)."""
    graph = case.graph
    forward, backward = nodes_in(graph, found.stretches), nodes_in(graph, found.backward)
    which = np.where(forward >= 0, forward, backward)
    others = (which >= 0) & (np.append(found.place, 0)[which] > 0)
    return others, [
        float(graph.duration_ns[others & side & ~graph.waits].sum()) for side in (graph.on_gpu, ~graph.on_gpu)
    ]


def _passes(case: Analysis, found: SeparatePasses, frozen: bool = False) -> Iterator[Proposal]:
    """Proposes one pass over all parts of the batch; frozen: of a model that runs without gradients."""
    others, busy = _others(case, found)
    if case.per_step(max(busy)) < LEAST_PASSES_SHARE * case.step_ns:
        return
    shapes = "the same shape" if found.alike else "different shapes"
    took = f"{duration(case.per_step(busy[1]))} of CPU and {duration(case.per_step(busy[0]))} of GPU time {case.unit.a}"
    text = (
        f"a model runs {found.passes} times in a row without gradients, on inputs of {shapes}: the passes after the"
        f" first take {took}"
        if frozen
        else f"the model runs {found.passes} times before each backward pass, on inputs of {shapes}: the passes after"
        f" the first take {took}, forward and backward"
    )
    odds = calibrated.AT_ONCE if found.alike else calibrated.AT_ONCE_PADDED
    padded = "" if found.alike else ", padded to one length"
    yield Proposal(
        title="one pass of a frozen model over all inputs" if frozen else "one pass over all inputs",
        evidence=spans(case, text, others),
        fix=code("with torch.no_grad(): features = encoder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])")
        + f"  # one call for all {found.passes} parts, or a few if memory is short"
        if frozen
        else code(f"results = model(torch.cat(inputs)).chunk({found.passes})")
        + f"  # one call for all {found.passes} parts{padded}",
        change=_at_once(case, found, others, 1),
        best=_at_once(case, found, others, 0),
        worst=slower_host(case, _at_once(case, found, others, 2)),
        odds=odds.value,
        needs="no pass needs what another one returned",
        key="frozen" if frozen else "",
    )


def _at_once(case: Analysis, found: SeparatePasses, others: np.ndarray, level: int) -> Change:
    """The step with one pass; level: 0 at best."""
    graph = case.graph
    left = np.where(found.place > 0, 0.0, 1.0)
    forward, backward = nodes_in(graph, found.stretches), nodes_in(graph, found.backward)
    first = ((forward >= 0) | (backward >= 0)) & ~others & graph.on_gpu
    factor = np.where(first, passes_at_once(case, found.passes, level), shorter_walk(case, found.backward, left))

    def change(graph: Graph) -> Graph:
        return scaled(removed(graph, others), factor != 1.0, factor)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "the model once more for each part of the batch", "one pass over all parts launches and reads weights once"
    ),
    same_ops=True,
    synonyms=(
        "siamese",
        "triplet",
        "concatenated_forward",
        "per_sample_forward",
        "one_call_for_all",
        "perceptual_loss",
        "spectral_loss",
        "frames_one_by_one",
        "multi_scale_discriminator",
    ),
    titles=(
        "one_pass_over_all_inputs",
        "one_pass_of_a_frozen_model_over_all_inputs",
        "one_call_for_both_sides_of_a_comparison",
    ),
)

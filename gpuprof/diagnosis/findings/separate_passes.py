"""A model is called on one part of the batch after another, where one call takes them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuprof.calibration import batch as batch_calibrated
from gpuprof.calibration import loops as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.batch_scaling import passes_at_once, slower_host
from gpuprof.diagnosis.detect.batches.compared_pairs import find_compared_pairs
from gpuprof.diagnosis.detect.batches.separate_passes import SeparatePasses, find_separate_passes
from gpuprof.diagnosis.detect.batches.token_call_groups import (
    FEWEST_CALLS_OF_A_MODEL,
    Text,
    find_alike_calls,
    find_generations,
    resized,
    span_of,
    stretches_of,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import shorter_walk
from gpuprof.diagnosis.result.fix import Code, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import F64, Mask
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
what a model made with what was wanted: their spectra, features or statistics.

The same holds without gradients: log-probabilities of a reference model or scores of a reward model for one sample
after another, and texts that are generated for one prompt after another. `generate` takes all prompts of a batch,
padded on the left, and makes several texts of each (`num_return_sequences`).
""",
    detected=f"""
Before one backward pass the same ops run in the same order two times or more, each time from the lookup of tokens in
the model's largest embedding, or from a convolution of a picture (at most 4 channels) in a model whose convolutions
of the picture's size return another number of channels: a predicted frame may be the next input. All of them record
gradients, and the gradients that are accumulated are those of one model, or of several models of one structure, if each
is called equally often on inputs of a shape of its own (discriminators at several scales). Recurrent cells do not
count, nor passes that the recorder saw repeat the same inputs (see `redundant_forward`).

Or, directly before a loss or a difference of two tensors of one shape, the same ops on the same shapes twice in a row:
at least 8 different ones, none with weights of a layer, the first of them on a tensor of at least half the result's
size and of another shape than the result.

Calls without gradients: two or more of a model on tokens or pictures before one backward pass, one after another, with
the same ops, between which nothing chooses tokens and no loader returns a batch. That they are of one model is known by
the module that reads the batch; without ranges of modules, {FEWEST_CALLS_OF_A_MODEL} calls are enough, or two if the
trained model is called twice as well. Not if a model of pictures returns pictures of the same kind. And texts that are
generated one after another before one backward pass, each by a call on a prompt and calls on one token each; not if
each prompt has room for what was generated before, as in a conversation.
""",
    gain="""
The first pass's kernels take the work of all of them, growing as they do for a larger batch (see `larger_batch`); the
CPU work and the kernels of the others are removed, forward and backward. Of texts the one with the most tokens stays,
and each of its calls takes one token of all of them.
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
    """Proposes one pass over all parts, one call for two tensors that are compared, and one for calls without
    gradients."""
    found = find_separate_passes(case)
    yield from () if found is None else _passes(case, found)
    yield from _texts(case)
    yield from _calls(case)
    pairs = find_compared_pairs(case) if found is None else None
    yield from () if pairs is None else _pairs(case, pairs)


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


def _passes(case: Analysis, found: SeparatePasses) -> Iterator[Proposal]:
    """Proposes one pass over all parts of the batch."""
    others, busy = _others(case, found)
    if case.per_step(max(busy)) < LEAST_PASSES_SHARE * case.step_ns:
        return
    text = (
        f"the model runs {found.passes} times before each backward pass, on inputs of"
        f" {'the same shape' if found.alike else 'different shapes'}: the passes after the first take"
        f" {duration(case.per_step(busy[1]))} of CPU and {duration(case.per_step(busy[0]))} of GPU time {case.unit.a},"
        " forward and backward"
    )
    odds = calibrated.AT_ONCE if found.alike else calibrated.AT_ONCE_PADDED
    padded = "" if found.alike else ", padded to one length"
    yield Proposal(
        title="one pass over all inputs",
        evidence=spans(case, text, others),
        fix=code(f"results = model(torch.cat(inputs)).chunk({found.passes})")
        + f"  # one call for all {found.passes} parts{padded}",
        change=_at_once(case, found, others, 1),
        best=_at_once(case, found, others, 0),
        worst=slower_host(case, _at_once(case, found, others, 2)),
        odds=odds.value,
        needs="no pass needs what another one returned",
    )


def _texts(case: Analysis) -> Iterator[Proposal]:
    """Proposes one generation for all texts that are generated before a backward pass."""
    groups = find_generations(case)
    merged = _merged(case, groups)
    if merged is None:
        return
    same = all(len({text[0].tokens for text in group}) == 1 for group in groups)
    texts = [text for group in groups for text in group]
    at_once = sum(text[0].sequences for text in texts) / len(texts)
    text = (
        f"{case.per_step(float(len(texts))):,.0f} times {case.unit.a} text is generated, for {at_once:,.0f}"
        f" sequence{'s' if at_once > 1 else ''} each time: all but one take"
        f" {duration(case.per_step(merged.host_ns))} of CPU and {duration(case.per_step(merged.gpu_ns))} of GPU time"
    )
    odds = calibrated.AT_ONCE if same else calibrated.AT_ONCE_PADDED
    yield Proposal(
        title="one generation for all prompts",
        evidence=spans(case, text, merged.others),
        fix=call("model.generate", Code("prompts"), attention_mask=Code("mask"), num_return_sequences=Code("..."))
        + "  # all prompts of the batch, padded on the left",
        change=merged.change(1),
        best=merged.change(0),
        worst=slower_host(case, merged.change(2)),
        odds=odds.value,
        needs="no prompt needs what was generated for another",
        key="texts",
    )


def _calls(case: Analysis) -> Iterator[Proposal]:
    """Proposes one call without gradients for several."""
    groups = [[[one] for one in group] for group in find_alike_calls(case)]
    merged = _merged(case, groups)
    if merged is None:
        return
    same = all(len({(one.sequences, one.tokens) for text in group for one in text}) == 1 for group in groups)
    count = case.per_step(float(sum(map(len, groups))))
    text = (
        f"a model is called {count:,.0f} times {case.unit.a} without gradients, on inputs of"
        f" {'the same shape' if same else 'different shapes'}: all but the largest call before each backward pass take"
        f" {duration(case.per_step(merged.host_ns))} of CPU and {duration(case.per_step(merged.gpu_ns))} of GPU time"
    )
    odds = calibrated.AT_ONCE if same else calibrated.AT_ONCE_PADDED
    padded = "" if same else ", padded to one length"
    yield Proposal(
        title="one pass without gradients over all inputs",
        evidence=spans(case, text, merged.others),
        fix=code("results = model(torch.cat(inputs))") + f"  # one call for all parts{padded}, under torch.no_grad()",
        change=merged.change(1),
        best=merged.change(0),
        worst=slower_host(case, merged.change(2)),
        odds=odds.value,
        needs="all calls are of one model, and the memory takes all logits at once",
        key="calls",
    )


class _Merged(NamedTuple):
    """Calls without gradients of which one does the work of all."""

    others: Mask
    """Nodes that go."""
    gpu_ns: float
    """gpu_ns, host_ns: their time."""
    host_ns: float
    growth: F64
    """Of the nodes that stay."""

    def change(self, level: int) -> Change:
        """The step with one call, or one text, for each group; level: 0 at best."""
        factor = np.maximum(self.growth, 1.0) ** batch_calibrated.GROWS.rising[level]

        def then(graph: Graph) -> Graph:
            return scaled(removed(graph, self.others), factor != 1.0, factor)

        return then


def _merged(case: Analysis, groups: Sequence[Sequence[Text]]) -> _Merged | None:
    """All but the longest text of each group merged into that; None if they take no time to speak of."""
    if not groups:
        return None
    graph = case.graph
    kept = [max(group, key=lambda text: (len(text), text[0].sequences * text[0].tokens)) for group in groups]
    rest = [text for group, longest in zip(groups, kept, strict=True) for text in group if text is not longest]
    pairs = [(_span(case, text, group), text) for group in groups for text in group]
    gone = nodes_in(graph, stretches_of(case, [span for span, text in pairs if any(text is one for one in rest)])) >= 0
    gpu_ns, host_ns = (
        float(graph.duration_ns[gone & side & ~graph.waits].sum()) for side in (graph.on_gpu, ~graph.on_gpu)
    )
    if case.per_step(max(gpu_ns, host_ns)) < LEAST_PASSES_SHARE * case.step_ns:
        return None
    calls = [(one, _times(group, text)) for group, text in zip(groups, kept, strict=True) for one in text]
    starts = stretches_of(case, [(int(one.rows[0]), int(one.rows[-1])) for one, _ in calls])
    tokens = np.array([one.sequences * one.tokens for one, _ in calls], np.float64)
    growth = resized(case, starts, tokens, np.array([times for _, times in calls]), [frozenset()] * len(calls))
    stays = nodes_in(graph, stretches_of(case, [span for span, text in pairs if any(text is one for one in kept)])) >= 0
    return _Merged(gone, gpu_ns, host_ns, np.where(stays & graph.on_gpu, growth, 1.0))


def _times(group: Sequence[Text], kept: Text) -> float:
    """How many times its sequences a text has that takes those of all; for single calls, its tokens."""
    if len(kept) > 1:
        return sum(text[0].sequences for text in group) / max(kept[0].sequences, 1)
    return sum(text[0].sequences * text[0].tokens for text in group) / (kept[0].sequences * kept[0].tokens)


def _span(case: Analysis, text: Text, group: Sequence[Text]) -> tuple[int, int]:
    """(first op, last op) of a text; of a single call, what it has in common with another one."""
    if len(text) > 1:
        return span_of(case, text)
    other = next(one for one in group if one is not text)
    return int(text[0].rows[0]), span_of(case, [other[0], text[0]])[1]


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
        "multi_scale_discriminator",
        "num_return_sequences",
        "batched_generation",
    ),
    titles=(
        "one_pass_over_all_inputs",
        "one_call_for_both_sides_of_a_comparison",
        "one_generation_for_all_prompts",
        "one_pass_without_gradients_over_all_inputs",
    ),
)

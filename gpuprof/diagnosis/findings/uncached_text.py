"""Text is generated without a key-value cache: each new token computes the whole text again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import inference as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.token_call_groups import (
    FEWEST_GROWING,
    find_growing_texts,
    resized,
    span_of,
    stretches_of,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_TEXT_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step's GPU time in such calls for a proposal."""

PAGE = Page(
    id="uncached_text",
    title="Each new token computes the whole text again",
    means="""
A loop such as `logits = model(tokens)[:, -1]; tokens = torch.cat((tokens, choice), 1)` gives the model the whole text
for each new token: a text of 500 tokens costs 125,000 tokens instead of 500. Keys and values of earlier tokens do not
change (a token only sees those before it), so they can be kept: with a key-value cache each call takes one token.
`generate` of transformers keeps them, unless `use_cache=False` is set, in the model's configuration too, or gradient
checkpointing turns it off in a model that is in training mode.
""",
    detected=f"""
At least {FEWEST_GROWING} calls of a model without gradients, one after another, each on as many sequences as the one
before and on one token more, by the shapes of the indices that are looked up. Not detected without shapes.
""",
    gain=f"""
What the calls after the first compute with all tokens is computed with one token of each sequence: the kernels shrink
as they do for a smaller batch, and weights are still read whole. Launching takes the CPU
{calibrated.CACHED_HOST.value:g} times as long ({calibrated.CACHED_HOST.low:g} to {calibrated.CACHED_HOST.high:g},
assumed), since keys and values are appended in each layer. So short texts of a small model, whose calls the CPU limits,
gain nothing.
""",
    wrong=f"""
A model in which tokens see later ones (BERT, an encoder) cannot keep them, and a model of one's own may have no cache
yet: the probability is {percent(calibrated.CACHEABLE.value)} % (assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a key-value cache where texts are computed whole for each token."""
    texts = find_growing_texts(case)
    if not texts:
        return
    graph = case.graph
    calls = [(text, at) for text in texts for at in range(1, len(text))]
    later = stretches_of(case, [(int(text[at].rows[0]), span_of(case, text[at - 1 : at + 1])[1]) for text, at in calls])
    tokens = np.array([text[at].tokens for text, at in calls], np.float64)
    sequences = np.array([text[at].sequences for text, at in calls], np.float64)
    sizes = [frozenset((text[at].tokens, text[at].tokens * text[at].sequences)) for text, at in calls]
    factor = resized(case, later, tokens * sequences, 1 / tokens, sizes)
    nodes = nodes_in(graph, later) >= 0
    gpu_ns = float(graph.duration_ns[nodes & graph.on_gpu].sum())
    if gpu_ns < LEAST_TEXT_SHARE * float(graph.duration_ns[graph.on_gpu].sum()):
        return

    def change(level: int) -> Change:
        host = np.where(nodes & ~graph.on_gpu & ~graph.waits, calibrated.CACHED_HOST.rising[level], 1.0)

        def then(graph: Graph) -> Graph:
            return graph.with_durations(graph.duration_ns * factor * host)

        return then

    text = (
        f"{case.per_step(len(calls)):,.0f} calls {case.unit.a} compute a text again that is one token longer, up to"
        f" {max(tokens):,.0f} tokens: {duration(case.per_step(gpu_ns))} of GPU time"
    )
    yield Proposal(
        title="keys and values of earlier tokens kept",
        evidence=spans(case, text, nodes),
        fix=call("model.generate", Code("prompts"), max_new_tokens=Code("..."), use_cache=True)
        + "  # in model.eval(), without gradient checkpointing\nor in your own loop: "
        + call("model", Code("tokens[:, -1:]"), past_key_values=Code("cache"), use_cache=True).otherwise(),
        change=change(1),
        best=change(0),
        worst=change(2),
        odds=calibrated.CACHEABLE.value,
        needs="no token sees later ones, and the model can keep keys and values",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "earlier tokens computed again for each new one", "their keys and values do not change", stage="repeated"
    ),
    same_ops=True,
    synonyms=("use_cache", "past_key_values", "no_cache", "generate_without_cache"),
    titles=("keys_and_values_of_earlier_tokens_kept",),
)

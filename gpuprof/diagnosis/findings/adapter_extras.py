"""LoRA adapters that do more than they have to: DoRA's norms, dropout, adapters on every layer, whole embeddings that
are trained next to them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.token_call_groups import find_generated_texts
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.adapters import LOW_RANK, MOST_RANK, Adapters, adapters_in, find_adapters
from gpuprof.diagnosis.detect.gpu.trained_tables import MOST_TABLES, find_trained_tables
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import Removing, scaled
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_ADAPTER_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step's CPU or GPU work for which a part of the adapters is worth leaving out."""
LEAST_LEFT_OUT: Assumed[Share] = 0.2
"""Smallest share of the step's work, on the CPU or on the GPU, in the adapters that would be left out. The model may
learn less without them, which is not worth a smaller gain."""
MOST_ON_QUERIES_AND_VALUES: Assumed[Share] = 0.6
"""Largest share of adapters on queries and values for a proposal: with more, leaving out the others saves little."""
QUERIES_AND_VALUES: Convention[tuple[tuple[str, str], ...]] = (
    ("q_proj", "v_proj"), ("query", "value"), ("q", "v"), ("to_q", "to_v"), ("q_lin", "v_lin"),
)  # fmt: skip
"""Names that model libraries give the layers that make queries and values."""
NAMES_SHOWN: Convention[Entries] = 6

PAGE = Page(
    id="adapter_extras",
    applies=("training",),
    title="Adapters do more than plain LoRA",
    means="""
A LoRA adapter is two thin matrix multiplications, a scaling and a sum for each layer: four to eight small kernels
forward and more backward, which mostly cost launches. DoRA multiplies the factors into a full weight in each forward
pass, takes the norms of its rows and scales the result by them; with dropout it also multiplies by the base weight a
second time. Dropout on the adapter's input draws random numbers for the whole input, and prevents libraries from
fusing. Adapters on every linear layer cost several times what they cost on queries and values alone. With
`modules_to_save=["embed_tokens", "lm_head"]` the whole embeddings and the whole output layer are trained as well, often
for a few new tokens: hundreds of millions of weights with gradients, clipping and states of the optimizer, next to some
millions in adapters.

While text is generated (GRPO, PPO, an evaluation) each token goes through all adapters, and their launches are a third
to a half of those of a token. Merged into the weights they cost nothing.
""",
    detected=f"""
In the forward pass, `aten::linear` from wide to narrow (at least {LOW_RANK} : 1, rank at most {MOST_RANK}) and the next
one back. DoRA:
such a pair on a unit matrix, the ops after it on tensors of the weight's sizes alone, and the scaling behind the
adapter. Dropout: `aten::dropout` of the adapter's input in front of it. Which layers have adapters is read from the
model's configuration; fewer are proposed only where those that would go take {percent(LEAST_LEFT_OUT)} % of the step's
work, on the CPU or on the GPU. Whole embeddings: the number of trained weights that belong to no adapter
is that of one or two tables of the vocabulary, and most weights that are trained are among them. Needs recorded shapes.
Merged adapters: adapters in calls without gradients that generate text (see `uncached_text`), where nothing unpacks
quantised weights.
""",
    gain=f"""
The ops, their kernels and their backward work are removed, with the Python between those of DoRA. Adapters on queries
and values alone: the time of all adapters shrinks to their share. Whole embeddings: ops on tensors of a table's shape
after the forward pass, a table's share of the optimizer's and clipping's lists of tensors, and matrix multiplications
that give its gradient are removed; at worst, since PEFT still computes a table's gradient for the rows of new tokens,
only the optimizer's and clipping's part. All of these change the training, so they are listed with a probability
(assumed): {percent(calibrated.FEWER_ADAPTERS_ODDS.value)} % that fewer adapters are enough,
{percent(calibrated.PLAIN_LORA_ODDS.value)} % for plain LoRA, {percent(calibrated.NO_DROPOUT_ODDS.value)} % for no
dropout, {percent(calibrated.TOKEN_ROWS_ODDS.value)} % for embeddings that stay as they are.

Merged adapters: their work is removed from all calls, and {calibrated.MERGING.value:g} times
({calibrated.MERGING.low:g} to {calibrated.MERGING.high:g} times, assumed) that of the first call of a step is added for
merging and taking them out again; {percent(calibrated.MERGED_ODDS.value)} % (assumed).
""",
    wrong="""
Fewer adapters learn less: adapters on all layers come closer to full fine-tuning. DoRA is better at low ranks.
A model that learns a new language or many new tokens needs its whole embeddings. Taking merged adapters out again
rounds the weights each time: keep a copy of 16-bit weights, or load them again after some hundred steps.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes plain LoRA, no dropout, adapters on queries and values alone, embeddings that are not trained, or
    adapters that are merged while text is generated."""
    yield from _tables(case)
    yield from _merged(case)
    found = find_adapters(case)
    if found is None:
        return
    yield from _dora(case, found)
    yield from _dropout(case, found)
    yield from _fewer(case, found)


def _dora(case: Analysis, found: Adapters) -> Iterator[Proposal]:
    if _is_small(case, found.dora):
        return
    yield Proposal(
        title="LoRA instead of DoRA",
        evidence=spans(
            case, f"norms and scaling of {found.norms / case.steps:,.0f} weights: {_size(case, found.dora)}", found.dora
        ),
        fix=call("LoraConfig", ..., use_dora=False),
        change=Removing(found.dora),
        changes="adapters have no magnitudes of their own",
        odds=calibrated.PLAIN_LORA_ODDS.value,
        needs="plain LoRA trains as well here",
        key="dora",
    )


def _dropout(case: Analysis, found: Adapters) -> Iterator[Proposal]:
    # Without dropout DoRA does not multiply by the base weight a second time.
    if _is_small(case, found.dropout):
        return
    yield Proposal(
        title="no dropout in adapters",
        evidence=spans(case, f"dropout in front of adapters: {_size(case, found.dropout)}", found.dropout),
        fix=call("LoraConfig", ..., lora_dropout=0.0),
        change=Removing(found.dropout),
        changes="adapters are trained without dropout",
        odds=calibrated.NO_DROPOUT_ODDS.value,
        needs="the data is enough to train without dropout",
        key="dropout",
    )


def _fewer(case: Analysis, found: Adapters) -> Iterator[Proposal]:
    """Adapters on queries and values alone."""
    lora = (case.run.model or {}).get("lora") if case.run else None
    adapted = (lora or {}).get("adapted") or {}
    names = next((pair for pair in QUERIES_AND_VALUES if all(name in adapted for name in pair)), None)
    if names is None:
        return
    share = sum(adapted[name] for name in names) / sum(adapted.values())
    if share > MOST_ON_QUERIES_AND_VALUES or _is_small(case, found.nodes, LEAST_LEFT_OUT / (1 - share)):
        return
    others = [name for name in adapted if name not in names]
    text = (
        f"{found.count / case.steps:,.0f} adapters, also on {', '.join(others[:NAMES_SHOWN])}:"
        f" {_size(case, found.nodes)}"
    )
    yield Proposal(
        title="adapters on queries and values alone",
        evidence=spans(case, text, found.nodes),
        fix=call("LoraConfig", ..., target_modules=list(names)),
        change=partial(scaled, nodes=found.nodes, factor=share),
        changes="fewer layers are trained",
        odds=calibrated.FEWER_ADAPTERS_ODDS.value,
        needs="adapters on queries and values are enough for this task",
        key="fewer",
    )


def _tables(case: Analysis) -> Iterator[Proposal]:
    """Adapters, and the rows of new tokens, in place of whole embeddings and a whole output layer."""
    found = find_trained_tables(case)
    if found is None:
        return
    graph, nodes = case.graph, found.left < 1.0
    gone = case.per_step(float((graph.duration_ns * (1.0 - found.left)).sum()))
    if gone < LEAST_ADAPTER_SHARE * case.step_ns:
        return
    what = "the embeddings and the output layer are" if found.count == MOST_TABLES else "the embeddings are"
    text = (
        f"{what} trained whole next to adapters, {100 * found.share:,.0f} % of all trained weights, {found.rows:,} rows"
        f" {'each' if found.count == MOST_TABLES else 'of them'}: their gradients, clipping and updates take"
        f" {duration(gone)} of GPU time {case.unit.a}"
    )
    rows = {"embed_tokens": Code("new_token_ids")}
    change = partial(scaled, nodes=nodes, factor=found.left)
    yield Proposal(
        title="only new tokens' rows next to adapters",
        evidence=spans(case, text, nodes),
        fix=call("LoraConfig", ..., modules_to_save=None, trainable_token_indices=rows)
        + "  # without new tokens neither of the two",
        change=change,
        best=change,
        worst=partial(scaled, nodes=nodes & found.updates, factor=found.left),
        changes="embeddings and output layer stay as they are, except for new tokens",
        odds=calibrated.TOKEN_ROWS_ODDS.value,
        needs="few tokens are new, or none",
        claims=("optimizer_step",),
        key="tables",
    )


def _merged(case: Analysis) -> Iterator[Proposal]:
    """Adapters that are part of the weights while text is generated."""
    texts = find_generated_texts(case)
    found = adapters_in(case, [one.rows for text in texts for one in text])
    if found is None or _is_small(case, found.nodes) or _unpacks(case):
        return
    graph, once = case.graph, set[int]()
    first = adapters_in(
        case, [text[0].rows for text in texts if not (text[0].interval in once or once.add(text[0].interval))]
    )
    kept = first.nodes if first is not None else np.zeros(len(graph), bool)
    text = (
        f"{found.count / case.steps:,.0f} adapters {case.unit.a} while text is generated, token after token:"
        f" {_size(case, found.nodes)}"
    )

    def change(level: int) -> Change:
        factor = np.where(found.nodes, np.where(kept, calibrated.MERGING.rising[level], 0.0), 1.0)
        return partial(scaled, nodes=found.nodes, factor=factor)

    yield Proposal(
        title="adapters merged while text is generated",
        evidence=spans(case, text, found.nodes),
        fix=call("model.merge_adapter") + "  # before generating\n" + call("model.unmerge_adapter") + "  # after it",
        change=change(1),
        best=change(0),
        worst=change(2),
        changes="texts come from weights in which the adapters are rounded to the weights' format",
        odds=calibrated.MERGED_ODDS.value,
        needs="weights are not quantised",
        key="merged",
    )


def _unpacks(case: Analysis) -> bool:
    """Whether weights are quantised."""
    return bool(case.category("dequantize")[case.timeline.members].any())


def _is_small(case: Analysis, nodes: Mask, share: float = LEAST_ADAPTER_SHARE) -> bool:
    """Whether these nodes are a negligible share of both the CPU's and the GPU's work."""
    ns, gpu = case.graph.duration_ns, case.graph.on_gpu
    least = share * case.step_ns * case.steps
    return max(float(ns[nodes & gpu].sum()), float(ns[nodes & ~gpu].sum())) < least


def _size(case: Analysis, nodes: Mask) -> str:
    ns, gpu = case.graph.duration_ns, case.graph.on_gpu
    on_gpu, on_cpu = (case.per_step(float(np.where(nodes & side, ns, 0.0).sum())) for side in (gpu, ~gpu))
    count = case.per_step(float((nodes & gpu).sum()))
    return (
        f"{count:,.0f} kernels, {duration(on_gpu)} of GPU time and {duration(on_cpu)} of CPU time {case.unit.a},"
        " forward and backward"
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("dora", "lora_dropout", "target_modules", "all_linear", "modules_to_save", "trainable_token_indices",
              "merge_adapter"),
    titles=(
        "lora_instead_of_dora", "no_dropout_in_adapters", "adapters_on_queries_and_values_alone",
        "only_new_tokens_rows_next_to_adapters", "adapters_merged_while_text_is_generated",
    ),
)  # fmt: skip

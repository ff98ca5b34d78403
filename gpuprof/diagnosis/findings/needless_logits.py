"""The output layer and the loss compute logits of tokens that have no label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.fewer_tokens import left_with
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.losses.loss_head import LossHead, loss_head
from gpuprof.diagnosis.detect.losses.unused_rows import MOST_OPS_AFTER, MOST_USED, UnusedRows, find_unused_rows
from gpuprof.diagnosis.detect.pair.candidates import Candidate
from gpuprof.diagnosis.detect.pair.signs import less_loss
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

LEAST_LOGITS_SHARE: Assumed[Share] = 0.1
"""Smallest share of the step that logits take for a proposal if no labels were seen."""
MOST_LABELLED: Assumed[Share] = 0.9
"""Largest share of labelled tokens for a proposal."""

LEAST_UNUSED_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step that all rows of an output layer take for a proposal if most are not used."""

TITLE = "logits of labelled tokens only"
OF_USED_ROWS = "an output layer for the rows that are used"

PAGE = Page(
    id="needless_logits",
    applies=("training",),
    title="Logits are computed for tokens without a label",
    means="""
A language model's output layer multiplies every token by the whole vocabulary, and the loss then ignores those whose
label is -100: prompts, padding, tool output. With a large vocabulary these logits are the largest tensors of the step,
forward and backward. Only tokens with a label need them.

Other programs take the rows that they need after the output layer: the last token of each sample (rerankers, rewards,
choices between answers), or completions without their prompts (DPO, GRPO). The layer still computes all rows, and the
backward pass fills a gradient of all logits with zeros and multiplies it.
""",
    detected=f"""
The recorder counts labels in batches while they lie in host memory; nothing is read from the GPU. If less than
{percent(MOST_LABELLED)} % of the tokens have one, the kernels on logits are found by their shapes: the output layer's
matmuls and everything from the cast to the loss. Where no labels were seen (batches that are made on the GPU,
recordings of torch.profiler alone) and logits take {percent(LEAST_LOGITS_SHARE)} % of the step, the fix is listed under
*Worth trying* with the share of labels that instructions with answers usually have. Rows that are taken after the
layer show in the shapes of the next {MOST_OPS_AFTER} ops: in every call at most {percent(MOST_USED)} % of the rows that
it computed go into any other op than casts, views, slices and a scale.
""",
    gain=f"""
The matmuls and kernels on logits shrink to the share of labelled tokens; reading the layer's weights does not. Finding
and gathering the rows costs none of the gain (up to {percent(calibrated.LABELLED_ROWS.high)} %). A host-bound step
gains nothing. Labels that were not seen: {percent(calibrated.UNSEEN_LABELLED.value)} % of the tokens have one
({percent(calibrated.UNSEEN_LABELLED.low)} to {percent(calibrated.UNSEEN_LABELLED.high)} %), with a probability of
{percent(calibrated.UNSEEN_ODDS.value)} % (assumed).
""",
    wrong="""
A mask of rows (`hidden[labels != -100]`) waits for the GPU to count them; make the indices in the collator instead,
where the labels are in host memory. Metrics of all tokens (entropy, accuracy) need all logits.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute logits of labelled tokens only, or of the rows that a loss uses."""
    unused = _unused(case)
    if unused is not None:
        yield _of_used_rows(case, unused)
        return
    found = _unlabelled(case)
    if found is None:
        yield from _unseen(case)
        return
    share, head, nodes = found
    ns = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    text = (
        f"{100 * (1 - share):,.0f} % of the tokens have no label; all {head.tokens:,} × {head.vocabulary:,} logits"
        f" and their loss take {duration(ns)} of GPU time a step"
    )
    yield _proposal(case, nodes, text, (share, share, share))


def _unused(case: Analysis) -> UnusedRows | None:
    """An output layer that takes enough time and computes rows in vain."""
    found = find_unused_rows(case)
    if found is None:
        return None
    took = case.per_step(float(case.graph.duration_ns[found.nodes].sum()))
    return found if took >= LEAST_UNUSED_SHARE * case.step_ns else None


def _of_used_rows(case: Analysis, found: UnusedRows) -> Proposal:
    took = duration(case.per_step(float(case.graph.duration_ns[found.nodes].sum())))
    text = (
        f"an output layer computes {found.rows:,} × {found.width:,} values a call, and the ops after it take"
        f" {100 * found.share:.2g} % of the rows; all rows take {took} of GPU time {case.unit.a}"
    )
    best, usual, worst = (
        partial(scaled, nodes=found.nodes, factor=left_for(case, found.share, level)) for level in range(3)
    )
    own = code("logits = lm_head(hidden[rows])") + "  # in place of lm_head(hidden)[rows]"
    known = code("model(..., logits_to_keep=n)") + "  # of the last n tokens alone\n# or: "
    return Proposal(
        title=OF_USED_ROWS,
        evidence=spans(case, text, found.nodes),
        fix=known + own if case.stack.from_transformers else own,
        change=usual,
        best=best,
        worst=worst,
        claims=("logits",),
        key="rows",
    )


def _unseen(case: Analysis) -> Iterator[Proposal]:
    """The same where no labels were seen: a usual share of the tokens has one."""
    share, head = labelled_share(case), loss_head(case)
    if share is not None or head is None or not case.trains_on_tokens:
        return
    nodes = logits_nodes(case, head)
    took = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    if took < LEAST_LOGITS_SHARE * case.mean_ns:
        return
    text = (
        f"all {head.tokens:,} × {head.vocabulary:,} logits and their loss take {duration(took)} of GPU time"
        f" {case.unit.a}; no labels were seen in host memory, so how many tokens need them is unknown"
    )
    usual = calibrated.UNSEEN_LABELLED
    proposal = _proposal(case, nodes, text, usual.rising)
    needs = f"{100 * (1 - usual.value):.0f} % of the tokens or more are prompts or padding, with the label -100"
    yield replace(proposal, odds=calibrated.UNSEEN_ODDS.value, needs=needs)


def _proposal(case: Analysis, nodes: Mask, text: str, shares: tuple[float, float, float]) -> Proposal:
    """`shares` of the tokens that have a label: at best, usually, at worst."""
    best, usual, worst = (
        partial(scaled, nodes=nodes, factor=left_for(case, share, level)) for level, share in enumerate(shares)
    )
    return Proposal(
        title=TITLE,
        evidence=spans(case, text, nodes),
        fix=code("hidden = model.model(tokens).last_hidden_state.flatten(0, 1)\nlogits = model.lm_head(hidden[rows])")
        + "  # rows: of tokens whose next one has a label, by the collator\n"
        + code("loss = cross_entropy(logits.float(), labels[rows])"),
        change=usual,
        best=best,
        worst=worst,
        claims=("logits",),
    )


def _unlabelled(case: Analysis) -> tuple[float, LossHead, Mask] | None:
    """(share of tokens with a label, output layer and loss, the GPU's work on logits), where many have none."""
    share, head = labelled_share(case), loss_head(case)
    if share is None or share > MOST_LABELLED or head is None:
        return None
    nodes = logits_nodes(case, head)
    return (share, head, nodes) if nodes.any() else None


def labelled_share(case: Analysis) -> float | None:
    """Share of tokens with a label, 0 to 1; None where no labels were seen in host memory."""
    return case.run.work.labelled_share if case.run else None


def logits_nodes(case: Analysis, head: LossHead) -> Mask:
    """The GPU's work on logits, the output layer's matmuls included."""
    return (head.matmuls | head.rest) & case.graph.on_gpu


def left_for(case: Analysis, share: float, level: int) -> F64:
    """Per node of the graph the share of its time that is left with logits of a share of the tokens. level: 0 at
    best."""
    stays = calibrated.LABELLED_ROWS.rising[level]
    left = np.append(left_with(case, share), 1.0)[case.graph.gpu_row]
    return left + stays * (1 - left)


def _absent(case: Analysis) -> str | None:
    share, head = labelled_share(case), loss_head(case)
    if head is None or not case.trains_on_tokens:
        return None
    return None if share is None else f"{100 * share:.0f} % of the tokens have a label"


ABSENT = Absent(TITLE, _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Less time in the loss, where only the side with more of it computes logits without labels."""
    return less_loss(a, b, PAGE.id, TITLE)


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Logits of tokens without a label, and their part of the loss; rows of an output layer that nothing uses."""
    unused = _unused(case)
    if unused is not None:
        yield _part(
            case,
            unused.nodes,
            unused.share,
            f"rows of the output layer that are not used, {100 * (1 - unused.share):.0f} % of them",
            "the next ops take only some of its rows",
        )
        return
    found = _unlabelled(case)
    if found is None:
        return
    share, _, nodes = found
    yield _part(
        case,
        nodes,
        share,
        f"logits of tokens without a label, {100 * (1 - share):.0f} % of them",
        "the output layer and the loss compute logits for every token",
    )


def _part(case: Analysis, nodes: Mask, share: float, what: str, why: str) -> LedgerPart:
    """An item of the ledger: logits of which a share is needed."""
    left = left_for(case, share, 1)
    own = float(case.graph.duration_ns[nodes].sum())
    return LedgerPart(
        kind="gpu",
        what=what,
        nodes=nodes,
        change=partial(scaled, nodes=nodes, factor=left),
        reach=float((case.graph.duration_ns * left)[nodes].sum()) / own if own else 0.0,
        why=why,
        useful=share,
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    ledger=LedgerParts(ledger_parts, stage="discarded", useless=True),
    synonyms=("logits_to_keep", "num_logits_to_keep", "last_token_logits", "labelled_tokens", "unlabelled_tokens"),
    titles=("logits_of_labelled_tokens_only", "an_output_layer_for_the_rows_that_are_used"),
)

"""The output layer and its loss: logits that no label needs, and a loss that is fused with the layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.above_reach import identity_holds
from helpers.case import only, run_of
from helpers.diagnosed import diagnosed
from helpers.present import present
from helpers.program import BF16, FLOAT, MS, Program

from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.losses.loss_head import fused_linear_ns, loss_head
from gpuprof.diagnosis.findings import fused_elementwise, fused_loss, needless_logits
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.result.run_model import StepWork

ROOT = Path(__file__).parents[2]
TOKENS, HIDDEN, WORDS = 4096, 896, 151_936


def trained(folder: Path, *, words: int = WORDS, head_trained: bool = True, labelled: float | None = None) -> Analysis:
    """20 ms of a model, then logits of 4,096 tokens: 2 ms of matmul, a cast and the loss of 1 ms each, and the same
    backward."""
    made = Program()

    def body():
        for _ in range(10):
            made.mm(TOKENS, HIDDEN, 4 * HIDDEN, gpu=2 * MS)
        made.linear(TOKENS, HIDDEN, words, gpu=2 * MS)
        made.cast([TOKENS, words], BF16, FLOAT, gpu=1 * MS)
        made.plain("cross_entropy_loss", [TOKENS, words], [TOKENS], gpu=1 * MS, type=FLOAT)

        def layer():
            made.plain("_log_softmax_backward_data", [TOKENS, words], [TOKENS, words], gpu=1 * MS, type=FLOAT)
            made.mm(TOKENS, words, HIDDEN, gpu=2 * MS)
            if head_trained:
                made.mm(words, TOKENS, HIDDEN, gpu=2 * MS)

        made.backward(layer, 1)

    for _ in range(3):
        made.step(body)
    run = None
    if labelled is not None:
        work = replace(_nothing(), labelled_share=labelled)
        run = run_of(work=work)
    return made.case(folder, run=run)


def _nothing() -> StepWork:
    return run_of().work


def test_the_head_is_found_by_its_shapes(tmp_path):
    head = loss_head(trained(tmp_path))
    assert head is not None
    assert (head.tokens, head.hidden, head.vocabulary, head.element_bytes) == (TOKENS, HIDDEN, WORDS, 2)
    assert head.trained
    assert head.calls == 1
    frozen = loss_head(trained(tmp_path, head_trained=False))
    assert frozen is not None
    assert not frozen.trained


def test_logits_of_labelled_tokens_take_their_share(tmp_path):
    """A fifth has a label: 2 of the 10 ms on logits are left, plus reading the layer's weights."""
    case = trained(tmp_path, labelled=0.2)
    head, proposal = loss_head(case), only(needless_logits, case)
    assert head is not None
    nodes = needless_logits.logits_nodes(case, head)
    assert case.per_step(case.graph.duration_ns[nodes].sum()) == pytest.approx(9 * MS, rel=0.02)
    left = proposal.change(case.graph).duration_ns[nodes].sum() / case.steps
    assert 0.2 * 9 * MS <= left <= 0.3 * 9 * MS
    assert "80 % of the tokens have no label" in proposal.evidence[0].text
    ledger = above_reach(case, None, ("needless_logits",))
    assert ledger is not None
    assert identity_holds(ledger)
    (item,) = [one for one in ledger.items if one.finding == "needless_logits"]
    assert item.ns == pytest.approx(9 * MS - left, rel=0.05)


def test_where_no_labels_were_seen_they_may_be_few(tmp_path):
    case = trained(tmp_path)
    proposal, known = only(needless_logits, case), only(needless_logits, trained(tmp_path, labelled=0.5))
    assert proposal.odds < 1 and "-100" in proposal.needs
    assert known.odds == 1
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_of(known.change(case.graph)))
    assert case.step_of(present(proposal.best)(case.graph)) < case.step_of(present(proposal.worst)(case.graph))


@pytest.mark.parametrize("labelled", [0.95, 1.0])
def test_where_all_labels_are_there_nothing_is_said(tmp_path, labelled):
    assert not list(needless_logits.find(trained(tmp_path, labelled=labelled)))


def test_chunks_are_those_of_liger(tmp_path):
    """170 times as many words as the layer is wide: rows in powers of two from 4,096 / 170 on are 32, so 128 chunks."""
    head = loss_head(trained(tmp_path))
    assert head is not None
    assert head.chunks == 128
    assert replace(head, tokens=16_384, hidden=2_048, vocabulary=32_000).chunks == 16


def test_a_fused_head_with_many_chunks_takes_longer(tmp_path):
    """Each chunk adds to a gradient of 136 million weights, which alone is 4 bytes of traffic each."""
    case = trained(tmp_path)
    head = loss_head(case)
    assert head is not None
    assert case.roofline is not None
    times = [fused_linear_ns(head, case, level) for level in range(3)]
    assert times == sorted(times)
    gradient = 128 * WORDS * HIDDEN * 4 / case.roofline.ceilings.memory_bytes_per_s * 1e9
    assert times[1] > gradient > 10 * MS
    proposal = only(fused_loss, case)
    assert case.step_of(proposal.change(case.graph)) > case.step_ns + gradient
    frozen = loss_head(trained(tmp_path, head_trained=False))
    assert frozen is not None
    assert fused_linear_ns(frozen, case, 1) < times[1] - gradient


def test_the_forward_pass_takes_all_of_a_fused_loss(tmp_path):
    case = trained(tmp_path)
    head = loss_head(case)
    assert head is not None
    after = only(fused_loss, case).change(case.graph)
    mine = (head.matmuls | head.rest) & case.graph.on_gpu
    assert after.duration_ns[mine].sum() / case.steps == pytest.approx(fused_linear_ns(head, case, 1), rel=1e-6)
    assert np.array_equal(after.duration_ns[~(head.matmuls | head.rest)],
                          case.graph.duration_ns[~(head.matmuls | head.rest)])  # fmt: skip


def test_small_logits_are_left_alone(tmp_path):
    case = trained(tmp_path, words=8_000)
    assert not list(fused_loss.find(case))
    assert fused_loss.ABSENT.why(case) == "logits take 0.24 GiB with their copies"


def test_liger_is_advised_without_its_loss_where_that_is_slower():
    """tf32_off: 896 × 151,936 words; fp32_adapters: 4,096 × 128,256, frozen, where it is quicker."""
    slower = analysis_of(diagnosed(ROOT / "scenarios" / "tf32_off" / "recording"))
    quicker = analysis_of(diagnosed(ROOT / "scenarios" / "fp32_adapters" / "fixed"))
    assert slower is not None
    assert quicker is not None
    assert fused_elementwise._fused_head_is_slower(slower)
    assert not fused_elementwise._fused_head_is_slower(quicker)
    assert "fused_linear_cross_entropy=False" in str(fused_elementwise._liger(True, {"loss"}, fused_elementwise.APART))
    assert "fused_linear_cross_entropy" not in str(fused_elementwise._liger(True, {"loss"}, {}))


def _last_tokens(folder: Path, ops: list[tuple], *, words: int = WORDS) -> Analysis:
    """20 ms of a model, then 2 ms of an output layer for all of 8 × 512 tokens and what is done with its rows; 4 ms of
    matmuls backward."""
    made = Program()

    def body():
        for _ in range(10):
            made.mm(TOKENS, HIDDEN, 4 * HIDDEN, gpu=2 * MS)
        made.linear(TOKENS, HIDDEN, words, gpu=2 * MS)
        for name, *shapes in ops:
            made.plain(name, *shapes, gpu=MS // 50)

        def layer():
            made.mm(TOKENS, words, HIDDEN, gpu=2 * MS)
            made.mm(words, TOKENS, HIDDEN, gpu=2 * MS)

        made.backward(layer, 1)

    for _ in range(3):
        made.step(body)
    return made.case(folder)


ALL, LAST = [8, 512, WORDS], [8, WORDS]
SHIFTED, ANSWERS = [8, 511, WORDS], [8, 128, WORDS]


@pytest.mark.parametrize(
    ("ops", "share"),
    [
        ([("select", ALL, [], []), ("log_softmax", LAST, []), ("gather", LAST, [], [8, 1])], 8 / 4096),
        ([("select", ALL, [], []), ("to", LAST), ("index", LAST, [])], 8 / 4096),
        ([("to", ALL), ("slice", ALL, [], [], [], []), ("log_softmax", ANSWERS, [])], 0.25),
        ([("split", ALL, [], []), *[("log_softmax", [2, 128, WORDS], [])] * 4], 0.25),
    ],
    ids=["the last token", "two words of the last token", "answers", "answers in parts"],
)
def test_rows_that_nothing_uses_are_not_computed(tmp_path, ops, share: float):
    case = _last_tokens(tmp_path, ops)
    proposal = only(needless_logits, case, "rows")
    assert f"{100 * share:.2g} % of the rows" in proposal.evidence[0].text
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(6 * MS * (1 - share), rel=0.1)
    ledger = present(above_reach(case, None, ("needless_logits",)))
    (item,) = [one for one in ledger.items if one.finding == "needless_logits"]
    assert "not used" in item.what and identity_holds(ledger)


@pytest.mark.parametrize(
    "ops",
    [
        [("slice", ALL, [], [], [], []), ("log_softmax", SHIFTED, [])],
        [("select", ALL, [], []), ("log_softmax", LAST, []), ("sum", ALL, [])],
        [("unbind", ALL), *[("log_softmax", [512, WORDS], [])] * 8],
        [("split", ALL, [], [], []), ("mul", [8, 512, 1024], [8, 512, 1024])],
    ],
    ids=["shifted labels", "a sum of all", "row by row", "columns"],
)
def test_rows_that_something_uses_stay(tmp_path, ops):
    assert not [one for one in needless_logits.find(_last_tokens(tmp_path, ops)) if one.key == "rows"]

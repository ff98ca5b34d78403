"""Attention over packed rows whose mask keeps few of the scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import case_of, only, run_of, with_facts
from helpers.program import BF16, MS, Program

from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.attention import attends_packed, has_mask
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import masked_attention
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.reach.useful_flops import useful_work
from gpuprof.diagnosis.result.run_model import StepWork

FORWARD, BACKWARD = (
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_efficient_attention_backward",
)  # fmt: skip
Q, MASK = [1, 16, 32768, 64], [1, 1, 32768, 32768]
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}]


def packed(
    folder: Path, useful: float | None, mask=MASK, layers: int = 1, ms: tuple[float, float, float] = (40, 120, 10)
) -> Analysis:
    """Attention over one row of 32,768 tokens in each layer of a step. ms: attention forward and backward, and a step's
    other work."""
    forward, backward, other = (round(each * MS) for each in ms)
    made = Program()
    for _ in range(3):

        def body():
            types = [BF16] * 4
            made.mm(4096, 4096, 4096, gpu=other // 2)
            dims = [Q, Q, Q, Q, mask, Q, [1, 16, 32768], [], [], [], [], []]
            for _ in range(layers):
                made.op(FORWARD, "fmha_cutlassF_bf16_rf_sm80", forward, [Q, Q, Q, mask, [], [], []], types)
                made.op(BACKWARD, "fmha_cutlassB_bf16_sm80", backward, dims, [BF16] * 7)
            made.mm(4096, 4096, 4096, gpu=other // 2)

        made.step(body)
    path = made.trace.write(folder / "trace.json")
    document = json.loads(path.read_text())
    document["deviceProperties"] = H100
    path.write_text(json.dumps(document))
    work = StepWork(1, 32768, None, 1, useful_pairs=useful)
    return case_of(path, as_recorded=True, run=run_of(work=work))


def test_the_useful_scores_at_the_rate_of_a_kernel_with_lengths(tmp_path):
    case = packed(tmp_path, 1 / 16)
    proposal = only(masked_attention, case)
    assert case.roofline is not None
    rate = case.roofline.ceilings.flops["bf16"]
    forward = 4 * 16 * 32768**2 * 64 / 16 / 2 / (rate * 0.42) * 1e9
    backward = 2.5 * 4 * 16 * 32768**2 * 64 / 16 / 2 / (rate * 0.36) * 1e9
    step = case.step_of(proposal.change(case.graph))
    assert step == pytest.approx(10 * MS + forward + backward, rel=0.05)
    best, worst = proposal.best, proposal.worst
    assert best is not None
    assert worst is not None
    assert case.step_of(best(case.graph)) < step < case.step_of(worst(case.graph)) < case.step_ns
    assert "1 in 16" in proposal.evidence[0].text
    assert "160 ms" in proposal.evidence[0].text


def test_the_measured_gain_of_a_packed_training_lies_in_the_interval(tmp_path):
    """Measured on another program: 2,231 to 372 ms with FlexAttention, 6.0 times; 1,628 of 1,850 ms were attention at
    20 to 26 % of the roofline, with a mask that keeps 1 in 16 scores, the causal half included."""
    case = packed(tmp_path, 2 / 16, layers=20, ms=(23.3, 58.1, 222))
    assert case.roofline is not None
    assert case.step_ns == pytest.approx(1850 * MS, rel=0.01)
    roof = 20 * 3.5 * 4 * 16 * 32768**2 * 64 / case.roofline.ceilings.flops["bf16"] * 1e9
    assert 0.20 < roof / (1628 * MS) < 0.26
    proposal = only(masked_attention, case)
    assert proposal.best is not None and proposal.worst is not None
    low, high = (case.step_ns / case.step_of(change(case.graph)) for change in (proposal.worst, proposal.best))
    assert low < 2231 / 372 < high


@pytest.mark.parametrize(("useful", "mask"), [(None, MASK), (0.9, MASK), (1 / 16, [])])
def test_not_where_all_scores_are_of_use_or_nothing_masks_them(tmp_path, useful, mask):
    """Packing without document marks is the program's choice; the same holds for a row about which no batch says
    anything."""
    assert not list(masked_attention.find(packed(tmp_path, useful, mask)))


def test_what_the_stack_has(tmp_path):
    case = packed(tmp_path, 1 / 16)
    trl = replace(case.stack, kind="trl", fields=frozenset({"packing", "padding_free", "model_init_kwargs"}))
    fix = str(only(masked_attention, with_facts(case, stack=trl)).fix)
    assert "flash_attention_2" in fix
    assert "flex_attention" in fix
    assert "packing=False" in fix or '"packing": False' in fix


def test_lengths_are_no_mask():
    dims = json.dumps([[1024, 16, 64], [1024, 16, 64], [1024, 16, 64], [5], [5]])
    packed = parse("flash_attn::_flash_attn_varlen_forward", dims, json.dumps([BF16] * 3 + ["int"] * 2), None, None)
    assert attends_packed(packed)
    assert not has_mask(packed)
    dense = parse(FORWARD, json.dumps([Q, Q, Q, [1, 1, 32768, 32776]]), json.dumps([BF16] * 4), None, None)
    assert has_mask(dense)
    assert not attends_packed(dense)


def test_mfu_counts_useful_scores_only(tmp_path):
    case = packed(tmp_path, 1 / 16)
    assert case.roofline is not None
    found, known = useful_work(case, case.roofline)
    scores = 4 * 16 * 32768**2 * 64
    useful = (1 + 2.5 - 0.5) * scores / 16 / 2  # a fifth of the backward recomputes the scores
    assert found.model_flops["bf16"] == pytest.approx(2 * 2 * 4096**3 + useful, rel=0.01)
    assert found.hardware_flops == case.roofline.hardware_flops
    assert known.share == pytest.approx(found.model_flops["bf16"] / case.roofline.model_flops["bf16"])
    assert known.unknown.keys() == {"tokens", "labels"}


def test_what_is_not_known_of_the_work_has_a_reason(tmp_path):
    case = packed(tmp_path, None)
    assert case.roofline is not None
    found, known = useful_work(case, case.roofline)
    assert found.model_flops == case.roofline.model_flops and known.share == 1
    assert known.unknown.keys() == {"tokens", "attention_scores", "labels"}
    bare = with_facts(case, run=None)
    assert set(useful_work(bare, case.roofline)[1].unknown.values()) == {"batches are seen only by gpuprof trace"}


def test_scores_that_are_thrown_away_lie_above_reach_advised_or_not(tmp_path):
    found = above_reach(packed(tmp_path, 1 / 16), None, ())
    assert found is not None
    first = found.largest[0]
    assert "mask throws away" in first.what
    assert first.ns > 0.8 * found.usual_ns
    assert first.why is not None


SHORT, ONES = [8, 12, 2048, 64], [8, 1, 2048, 2048]
"""Queries, and a mask that is common to all heads."""


def masked(folder: Path, mask=ONES, work: StepWork | None = None, model: dict[str, str] | None = None) -> Analysis:
    """Attention with a mask in an encoder; the batches' mask was read, and keeps all tokens."""
    made = Program()
    for _ in range(3):

        def body():
            made.op("aten::embedding", "indexSelectLargeIndex", 10_000, [[8192, 768], [8, 2048]], [BF16, "long int"])
            made.op(
                "aten::scaled_dot_product_attention", "fmha_cutlassF_bf16_rf_sm80", 5 * MS,
                [SHORT, SHORT, SHORT, mask, [], [], []], [BF16] * 4, inner=(FORWARD,),
            )  # fmt: skip
            made.mm(4096, 4096, 4096, gpu=5 * MS)

        made.step(body)
    seen = work or StepWork(8, 16384, 16384, 1, real_share=1.0)
    return made.case(folder, replace(run_of(work=seen), model=model or {"class": "Encoder"}))


def test_a_mask_where_no_token_is_padding_may_be_left_out(tmp_path):
    case = masked(tmp_path)
    proposal = only(masked_attention, case, "left_out")
    saved = (1 - 0.7) * 5 * MS
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(saved, rel=0.05)
    assert 0 < proposal.odds < 1 and "hides nothing" in proposal.needs
    assert "2,048 × 2,048" in proposal.evidence[0].text and "attn_mask" in str(proposal.fix)


def test_a_mask_that_may_hide_something_lies_above_reach_only_where_leaving_it_out_is_shown(tmp_path):
    """And it is not said to throw scores away: no token of the batches is padding."""
    case = masked(tmp_path)
    for shown in ((), ("masked_attention",)):
        found = above_reach(case, None, shown)
        assert found is not None
        said = [item.what for item in found.items if "mask" in item.what]
        assert said == ["attention with a mask that may hide nothing"] * len(shown)


@pytest.mark.parametrize("mask", [[2048, 2048], [1, 1, 2048, 2048]])
def test_a_mask_of_all_samples_and_heads_hides_later_positions(tmp_path, mask):
    """It cannot be a padding mask, whatever the batches have."""
    case = masked(tmp_path, mask, StepWork(8, 16384, 12000, 1, real_share=0.73))
    proposal = only(masked_attention, case, "causal")
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(0.5 * 5 * MS, rel=0.05)
    assert "is_causal=True" in str(proposal.fix) and "later positions" in proposal.needs and proposal.odds < 0.9


@pytest.mark.parametrize(
    ("mask", "work", "model"),
    [
        (ONES, StepWork(8, 16384, 12000, 1, real_share=0.73), None),
        ([8, 12, 2048, 2048], None, None),
        (ONES, None, {"class": "Bert", "module": "transformers.models.bert.modeling_bert"}),
        (ONES, StepWork(8, 16384, None, 1), None),
    ],
    ids=["padding", "a bias of each head", "transformers leaves it out itself", "batches of unknown lengths"],
)
def test_not_a_mask_that_may_be_needed(tmp_path, mask, work, model):
    assert not list(masked_attention.find(masked(tmp_path, mask, work, model)))


ONE = [1, 24, 4096, 128]
"""Queries of a picture and its caption, in a batch of one."""


def one_sample(folder: Path, mask: list[int], query: list[int] = ONE, work: StepWork | None = None) -> Analysis:
    """Attention of a diffusion transformer, which reads no tokens of text itself."""
    made = Program()
    for _ in range(3):

        def body():
            made.op(
                "aten::scaled_dot_product_attention", "fmha_cutlassF_bf16_rf_sm80", 5 * MS,
                [query, query, query, mask, [], [], []], [BF16] * 4, inner=(FORWARD,),
            )  # fmt: skip
            made.mm(4096, 4096, 4096, gpu=5 * MS)

        made.step(body)
    return made.case(folder, replace(run_of(work=work or StepWork(1, None, None, 1)), model={"class": "Transformer"}))


@pytest.mark.parametrize(("mask", "odds"), [([1, 1, 1, 4096], 0.8), ([1, 1, 4096, 4096], 0.65)])
def test_a_single_sample_needs_no_mask_for_its_padding(tmp_path, mask, odds):
    case = one_sample(tmp_path, mask)
    proposal = only(masked_attention, case, "left_out")
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(0.3 * 5 * MS, rel=0.05)
    assert proposal.odds == odds and f"{mask[-2]:,} × 4,096" in proposal.evidence[0].text
    assert ("cut the padding" in str(proposal.fix)) == (mask[-2] == 1)


@pytest.mark.parametrize(
    ("mask", "query", "work"),
    [
        ([2, 1, 1, 4096], [2, *ONE[1:]], None),
        ([1, 24, 4096, 4096], ONE, None),
        ([1, 1, 1, 77], ONE, None),
        ([1, 1, 4096, 4096], ONE, StepWork(1, 4096, None, 1, useful_pairs=0.3)),
    ],
    ids=["two samples", "a bias of each head", "few keys", "packed documents"],
)
def test_not_a_mask_of_several_samples_or_heads(tmp_path, mask, query, work):
    case = one_sample(tmp_path, mask, query, work)
    assert not [one for one in masked_attention.find(case) if one.key == "left_out"]

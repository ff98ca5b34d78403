"""LoRA adapters with dropout and with DoRA's norms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.case import only, run_of
from helpers.program import MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.adapters import find_adapters
from gpuprof.diagnosis.findings import adapter_extras

TOKENS, WIDTH, RANK, LAYERS = 2000, 1024, 16, 12
DROPOUT, MATMUL, NORM = 100 * US, 200 * US, 150 * US
ADAPTED = {"q_proj": 1, "v_proj": 1, "k_proj": 1, "o_proj": 1, "up_proj": 2, "down_proj": 2}


def trained(
    tmp_path, dora: bool = False, dropout: bool = True, rank: int = RANK, adapted=None, matmul: int = MATMUL,
) -> Analysis:  # fmt: skip
    """Layers with an adapter each; the GPU is the limit."""
    made = Program()

    def linear(rows: int, wide: int, out: int, gpu: int) -> None:
        made.op("aten::linear", "nvjet", gpu, [[rows, wide], [out, wide], []], ["float", "float", ""])

    def layer() -> None:
        linear(TOKENS, WIDTH, WIDTH, matmul)
        if dropout:
            made.plain("dropout", [TOKENS, WIDTH], [], gpu=DROPOUT)
        if dora:
            made.python(30 * US)
            made.op("aten::eye", "eye", 2 * US)
            linear(WIDTH, WIDTH, rank, 5 * US)
            linear(WIDTH, rank, WIDTH, 5 * US)
            made.plain("linalg_norm", [WIDTH, WIDTH], [], gpu=NORM)
            made.plain("div", [WIDTH], [WIDTH], gpu=2 * US)
        linear(TOKENS, WIDTH, rank, 20 * US)
        linear(TOKENS, rank, WIDTH, 20 * US)
        if dora:
            linear(TOKENS, WIDTH, WIDTH, MATMUL)
            made.plain("mul", [1, WIDTH], [TOKENS, WIDTH], gpu=10 * US)
        made.plain("mul", [TOKENS, WIDTH], [], gpu=10 * US)
        made.plain("add", [TOKENS, WIDTH], [TOKENS, WIDTH], gpu=10 * US)

    def body() -> None:
        made.python(1 * MS)
        for _ in range(LAYERS):
            layer()

    for _ in range(3):
        made.step(body)
    run = replace(run_of(), model={"lora": {"adapted": adapted}}) if adapted else None
    return made.case(tmp_path, run=run)


def shorter(case: Analysis, key: str) -> float:
    """What a proposal saves the GPU per layer, in µs."""
    proposal = only(adapter_extras, case, key)
    assert proposal.changes
    assert proposal.odds < 1
    graph = case.graph
    saved = (graph.duration_ns - proposal.change(graph).duration_ns)[graph.on_gpu].sum()
    return float(saved) / case.steps / LAYERS / US


def test_dropout_in_front_of_adapters(tmp_path):
    case = trained(tmp_path)
    assert shorter(case, "dropout") == pytest.approx(DROPOUT / US, rel=0.02)
    assert [one.key for one in adapter_extras.find(case)] == ["dropout"]


def test_norms_of_dora_and_the_second_product_with_the_base_weight(tmp_path):
    case = trained(tmp_path, dora=True)
    norms = (2 + 5 + 5 + 2) * US + NORM
    assert shorter(case, "dora") == pytest.approx((norms + MATMUL + 10 * US) / US, rel=0.05)
    assert shorter(case, "dropout") == pytest.approx((DROPOUT + MATMUL) / US, rel=0.02)
    found = find_adapters(case)
    assert found is not None and (found.count, found.norms) == (3 * LAYERS, 3 * LAYERS)


def test_adapters_on_queries_and_values_are_a_share_of_all(tmp_path):
    case = trained(tmp_path, dropout=False, adapted=ADAPTED)
    assert shorter(case, "fewer") == pytest.approx(0.75 * 60, rel=0.05)


def test_adapters_that_take_little_of_the_step_stay(tmp_path):
    """60 of 2,060 us a layer of the GPU's time, and a tenth of the step on the CPU."""
    case = trained(tmp_path, dropout=False, adapted=ADAPTED, matmul=2000 * US)
    assert find_adapters(case) is not None
    assert not list(adapter_extras.find(case))


@pytest.mark.parametrize("rank", [512, 1024], ids=["half as wide", "as wide"])
def test_thick_layers_are_no_adapters(tmp_path, rank):
    assert find_adapters(trained(tmp_path, rank=rank)) is None


def test_few_adapters_are_no_subject(tmp_path):
    few = {"q_proj": 1, "v_proj": 1, "k_proj": 1}
    assert not list(adapter_extras.find(trained(tmp_path, dropout=False, adapted=few)))

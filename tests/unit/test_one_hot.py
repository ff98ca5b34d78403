"""One-hot vectors that are multiplied by a table; not where they are also used otherwise, or cost little."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import FLOAT, MATMUL, PLAIN, US, Program

from gpuprof.calibration import kernels
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import one_hot

TOKENS, CLASSES, WIDTH = 8_192, 32_000, 1_024
VECTORS, PRODUCT_NS = 1_000 * US, 8_000 * US


def embedding(folder: Path, between: str = "aten::to", gpu: int = PRODUCT_NS) -> Analysis:
    """A GPU-bound step: vectors, a cast, a multiplication, other work; no backward pass."""
    program = Program()
    vectors = [TOKENS, CLASSES]

    def body():
        program.op("aten::one_hot", PLAIN, min(VECTORS, gpu), [[TOKENS], []], ["long int", "Scalar"])
        program.op(between, PLAIN, min(VECTORS, gpu), [vectors, []], ["long int", "Scalar"])
        program.op("aten::matmul", MATMUL, gpu, [vectors, [CLASSES, WIDTH]], [FLOAT, FLOAT])
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_it_is_a_lookup_of_rows(tmp_path: Path):
    case = embedding(tmp_path)
    proposal = only(one_hot, case)
    rate = present(case.roofline).ceilings.memory_bytes_per_s * kernels.FUSED_MEMORY.value / 1e9
    saved = 2 * VECTORS + PRODUCT_NS - 2 * 4 * TOKENS * WIDTH / rate
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(saved, rel=0.01)
    assert "8,192 one-hot vectors of 32,000" in proposal.evidence[0].text and "embedding" in str(proposal.fix)


def quantizer(folder: Path, product: list[list[int]], indices: int = 1) -> Analysis:
    """A GPU-bound step: vectors by scatter_, their counts, and a multiplication of two shapes."""
    program = Program()
    vectors = [TOKENS, CLASSES]

    def body():
        program.op("aten::scatter_", PLAIN, VECTORS, [vectors, [], [TOKENS, indices], []], [FLOAT, "", "long int", ""])
        program.plain("sum", vectors, [], gpu=VECTORS, type=FLOAT)
        program.op("aten::matmul", MATMUL, PRODUCT_NS, product, [FLOAT, FLOAT])
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize(
    ("product", "indices", "op"),
    [
        ([[TOKENS, CLASSES], [CLASSES, WIDTH]], 1, "embedding"),
        ([[WIDTH, TOKENS], [TOKENS, CLASSES]], 1, "index_add_"),
        ([[TOKENS, CLASSES], [CLASSES, WIDTH]], 2, ""),
        ([[TOKENS, WIDTH], [WIDTH, CLASSES]], 1, ""),
    ],
)
def test_vectors_of_a_quantizer(tmp_path: Path, product: list[list[int]], indices: int, op: str):
    """Rows that are read, and rows that are summed by code; not of two codes each, nor of another multiplication."""
    found = list(one_hot.find(quantizer(tmp_path, product, indices)))
    assert len(found) == bool(op)
    for one in found:
        assert op in str(one.fix) and "8,192 one-hot vectors of 32,000" in one.evidence[0].text


@pytest.mark.parametrize(("between", "gpu"), [("aten::mul", PRODUCT_NS), ("aten::to", 20 * US)])
def test_not_of_vectors_that_are_changed_or_cost_little(tmp_path: Path, between: str, gpu: int):
    assert not list(one_hot.find(embedding(tmp_path, between, gpu)))


def loss(folder: Path, mixed: bool = False, product: str = "mul", gpu: int = 1_000 * US) -> Analysis:
    """A smoothed target that is multiplied by log-probabilities and summed; `mixed`: of two labels."""
    program = Program()
    wide = [TOKENS, CLASSES]

    def body():
        for _ in range(2 if mixed else 1):
            program.op("aten::one_hot", PLAIN, gpu, [[TOKENS], []], ["long int", "Scalar"])
            program.op("aten::to", PLAIN, gpu, [wide, []], ["long int", "Scalar"])
            program.plain("mul", wide, [], type=FLOAT, gpu=gpu)
        program.plain("log_softmax", wide, [], type=FLOAT, gpu=gpu)
        program.plain(product, wide, wide, type=FLOAT, gpu=gpu)
        program.plain("sum", wide, [], type=FLOAT, gpu=gpu)
        for _ in range(10):
            program.small_mm(20 * US, 1_000 * US)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_a_loss_of_labels_reads_log_probabilities_once_more(tmp_path: Path):
    case = loss(tmp_path)
    proposal = only(one_hot, case, "loss")
    rate = present(case.roofline).ceilings.memory_bytes_per_s * kernels.FUSED_MEMORY.value / 1e9
    saved = 5_000 * US - 4 * TOKENS * CLASSES / rate
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(saved, rel=0.01)
    assert "8,192 × 32,000" in proposal.evidence[0].text and "label_smoothing" in str(proposal.fix)


@pytest.mark.parametrize(("mixed", "product", "gpu"), [(True, "mul", 1_000 * US), (False, "add", 1_000 * US),
                                                       (False, "mul", 10 * US)])  # fmt: skip
def test_not_a_loss_of_mixed_labels_of_no_product_or_that_costs_little(tmp_path: Path, mixed, product, gpu):
    assert not list(one_hot.find(loss(tmp_path, mixed, product, gpu)))

"""One-hot vectors that are multiplied by a table; not where something else is made of them, or it costs little."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import FLOAT, PLAIN, PRODUCT, US, Program

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
        program.op("aten::matmul", PRODUCT, gpu, [vectors, [CLASSES, WIDTH]], [FLOAT, FLOAT])
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


@pytest.mark.parametrize(("between", "gpu"), [("aten::mul", PRODUCT_NS), ("aten::to", 20 * US)])
def test_not_of_vectors_that_are_changed_or_cost_little(tmp_path: Path, between: str, gpu: int):
    assert not list(one_hot.find(embedding(tmp_path, between, gpu)))

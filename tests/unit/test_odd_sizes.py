"""Matrix multiplications that are slow because of a layer's size; not with odd numbers of tokens, nor where they are
fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import BF16, MATMUL, MS, Program

from gpuprof.calibration import kernels
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.kernel_reach import kernel_reach
from gpuprof.diagnosis.findings import odd_sizes

TOKENS, WIDTH = 8_192, 1_024


def output_layer(folder: Path, tokens: int, vocabulary: int, gpu: int) -> Analysis:
    """An output layer and its two matmuls backward, each of `gpu` ns, and 20 ms of other work."""
    program = Program()
    types = [BF16, BF16]

    def body() -> None:
        program.linear(tokens, WIDTH, vocabulary, 1_000, BF16)
        program.op("aten::mm", MATMUL, gpu, [[tokens, WIDTH], [WIDTH, vocabulary]], types)
        program.op("aten::mm", MATMUL, gpu, [[vocabulary, tokens], [tokens, WIDTH]], types)
        program.op("aten::mm", MATMUL, gpu, [[tokens, vocabulary], [vocabulary, WIDTH]], types)
        for _ in range(20):
            program.op("aten::mul", "elementwise", 1 * MS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_a_vocabulary_is_rounded_up(tmp_path: Path):
    case = output_layer(tmp_path, TOKENS, 50_257, 10 * MS)
    proposal = only(odd_sizes, case)
    reach = kernel_reach(case.timeline, present(case.roofline)).reach_ns
    slow = kernel_reach(case.timeline, present(case.roofline)).slow
    usual = float(reach[slow].sum()) / 3
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(30 * MS - kernels.ALIGNED_LEFT.value * usual, rel=0.02)
    assert "3 matrix multiplications a step have a size such as 50,257" in proposal.evidence[0].text
    assert "50304" in str(proposal.fix) or "50,304" in str(proposal.fix)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "gpu"),
    [(TOKENS, 50_304, 10 * MS), (8_191, 50_304, 10 * MS), (TOKENS, 50_257, 1 * MS)],
)
def test_not_for_other_reasons(tmp_path: Path, tokens: int, vocabulary: int, gpu: int):
    assert not list(odd_sizes.find(output_layer(tmp_path, tokens, vocabulary, gpu)))

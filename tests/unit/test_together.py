"""Two fixes of which neither gains alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Proposal
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, predict
from gpuprof.diagnosis.fixes.together import as_one, best_pair
from gpuprof.diagnosis.result.fix import code
from gpuprof.replay.transform import scale

KERNELS = 100


def balanced(tmp_path, cpu: int = 100 * US) -> Analysis:
    """10 ms of kernels, which the CPU takes as long to launch."""
    program = Program()

    def body() -> None:
        for _ in range(KERNELS):
            program.small_mm(cpu, 100 * US)

    for _ in range(4):
        program.step(body, sync=True)
    return program.case(tmp_path)


FASTER_GPU = Proposal(
    "less padding", (), code("pad()"), lambda graph: scale(graph, device=0.5), claims=("padded_rows",)
)
FASTER_CPU = Proposal("input workers", (), code("workers=2"), lambda graph: scale(graph, host=0.5))
LARGER = replace(FASTER_CPU, work=2.0)


def test_both_limits_at_once(tmp_path):
    case = balanced(tmp_path)
    alone = [predict(case, one).expected for one in (FASTER_GPU, FASTER_CPU)]
    assert min(alone) * LEAST_GAIN > case.mean_ns
    pair = best_pair(PredictedSteps(case), [("input_workers", FASTER_CPU), ("padding", FASTER_GPU)])
    assert pair == (("padding", FASTER_GPU), ("input_workers", FASTER_CPU))
    both = as_one(FASTER_GPU, FASTER_CPU)
    assert both.parts == ("less padding", "input workers")
    assert str(both.fix) == "pad()\nand\nworkers=2"
    assert both.odds < 1


@pytest.mark.parametrize(
    "other",
    [LARGER, replace(FASTER_CPU, claims=("padded_rows",)), replace(FASTER_CPU, parts=("a", "b"))],
    ids=["a larger batch", "competes", "a chain already"],
)
def test_what_makes_no_pair(tmp_path, other: Proposal):
    assert best_pair(PredictedSteps(balanced(tmp_path)), [("one", other), ("padding", FASTER_GPU)]) is None


def test_where_one_is_the_limit_the_other_adds_nothing(tmp_path):
    """The CPU takes 30 ms, so that saving GPU time makes no difference."""
    small = replace(FASTER_CPU, change=lambda graph: scale(graph, host=0.97))
    assert best_pair(PredictedSteps(balanced(tmp_path, 300 * US)), [("one", small), ("padding", FASTER_GPU)]) is None

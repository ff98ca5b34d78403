"""Two fixes of which neither gains alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Proposal
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, predict
from gpuprof.diagnosis.fixes.together import as_one, best_follower, best_pair, relief, small_ones
from gpuprof.diagnosis.result.fix import code
from gpuprof.replay.transform import scale
from gpuprof.value_range import Range

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
    pair = best_pair(PredictedSteps(case), relief(case, [("input_workers", FASTER_CPU), ("padding", FASTER_GPU)]))
    assert pair == (("padding", FASTER_GPU), ("input_workers", FASTER_CPU))
    both = as_one([FASTER_GPU, FASTER_CPU], "both", 0.85)
    assert both.parts == ("less padding", "input workers")
    assert str(both.fix) == "pad()\nand\nworkers=2"
    assert both.odds < 1


@pytest.mark.parametrize(
    "other",
    [LARGER, replace(FASTER_CPU, claims=("padded_rows",)), replace(FASTER_CPU, parts=("a", "b"))],
    ids=["a larger batch", "competes", "a chain already"],
)
def test_what_makes_no_pair(tmp_path, other: Proposal):
    case = balanced(tmp_path)
    assert best_pair(PredictedSteps(case), relief(case, [("one", other), ("padding", FASTER_GPU)])) is None


def test_where_one_is_the_limit_the_other_adds_nothing(tmp_path):
    """The CPU takes 30 ms, so that saving GPU time makes no difference."""
    small = replace(FASTER_CPU, change=lambda graph: scale(graph, host=0.97))
    case = balanced(tmp_path, 300 * US)
    assert best_pair(PredictedSteps(case), relief(case, [("one", small), ("padding", FASTER_GPU)])) is None


def test_the_second_limit_is_relieved_once_the_first_is(tmp_path):
    """The CPU takes 20 ms: a faster GPU gains only after the CPU is faster, and nothing once it does not matter."""
    case = balanced(tmp_path, 200 * US)
    steps, ruled_out = PredictedSteps(case), relief(case, [("padding", FASTER_GPU), ("competes", LARGER)])
    much, little = (replace(FASTER_CPU, change=lambda graph, to=to: scale(graph, host=to)) for to in (0.4, 0.9))
    assert best_follower(steps, ("input_workers", much), ruled_out) == ("padding", FASTER_GPU)
    assert best_follower(steps, ("input_workers", little), ruled_out) is None
    assert best_follower(steps, ("input_workers", LARGER), ruled_out) is None
    unsure = relief(case, [("padding", replace(FASTER_GPU, odds=0.8))])
    assert best_follower(steps, ("input_workers", much), unsure) is None
    assert best_follower(steps, ("other", replace(much, claims=FASTER_GPU.claims)), ruled_out) is None


SMALL = Range(1.0, 1.03, 1.05)


def test_small_gains_that_add_up_are_one_fix():
    """Of fixes that gain too little each; not those that are less than noise, nor two in each other's way."""
    few = [(("one", FASTER_GPU), SMALL), (("two", FASTER_CPU), Range(1.0, 1.04, 1.05))]
    less = (("three", replace(FASTER_CPU, title="less")), Range(1.0, 1.005, 1.01))
    assert [name for name, _ in small_ones([*few, less])] == ["two", "one"]
    assert small_ones([few[0], less]) == [] and small_ones([]) == []
    competing = (("two", replace(FASTER_CPU, claims=FASTER_GPU.claims)), SMALL)
    assert small_ones([few[0], competing]) == []


@pytest.mark.parametrize("other", [{"odds": 0.8}, {"needs": "luck"}, {"work": 2.0}, {"once_ns": (1e9, 1e9, 1e9)}])
def test_no_small_gain_of_an_entry_has_a_condition(other):
    found = [(("one", FASTER_GPU), SMALL), (("two", replace(FASTER_CPU, **other)), SMALL)]
    assert small_ones(found) == []

"""Two fixes of which neither gains alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Proposal
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, predict
from gpuprof.diagnosis.fixes.together import as_one, best_pair, gains_after, small_ones
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
    pair = best_pair(PredictedSteps(case), [("input_workers", FASTER_CPU), ("padding", FASTER_GPU)])
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
    assert best_pair(PredictedSteps(balanced(tmp_path)), [("one", other), ("padding", FASTER_GPU)]) is None


def test_where_one_is_the_limit_the_other_adds_nothing(tmp_path):
    """The CPU takes 30 ms, so that saving GPU time makes no difference."""
    small = replace(FASTER_CPU, change=lambda graph: scale(graph, host=0.97))
    assert best_pair(PredictedSteps(balanced(tmp_path, 300 * US)), [("one", small), ("padding", FASTER_GPU)]) is None


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


LESS_GPU = replace(FASTER_GPU, title="fused loss", change=lambda graph: scale(graph, device=0.3))
LITTLE_CPU = replace(FASTER_CPU, title="no hooks", change=lambda graph: scale(graph, host=0.8))


def test_what_gains_once_the_gpu_is_faster(tmp_path):
    """The GPU takes 10 ms and the CPU 6: less CPU work gains once the GPU takes 3."""
    case = balanced(tmp_path, 60 * US)
    steps, first, later = PredictedSteps(case), [("fused_loss", LESS_GPU)], [("debug_switches", LITTLE_CPU)]
    assert predict(case, LITTLE_CPU).expected * LEAST_GAIN > case.mean_ns
    assert gains_after(steps, first, later) == (first[0], later[0])
    unsure = [("debug_switches", replace(LITTLE_CPU, odds=0.8))]
    competes = [("debug_switches", replace(LITTLE_CPU, claims=FASTER_GPU.claims))]
    assert gains_after(steps, first, unsure) is None and gains_after(steps, first, competes) is None
    assert gains_after(steps, [], later) is None and gains_after(steps, later, later) is None


def test_what_gains_nothing_after_it_either(tmp_path):
    """The CPU takes 3 ms and the GPU 3 after the fix: a CPU twice as fast adds nothing."""
    steps = PredictedSteps(balanced(tmp_path, 20 * US))
    assert gains_after(steps, [("fused_loss", LESS_GPU)], [("debug_switches", FASTER_CPU)]) is None

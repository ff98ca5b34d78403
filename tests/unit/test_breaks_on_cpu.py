"""Graph breaks whose CPU work varies: NumPy in a compiled model, on a machine that other processes use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.compiled.compiled_regions import broken_at
from gpuprof.diagnosis.findings import graph_breaks
from gpuprof.replay.mean_step import PAUSES, VARIATION, MeanStep
from gpuprof.replay.variation import variation_left
from gpuprof.report.words import compiler_words


def case_of(name: str) -> Analysis:
    case = analysis_of(diagnosed(ROOT / "scenarios" / "programs" / name / "recording"))
    assert case is not None
    return case


@pytest.fixture(scope="module")
def numpy_case() -> Analysis:
    return case_of("breaks_numpy")


def test_what_a_graph_computes_on_the_cpu_goes_with_the_break(numpy_case: Analysis):
    """In one of the three recorded steps a kernel for the CPU took 4 ms longer; launches took as long in each."""
    graph, (broken,) = numpy_case.graph, broken_at(numpy_case)
    computed, launches = (
        np.bincount(graph.step[nodes], weights=graph.duration_ns[nodes]) for nodes in (broken.gone, broken.call >= 0)
    )
    assert computed[0] > 2 * computed[1:].max()
    assert launches.max() < 1.1 * launches.min()


def test_the_variation_that_lies_there_goes_with_it(numpy_case: Analysis):
    proposal = next(one for one in graph_breaks.find(numpy_case) if one.key == "joined")
    assert 0 < proposal.lumps[VARIATION] == proposal.lumps[PAUSES] < 0.5
    bare = replace(proposal, lumps={})
    then, as_before = (
        numpy_case.mean.of(one.change(numpy_case.graph), lumps=one.lumps or None) for one in (proposal, bare)
    )
    assert then < 0.85 * as_before


def test_only_steps_that_vary_say_where_the_variation_lies(numpy_case: Analysis):
    graph, host = numpy_case.graph, numpy_case.graph.lane >= 0
    assert variation_left(graph, graph) == 1
    assert variation_left(graph, graph.with_durations(np.where(host, 0.0, graph.duration_ns))) == 0
    half = graph.with_durations(np.where(host, graph.duration_ns / 2, graph.duration_ns))
    assert variation_left(graph, half) == pytest.approx(0.5)
    steady = case_of("breaks_disabled").graph
    assert variation_left(steady, steady.with_durations(np.zeros(len(steady)))) == 1


def test_a_mean_step_with_less_variation(numpy_case: Analysis):
    graph = numpy_case.graph
    mean = MeanStep(graph, usual_ns=10e6, mean_ns=14e6, lumps_ns={PAUSES: 2e6})
    now = mean.simulated(graph)
    assert mean.of_step(now) == pytest.approx(14e6)
    assert mean.of_step(now, lumps={VARIATION: 0.5}) == pytest.approx(13e6)
    assert mean.of_step(now / 2, lumps={VARIATION: 0.0, PAUSES: 0.0}) == pytest.approx(5e6)


def test_each_break_is_named_with_its_way_out(numpy_case: Analysis):
    said = compiler_words.lines(diagnosed(ROOT / "scenarios" / "programs" / "breaks_numpy" / "recording"))
    assert "train.py:15" in said[0] and "partition" in said[0] and "torch instead of NumPy" in said[0]
    assert "number of a layer" in said[1]

"""Graphs that are simulated together have the steps that they have alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from helpers.paths import ROOT

import gpuprof
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.replay.graph import Graph
from gpuprof.replay.several_steps import AT_ONCE, SimulatedTogether, simulate_steps
from gpuprof.replay.simulate import ROUNDS, simulate, step_of
from gpuprof.replay.transform import removed, scale, without_waits
from gpuprof.tracefile.remembered import is_remembered


@pytest.fixture(scope="module")
def graph() -> Graph:
    case = analysis_of(gpuprof.diagnose(ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz"))
    assert case is not None
    return case.graph


def changed(graph: Graph) -> list[Graph]:
    """Other durations, other lags, and both; more than are simulated at once."""
    some = np.zeros(len(graph), bool)
    some[::7] = True
    return [
        scale(graph, host=0.5), scale(graph, device=2.0), without_waits(graph, graph.waits), removed(graph, some),
        scale(removed(graph, some), host=0.3), scale(graph, host=0.0),
    ]  # fmt: skip


def test_each_has_the_step_that_it_has_alone(graph: Graph):
    assert graph.edges.from_start.any(), "starts are read, too"
    some = changed(graph)
    assert len(some) % AT_ONCE, "the last ones fill no register"
    simulate_steps(some)
    assert all(is_remembered(step_of, one) for one in some)
    alone = [simulate(one, ROUNDS).step_ns for one in some]
    assert [step_of(one) for one in some] == alone
    assert len(set(alone)) == len(alone)


def test_a_step_that_is_awaited_early_is_simulated_then(graph: Graph):
    some, together = changed(graph), SimulatedTogether(graph)
    waits = [together.begin(one, partial(step_of, one)) for one in some]
    assert waits[-1]() == simulate(some[-1], ROUNDS).step_ns
    assert [wait() for wait in waits] == [simulate(one, ROUNDS).step_ns for one in some]

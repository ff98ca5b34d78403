"""Energy of a step with a fix: the power of waiting for the length of the step, plus the energy of the GPU's work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

from benchmarks.fix_energy import FixEnergy, Measured, _with_times, summary
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.fixes.step_energy import StepEnergy, step_energy
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.replay.graph import TRANSFER
from gpuprof.report.page.fix_cards import cards

RECORDING = ROOT / "scenarios" / "programs" / "breaks_numpy" / "recording"


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return diagnosed(RECORDING)


@pytest.fixture(scope="module")
def case(found: Diagnosis) -> Analysis:
    case = analysis_of(found)
    assert case is not None
    return case


@pytest.fixture(scope="module")
def model(case: Analysis) -> StepEnergy:
    found = step_energy(case)
    assert found is not None
    return found


def test_the_step_as_it_is_takes_what_was_measured(case: Analysis, model: StepEnergy):
    assert case.run is not None and case.run.energy is not None
    now = model.joules(model.work_j(case.graph), case.mean_ns)
    assert now == pytest.approx(case.run.energy.power_w * case.mean_ns / 1e9, rel=1e-6)


def test_cpu_work_takes_the_power_of_waiting_only(case: Analysis, model: StepEnergy):
    graph, work_j = case.graph, model.work_j(case.graph)
    without = graph.with_durations(np.where(graph.lane >= 0, 0.0, graph.duration_ns))
    assert model.work_j(without) == pytest.approx(work_j)
    less = model.joules(work_j, case.mean_ns) - model.joules(work_j, case.mean_ns / 2)
    assert less == pytest.approx(model.waiting_w * case.mean_ns / 2e9)


def test_gpu_work_takes_more_and_copies_through_the_bus_do_not(case: Analysis, model: StepEnergy):
    graph = case.graph
    copies = graph.on_gpu & (graph.resource == TRANSFER)
    assert copies.any() and not model.above_w[copies].any()
    half = graph.with_durations(np.where(graph.on_gpu, graph.duration_ns / 2, graph.duration_ns))
    assert model.work_j(half) == pytest.approx(model.work_j(graph) / 2)


def test_no_board_takes_more_than_its_limit(model: StepEnergy):
    assert model.joules(1e3, 1e9) == pytest.approx(model.most_w)


def test_a_fix_says_what_its_step_takes(found: Diagnosis):
    fix = next(one for one in found.findings if one.id == "graph_breaks")
    energy = found.run.energy if found.run else None
    assert fix.step_j is not None and energy is not None
    assert fix.step_j.low < fix.step_j.expected < min(fix.step_j.high, energy.step_j)
    card = next(one for one in cards(found) if one.id == fix.id)
    assert any(fact.startswith("Energy: ") and "J a step" in fact for fact in card.facts)
    bare = replace(found, run=replace(found.run, energy=None)) if found.run else found
    assert not any(fact.startswith("Energy: ") for one in cards(bare) for fact in one.facts)


def test_with_the_measured_steps_only_the_energy_itself_can_be_off():
    model = StepEnergy(120.0, 700.0, np.zeros(1), 1)
    before, after = Measured(20.0, 3.0), Measured(5.0, 1.2)
    known = _with_times(model, before, after, left=1.0)
    assert known == pytest.approx((120 * 0.005 + 3.0 - 120 * 0.02) / 3.0)
    one = FixEnergy("p", "fit", "c", "f", before, after, (0.3, 0.44, 0.5), known)
    assert one.measured == pytest.approx(0.4) and one.held and one.off == pytest.approx(0.1)
    assert one.off_by_itself == pytest.approx(0.0)
    assert "in the interval: 1" in summary([one]) and "off by 0.0%" in summary([one])

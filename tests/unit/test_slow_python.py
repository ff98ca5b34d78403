"""Long stretches of Python on the training thread; not short ones, nor those hidden behind the GPU's work."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import MS, OP, US, Program

from gpuprof.calibration import slow
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import slow_python

LAYERS = 50


def with_python(folder: Path, ns: int, times: int = 1, steps: int = 3, host: int = OP) -> Analysis:
    """Steps of 50 launch-bound ops of `host` ns, with `times` stretches of Python in the first `steps` of three."""
    program = Program()

    def body(some: int) -> None:
        for i in range(LAYERS):
            program.small_mm(host)
            if i < some:
                program.python(ns)

    for step in range(3):
        program.step(lambda step=step: body(times if step < steps else 0))
    return program.case(folder)


def test_what_the_gpu_waits_for_can_go(tmp_path: Path):
    case = with_python(tmp_path, 4 * MS, times=2)
    proposal = only(slow_python, case)
    assert "2 stretches of Python a step" in proposal.evidence[0].text and proposal.needs
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(2 * 4 * MS * (1 - slow.FUNCTION_LEFT.value), rel=0.05)


@pytest.mark.parametrize(("times", "counts"), [(12, True), (4, False)])
def test_many_stretches_that_are_short_for_the_step(tmp_path: Path, times: int, counts: bool):
    """1.1 ms each, of a step of 100 ms and more: twelve take a tenth of it, four are a trainer's own."""
    found = list(slow_python.find(with_python(tmp_path, 1_100 * US, times, host=2 * MS)))
    assert len(found) == counts
    assert not counts or "12 stretches of Python a step" in found[0].evidence[0].text


@pytest.mark.parametrize(("ns", "times", "steps"), [(200 * US, 20, 3), (4 * MS, 1, 1)])
def test_neither_short_pieces_nor_rare_ones(tmp_path: Path, ns: int, times: int, steps: int):
    assert not list(slow_python.find(with_python(tmp_path, ns, times, steps)))

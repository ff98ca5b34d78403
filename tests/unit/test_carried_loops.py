"""Loops over small ops whose rounds need the one before: nothing collects what a round computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import FLOAT, US, Program

from gpuprof.calibration import loops as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import python_loop, recurrent_loop

ROUNDS, STATE, PAIRS = 64, [32, 9], [32, 9, 9]


def forward_algorithm(folder: Path, collects: str = "") -> Analysis:
    """Steps of 64 rounds of four ops with gradients; `collects`: what happens with each round's result."""
    program = Program()

    def plain(name: str, *shapes: list[int]) -> None:
        program.plain(name, *shapes, type=FLOAT)

    def body() -> None:
        first = program.sequence
        for _ in range(ROUNDS):
            plain("add", [32, 9, 1], [9, 9])
            plain("add", PAIRS, [32, 1, 9])
            plain("logsumexp", PAIRS)
            plain("where", [32, 1], STATE, STATE)
            if collects == "adds":
                plain("add", STATE, STATE)
            if collects == "writes":
                plain("copy_", STATE, STATE)
            if collects == "reads":
                program.item()
        if collects == "joins":
            plain("stack", [ROUNDS, *STATE])
        plain("mean", STATE)
        if collects == "learns nothing":
            return
        program.tid = AUTOGRAD
        for number in reversed(range(first + 1, program.sequence + 1)):
            start = program.now
            program.op("aten::mul", "mul", 2 * US, [PAIRS], [FLOAT])
            arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
            name = "autograd::engine::evaluate_function: MulBackward0"
            program.trace.op(name, start - US, program.now + US, AUTOGRAD, **arguments)
            program.now += 2 * US
        program.tid = MAIN

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_rounds_that_carry_a_state_are_joined_in_pairs(tmp_path: Path):
    case = forward_algorithm(tmp_path)
    proposal = only(recurrent_loop, case, "joined")
    assert "64 rounds" in proposal.evidence[0].text and proposal.needs and proposal.odds == calibrated.JOINED.value
    left = case.step_of(proposal.change(case.graph)) / case.step_ns
    assert left == pytest.approx(6 * calibrated.ROUNDS_LEFT.value / ROUNDS, abs=0.08)
    assert not list(python_loop.find(case))


@pytest.mark.parametrize("collects", ["adds", "writes", "reads", "joins", "learns nothing"])
def test_rounds_whose_results_are_collected_may_be_independent(tmp_path: Path, collects: str):
    assert not list(recurrent_loop.find(forward_algorithm(tmp_path, collects)))

"""Casts of frozen weights under autocast."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.case import only
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.present import present
from helpers.program import BF16, FLOAT, GRID, MS, PLAIN, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import frozen_casts

LAYERS, ROWS, SIDE = 10, 4096, 2048
MATMUL, WEIGHT, INPUT = 400 * US, 100 * US, 200 * US


class Model(Program):
    """Linear layers that cast their fp32 inputs."""

    def cast_in(self, shape: list[int], gpu: int, recorded: bool) -> int:
        """Records a cast within a layer; returns its number."""
        start, number = self.now, self.sequence + 1
        arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 0}
        self.launch(PLAIN, (start + 2 * US, start + 5 * US), gpu, grid=GRID)
        types = [BF16, FLOAT, "Scalar"]
        self.trace.op(
            "aten::copy_", start + 2, start + 6 * US, **{"Input Dims": [shape, shape, []], "Input type": types}
        )
        for depth, name in enumerate(("aten::to", "aten::_to_copy")):
            self.trace.op(name, start + depth, start + 7 * US - depth, **{"Input Dims": [shape], **arguments})
        self.now = start + 8 * US
        self.sequence += recorded
        return number

    def layer(self, trained: bool, cast_input: bool) -> list[int]:
        """Records a layer; returns the numbers of the casts that autograd records."""
        start, found = self.now, list[int]()
        self.now += US
        number = self.cast_in([SIDE, SIDE], WEIGHT, trained)
        found += [number] * trained
        if cast_input:
            found.append(self.cast_in([ROWS, SIDE], INPUT, True))
        self.op("aten::mm", "nvjet", MATMUL, [[ROWS, SIDE], [SIDE, SIDE]], [BF16, BF16])
        types, shapes = [FLOAT, FLOAT, ""], [[ROWS, SIDE], [SIDE, SIDE], []]
        self.trace.op("aten::linear", start, self.now, **{"Input Dims": shapes, "Input type": types})
        self.now += US
        return found


def layers(tmp_path, trained: bool = False, cast_input: bool = True) -> Analysis:
    """Four steps of such layers."""
    made = Model()

    def body() -> None:
        numbers = [number for _ in range(LAYERS) for number in made.layer(trained, cast_input)]
        made.small_mm()
        made.tid = AUTOGRAD
        for number in reversed(numbers or [made.sequence]):
            start = made.now
            made.op("ToCopyBackward0", PLAIN, INPUT)
            arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
            name = "autograd::engine::evaluate_function: ToCopyBackward0"
            made.trace.op(name, start - US, made.now + US, AUTOGRAD, **arguments)
            made.now += 2 * US
        made.tid = MAIN
        made.python(1 * MS)

    for _ in range(4):
        made.step(body)
    return made.case(tmp_path)


def test_casts_of_frozen_weights_and_of_their_inputs_go(tmp_path):
    case = layers(tmp_path)
    proposal = only(frozen_casts, case)
    assert "10 frozen weights up to 2,048 × 2,048" in proposal.evidence[0].text
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(LAYERS * (WEIGHT + 2 * INPUT), rel=0.1)
    assert case.step_of(present(proposal.worst)(case.graph)) == pytest.approx(case.step_ns - LAYERS * WEIGHT, rel=0.05)


def test_trained_weights_stay_in_fp32(tmp_path):
    assert not list(frozen_casts.find(layers(tmp_path, trained=True)))

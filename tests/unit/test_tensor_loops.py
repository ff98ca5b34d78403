"""Loops over tensors in Python: what is one, and what it takes as ops over lists."""

from __future__ import annotations

import pytest
from helpers.case import only
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.tensor_loops import HOST, PYTHON, changing_loops, in_lists, reading_loops
from gpuprof.diagnosis.findings import optimizer, syncs

TENSORS, PAUSE, HOST_OP = 40, 6 * US, 20 * US


def _loop(tmp_path, one, *, tensors: int = TENSORS, steps: int = 3) -> Analysis:
    """A step that the CPU limits: layers, their backward pass, and then a loop that does ONE with each tensor."""
    program = Program()

    def body():
        for _ in range(30):
            program.small_mm()
        program.backward(program.small_mm, 30)
        for i in range(tensors):
            one(program, i)
            program.python(PAUSE)

    for _ in range(steps):
        program.step(body)
    return program.case(tmp_path)


def _norm(program: Program, _: int) -> None:
    program.plain("linalg_vector_norm", [64])
    program.item()


def test_a_norm_read_of_each_tensor_is_a_loop_and_becomes_a_few_launches(tmp_path):
    case = _loop(tmp_path, _norm)
    found = reading_loops(case)
    assert found is not None
    assert found.tensors == TENSORS
    assert set(found.ops) == {"aten::linalg_vector_norm", "aten::item"}
    without = _loop(tmp_path, lambda *_: None).step_ns - TENSORS * PAUSE
    left = case.step_of(in_lists(found, 1)(case.graph))
    loop = case.step_ns - without
    assert loop > TENSORS * (HOST_OP + PAUSE)
    # Ops take 0.075 and Python 0.27 of what they took, and nothing waits any more.
    assert left - without == pytest.approx(HOST[1] * TENSORS * 32 * US + PYTHON[1] * TENSORS * PAUSE, rel=0.35)
    proposal = only(syncs, case, "lists")
    assert f"a loop over {TENSORS} tensors a step" in proposal.evidence[0].text
    assert "_foreach_norm" in str(proposal.fix)
    times = [case.step_of(change(case.graph)) for change in (proposal.best, proposal.change, proposal.worst) if change]
    assert times == sorted(times)
    assert times[-1] < case.step_ns


def test_few_reads_and_reads_between_layers_are_no_loop(tmp_path):
    assert reading_loops(_loop(tmp_path, _norm, tensors=7)) is None

    def layer(program: Program, _: int) -> None:
        program.small_mm()
        _norm(program, 0)

    assert reading_loops(_loop(tmp_path, layer)) is None, "a layer depends on the one before it"


def test_an_average_of_each_weight_is_updated_in_lists(tmp_path):
    def average(program: Program, i: int) -> None:
        program.plain("mul_", [64 + i])
        program.plain("add_", [64 + i], [64 + i])

    case = _loop(tmp_path, average)
    found = changing_loops(case)
    assert found is not None
    assert found.tensors == TENSORS
    proposal = only(optimizer, case, "lists")
    assert "_foreach_lerp_" in str(proposal.fix)
    assert case.step_of(proposal.change(case.graph)) < case.step_ns - 0.8 * TENSORS * 2 * HOST_OP


def test_an_update_of_activations_in_the_model_is_no_loop_over_tensors(tmp_path):
    program = Program()

    def body():
        for _ in range(40):
            program.plain("mul_", [64])
        program.backward(program.small_mm, 30)

    for _ in range(3):
        program.step(body)
    assert changing_loops(program.case(tmp_path)) is None

"""Loops over tensors in Python: which are recognised, and what they take as ops over lists."""

from __future__ import annotations

import pytest
from helpers.case import only
from helpers.program import US, Program

from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.loops.tensor_loops import HOST, in_lists, reading_loops
from gpuprof.diagnosis.findings import python_loop, syncs

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
    program.plain("linalg_vector_norm", [1024, 1024])
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
    # Ops take 0.075 and Python 0.27 of their former time, and nothing waits any longer.
    assert left - without == pytest.approx(
        HOST[1] * TENSORS * 32 * US + kernels_calibrated.OPTIMIZER_LOOP_PYTHON.rising[1] * TENSORS * PAUSE, rel=0.35
    )
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


def test_a_loop_is_advised_once(tmp_path):
    case = _loop(tmp_path, _norm)
    assert not list(python_loop.find(case))

    def average(program: Program, i: int) -> None:
        program.plain("mul_", [64 + i])

    case = _loop(tmp_path, average)
    assert reading_loops(case) is None, "nothing is read"
    assert list(python_loop.find(case))


def test_what_changes_the_same_tensors_after_they_were_read_becomes_lists_too(tmp_path):
    program = Program()

    def body():
        program.backward(program.small_mm, 30)
        for _ in range(TENSORS):
            _norm(program, 0)
        for _ in range(TENSORS):
            program.plain("mul_", [64])

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    found = reading_loops(case)
    assert found is not None
    assert found.tensors == TENSORS, "each tensor counts once"
    assert found.which.sum() == 2 * case.steps

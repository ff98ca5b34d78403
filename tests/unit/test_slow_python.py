"""Long stretches of Python on the training thread; not short ones, nor those hidden behind the GPU's work."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.present import present
from helpers.program import MS, OP, US, Program

from gpuprof.calibration import slow
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import slow_python
from gpuprof.diagnosis.reach.ledger import above_reach

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


def test_very_many_short_ones_add_up(tmp_path: Path):
    """45 hooks of modules, 0.2 ms each: 9 ms of a step of 10."""
    case = with_python(tmp_path, 200 * US, 45)
    saved = case.step_ns - case.step_of(only(slow_python, case).change(case.graph))
    assert saved == pytest.approx(45 * 200 * US * (1 - slow.FUNCTION_LEFT.value), rel=0.05)
    assert not list(slow_python.find(with_python(tmp_path / "usual", 60 * US, 45)))


def _with_hooks(folder: Path, ns: int, times: int, node: str = "") -> Analysis:
    """A step of 50 ops, and 50 nodes of its backward pass, some with a hook in Python; `node`: op that the hook is in,
    within the engine's range."""
    program, left = Program(), iter(range(1_000))

    def layer() -> None:
        start = program.now
        program.small_mm()
        if next(left) % LAYERS < times:
            program.python(ns)
        if node:
            program.trace.op(node, start, program.now, program.tid)

    def body() -> None:
        for _ in range(LAYERS):
            program.small_mm()
        program.backward(layer, LAYERS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize("node", ["", "torch::autograd::AccumulateGrad"], ids=["before", "after"])
def test_hooks_of_gradients_run_in_the_engine(tmp_path: Path, node: str):
    """Each of 40 gradients is followed by 0.3 ms of Python; no piece is long, and none is on the training thread. A
    hook for after the accumulation is in that node's op."""
    case = _with_hooks(tmp_path, 300 * US, 40, node)
    proposal = only(slow_python, case, slow_python.HOOKS)
    assert "40 times a step autograd's engine runs Python" in proposal.evidence[0].text and proposal.needs
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(40 * 300 * US * (1 - slow.FUNCTION_LEFT.value), rel=0.05)
    (item,) = [one for one in present(above_reach(case, None, ("slow_python",))).items if one.finding]
    assert item.what == "Python around the nodes of the backward pass"


@pytest.mark.parametrize(
    ("ns", "times", "node"),
    [(60 * US, 40, ""), (300 * US, 4, ""), (300 * US, 40, "LoraBackward")],
    ids=["the engine's own work", "a few", "a backward pass that is written in Python"],
)
def test_no_hooks(tmp_path: Path, ns: int, times: int, node: str):
    assert not list(slow_python.find(_with_hooks(tmp_path, ns, times, node)))


@pytest.mark.parametrize("closure", [True, False])
def test_what_a_closure_runs_is_not_the_optimizers(tmp_path: Path, closure: bool):
    """Lightning runs the passes in the range of the optimizer's step; other optimizers run only their own Python."""
    program = Program()

    def body() -> None:
        start = program.now
        if closure:
            program.python(8 * MS)
        for _ in range(LAYERS):
            program.small_mm()
        program.backward(program.small_mm, LAYERS)
        start = start if closure else program.now
        if not closure:
            program.python(8 * MS)
        program.elementwise()
        program.trace.annotation("Optimizer.step#AdamW.step", start, program.now)

    for _ in range(3):
        program.step(body)
    assert bool(list(slow_python.find(program.case(tmp_path)))) == closure

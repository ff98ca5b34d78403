"""Loops over rows of small tensors without gradients, which the CPU can compute itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.program import MS, US, Program

from gpuprof.calibration import loops as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled.compiled_passes import within_passes
from gpuprof.diagnosis.findings import python_loop

MOMENTS = 64
ROUND = ("select", "mul", "add", "mul", "add", "copy_")


def rollout(folder: Path, row: int = 256, moments: int = MOMENTS, rows: bool = True, split: bool = False) -> Analysis:
    """Advantages from the last of some moments to the first, behind a small model. row: environments; rows: the rounds
    take rows of tensors, not tensors of a list; split: `unbind` has made that list of a tensor."""
    made = Program()

    def body() -> None:
        made.python(1 * MS)
        made.small_mm()
        if split:
            made.plain("unbind", [moments, row], gpu=0)
        for _ in range(moments):
            for name in ROUND:
                made.plain(name if rows or name != "select" else "sub", [row], [row], gpu=2 * US)
        made.backward(made.small_mm, 1)

    for _ in range(3):
        made.step(body)
    return made.case(folder)


def test_rows_that_were_split_before(tmp_path):
    assert proposals(rollout(tmp_path, rows=False, split=True)).keys() == {"rows", ""}


def proposals(case: Analysis) -> dict[str, float]:
    return {one.key: one.odds for one in python_loop.find(case)}


def test_the_cpu_takes_an_op_for_each_kernel(tmp_path):
    case = rollout(tmp_path)
    (found,) = [one for one in python_loop.find(case) if one.key == "rows"]
    left = found.change(case.graph)
    loop = case.graph.on_gpu & (left.duration_ns == 0)
    assert loop.sum() == len(ROUND) * MOMENTS * case.steps
    cpu_ns = len(ROUND) * MOMENTS * calibrated.ROW_OP_NS.value + calibrated.ROW_COPIES_NS.value
    now_ns = case.step_ns - case.step_of(left) + cpu_ns
    launched = case.graph.duration_ns[(case.graph.lane >= 0)].sum() / case.steps
    assert 0.5 * launched < now_ns < launched
    assert not (within_passes(case)[0] & loop).any(), "compiling the model leaves the loop as it is"
    assert proposals(case)[""] == calibrated.INDEPENDENT.low


@pytest.mark.parametrize(
    "other",
    [{"row": 1 << 20}, {"moments": 12}, {"rows": False}],
    ids=["large rows", "few rounds", "a list of tensors"],
)
def test_not_for_large_rows_few_rounds_or_other_tensors(tmp_path, other):
    found = proposals(rollout(tmp_path, **other))
    assert found == {"": calibrated.INDEPENDENT.value}

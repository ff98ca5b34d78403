"""torch.nn.DataParallel: one process copies its model to several GPUs in each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import MS, OP, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import naive_pipeline

LAYERS = 20
KERNEL = 8 * US


def copied(folder: Path, gpus: int = 2, functions: bool = True) -> Analysis:
    """A model on some GPUs: for each, a thread launches its forward pass, one after the other, and a thread of autograd
    its backward pass. functions: with those of torch.nn.parallel."""
    made = Program()

    def layers(thread: int, device: int) -> None:
        made.tid = thread
        for _ in range(LAYERS):
            start = made.now
            made.launch("nvjet_hsh", (start + 2 * US, start + 4 * US), KERNEL, stream=7 + 8 * device, device=device)
            made.sequence += 1
            numbers: dict[str, Any] = {"Sequence number": made.sequence, "Fwd thread id": 0}
            made.trace.op("aten::mm", start, start + OP, thread, **{"Input Dims": [[64, 64], [64, 64]], **numbers})
            made.now = start + OP

    def function(name: str) -> None:
        if functions:
            made.op(name, "ncclDevKernel", 20 * US)

    def body() -> None:
        made.tid = MAIN
        made.python(20 * US)
        function("Scatter")
        function("Broadcast")
        for device in range(gpus):
            layers(300 + device, device)
        made.tid = MAIN
        function("Gather")
        start = made.now
        for device in range(gpus):
            made.now, begun = start, start
            layers(AUTOGRAD + device, device)
            made.sequence += 1
            arguments: dict[str, Any] = {"Sequence number": made.sequence, "Fwd thread id": 1}
            name = "autograd::engine::evaluate_function: MmBackward0"
            made.trace.op(name, begun - 1 * US, made.now + 1 * US, AUTOGRAD + device, **arguments)
        made.tid = MAIN
        made.python(1 * MS)

    for _ in range(3):
        made.step(body)
    return made.case(folder)


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_process_has_the_work_of_one_gpu(tmp_path, gpus: int):
    case = copied(tmp_path, gpus)
    (found,) = naive_pipeline.find(case)
    assert (found.key, found.work) == ("replicas", 1.0)
    assert f"{gpus} GPUs" in found.evidence[0].text
    assert "DistributedDataParallel" in str(found.fix)
    assert found.best is not None and found.worst is not None
    left = found.change(case.graph)
    device = np.append(case.trace.gpu.device, -1)[case.graph.gpu_row]
    assert not left.duration_ns[case.graph.on_gpu & (device != 0)].any()
    kept = case.graph.on_gpu & (device == 0) & (left.duration_ns > 0)
    assert kept.sum() == 2 * LAYERS * case.steps, "of the first GPU only the copies go"
    saved = case.step_ns - case.step_of(left)
    forward = (gpus - 1) * LAYERS * OP
    assert 0.7 * forward < saved < 1.5 * forward
    assert case.step_of(found.best(case.graph)) <= case.step_of(left) <= case.step_of(found.worst(case.graph))


@pytest.mark.parametrize(("gpus", "functions"), [(1, True), (2, False)])
def test_not_for_one_gpu_or_other_programs(tmp_path, gpus: int, functions: bool):
    assert not [one for one in naive_pipeline.find(copied(tmp_path, gpus, functions)) if one.key == "replicas"]

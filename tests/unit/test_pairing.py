"""One program recorded twice: the export of Nsight Systems gives the times, the trace of torch.profiler the ops."""

from __future__ import annotations

from pathlib import Path

from helpers.make_nsys import training
from helpers.make_trace import TraceBuilder, external
from helpers.nsys_exports import issues
from helpers.present import present

import gpuprof

# -- recordings that are no pair


def test_a_made_program_is_not_another(tmp_path: Path):
    export = training().write(tmp_path / "a.sqlite")
    trace = TraceBuilder()
    for step in range(3):
        at = 1_000_000 * step
        trace.step(step, at, at + 1_000_000)
        for i in range(50):
            t = at + 20_000 * i
            trace.op("aten::conv2d", t, t + 9_000, **external(50 * step + i + 1))
            trace.launch("conv", (t + 10, t + 20), (t + 30, t + 900))
    found = gpuprof.diagnose([export, trace.write(tmp_path / "b.json")])
    assert "not_a_pair" in issues(found)
    assert {kernel.name for kernel in present(found.kernels).top} == {"conv"}


def test_two_exports_are_ranks_and_no_pair(tmp_path: Path):
    paths = []
    for rank, pid in enumerate((100, 201)):
        builder = training(pid=pid, device=rank)
        for step in range(4):
            t = 1_000_000 + step * 1_800_000 + 1_700_000
            builder.launch("ncclDevKernel_AllReduce", (t, t + 5), (t + 10, t + 9_000), tid=pid, pid=pid, device=rank)
        paths.append(builder.write(tmp_path / f"{pid}.sqlite"))
    found = gpuprof.diagnose(paths)
    assert not {"paired", "not_a_pair"} & set(issues(found))
    assert len(present(found.ranks)) == 2

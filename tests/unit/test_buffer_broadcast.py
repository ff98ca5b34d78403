"""DistributedDataParallel's broadcast of buffers before the forward pass."""

from __future__ import annotations

import pytest
from helpers.case import only
from helpers.program import US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import buffer_broadcast
from gpuprof.diagnosis.reach.ledger import above_reach

BUFFERS, LAYERS = 20, 10


def wrapped(tmp_path, send: str = "c10d::broadcast_", world_size: int = 2, first: str = "") -> Analysis:
    """Forward passes that begin with a broadcast of buffers; the CPU is the limit."""
    made = Program()
    made.trace.top_level["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": world_size}

    def forward() -> None:
        made.python(5 * US)
        start = made.now
        made.python(5 * US)
        if first:
            made.op(first, "kernel")
        made.op("aten::flatten_dense_tensors", "kernel")
        made.op(send, "ncclDevKernel_Broadcast_RING_LL")
        made.op("aten::unflatten_dense_tensors", host=200 * US)
        for _ in range(BUFFERS):
            made.plain("copy_", [64], [64])
        for _ in range(LAYERS):
            made.small_mm()
        made.plain("copy_", [64], [64])
        made.python(5 * US)
        made.trace.annotation("DistributedDataParallel.forward", start, made.now)
        made.python(5 * US)

    for _ in range(3):
        made.step(forward)
    return made.case(tmp_path)


@pytest.mark.parametrize("first", ["", "aten::mul"])
def test_the_broadcast_goes_with_its_copies(tmp_path, first):
    case = wrapped(tmp_path, first=first)
    found = only(buffer_broadcast, case)
    assert f"{BUFFERS} copies" in found.evidence[0].text, "a copy after the layers is the model's"
    assert "broadcast_buffers=False" in str(found.fix)
    changed = found.change(case.graph)
    gone = (case.graph.duration_ns > 0) & (changed.duration_ns == 0)
    assert int((gone & case.graph.on_gpu).sum()) == 3 * (BUFFERS + 2)
    assert case.step_of(changed) < 0.6 * case.step_ns
    ledger = above_reach(case, None, ["buffer_broadcast"])
    assert ledger is not None and ledger.largest[0].finding == "buffer_broadcast"


@pytest.mark.parametrize("other", [{"send": "c10d::allreduce_"}, {"world_size": 1}])
def test_not_where_nothing_is_broadcast(tmp_path, other):
    assert not list(buffer_broadcast.find(wrapped(tmp_path, **other)))

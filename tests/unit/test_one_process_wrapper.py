"""DDP or FSDP around the model of a run with one process."""

from __future__ import annotations

import pytest
from helpers.case import only, with_facts
from helpers.program import GB, MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.findings import one_process_wrapper
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.run.stack import Stack

LAYERS = 10
HOOK, COPY = 200 * US, 50 * US


def wrapped(
    tmp_path, world_size: int | None = 1, name: str = "FSDP::pre_forward (layers.0)", down: int = 0
) -> Analysis:
    """Layers, each with a range of the wrapper before it, in which weights are copied; the CPU is the limit."""
    made = Program()
    if world_size is not None:
        made.trace.top_level["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": world_size}

    def body() -> None:
        for _ in range(LAYERS):
            start = made.now
            made.python(HOOK - 20 * US)
            made.plain("copy_", [1000, 1000], [1000, 1000], gpu=COPY)
            made.trace.annotation(name, start, made.now)
            made.python(50 * US)
            made.small_mm()
        if down:  # activations that are kept in host memory
            for way in ("Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"):
                begin = max(made.now, made.idle_at)
                end = begin + 5 * MS
                made.trace.launch(way, (made.now, end), (begin, end), tid=made.tid, cat="gpu_memcpy", bytes=down)
                made.free[7], made.now = end, end

    for _ in range(3):
        made.step(body)
    return made.case(tmp_path)


def test_the_wrapper_of_one_process_can_go(tmp_path):
    case = wrapped(tmp_path)
    found = only(one_process_wrapper, case)
    assert found.odds < 1 and not found.changes
    assert f"{LAYERS} kernels and copies" in found.evidence[0].text
    assert case.step_ns - case.step_of(found.change(case.graph)) == pytest.approx(LAYERS * HOOK, rel=0.02)
    ledger = above_reach(case, None, ["one_process_wrapper"])
    assert ledger is not None and ledger.largest[0].finding == "one_process_wrapper"


@pytest.mark.parametrize(
    ("kind", "said"), [("torch", "get_world_size() > 1"), ("lightning", 'strategy="auto"'), ("trl", 'fsdp=""')]
)
def test_the_fix_is_that_of_the_loop(tmp_path, kind: str, said: str):
    case = with_facts(wrapped(tmp_path), stack=Stack(kind, False))
    assert said in str(only(one_process_wrapper, case).fix)


@pytest.mark.parametrize(
    "more",
    [{"world_size": 2}, {"world_size": None}, {"name": "DistributedDataParallel.forward"}, {"name": "layer"}],
    ids=["two processes", "not known", "the model in it", "no wrapper"],
)
def test_not_of_several_processes_nor_of_the_model(tmp_path, more):
    assert not list(one_process_wrapper.find(wrapped(tmp_path, **more)))


def test_what_is_offloaded_is_another_finding(tmp_path):
    case = wrapped(tmp_path, down=GB)
    assert find_offload(case) is not None
    assert not list(one_process_wrapper.find(case))

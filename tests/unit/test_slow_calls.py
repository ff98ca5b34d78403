"""Ops whose CPU time is far above that of similar ones: what they do is inferred from the events inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.program import MS, US, Program

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.idle.gaps import CAUSES, find_gaps
from gpuprof.diagnosis.verdict.estimate import host_causes
from gpuprof.diagnosis.verdict.verdict import host_cause
from gpuprof.replay.simulate import step_of
from gpuprof.replay.unprofiled.planning import planning, without_planning
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler
from gpuprof.timeline.cpu.cpu_compute import computes
from gpuprof.timeline.cpu.slow_calls import KINDS, slow_calls

SHARED = Path(__file__).parents[3] / "shared"
ATTENTION = "aten::some_attention"


def program(inside=None, *, dims=None, host: int = 40 * MS, steps: int = 3):
    """Steps of 60 quick ops and one that takes `host`, with other shapes in each step; `inside` adds events to it."""
    made = Program()
    for number in range(steps):

        def body(number=number):
            for _ in range(60):
                made.op(ATTENTION, "kernel", dims=[[4, 100 + number]], host=40 * US)
            start = made.now
            made.op(ATTENTION, "kernel", dims=dims or [[8, 100 + number]], host=host)
            if inside:
                inside(made, start, made.now)
            for _ in range(60):
                made.op(ATTENTION, "kernel", dims=[[4, 100 + number]], host=40 * US)

        made.step(body)
    return made


def kinds(case) -> list[str]:
    return [KINDS[kind] for kind in slow_calls(case.timeline).kind.tolist()]


def test_silence_in_an_op_that_launches_is_planning(tmp_path):
    case = program().case(tmp_path)
    found = slow_calls(case.timeline)
    assert kinds(case) == ["planning"] * 3
    assert found.own_ns == pytest.approx(40 * MS, rel=0.01)
    assert found.usual_ns == pytest.approx(40 * US, rel=0.15)
    assert host_cause(case.graph) == "planning"
    causes = dict(zip(CAUSES, find_gaps(case.timeline).by_cause.sum(axis=0).tolist(), strict=True))
    assert causes["slow_call"] == pytest.approx(3 * 40 * MS, rel=0.02)
    assert causes["launch"] < 3 * 8 * MS


def test_an_op_that_was_quick_with_its_shapes_before_does_not_plan(tmp_path):
    """Plans are kept, so what else makes the op slow is unknown."""
    assert kinds(program(dims=[[4, 100]]).case(tmp_path)) == ["unknown"] * 3


def test_what_calls_inside_say(tmp_path):
    def calls(name: str):
        return lambda made, start, end: made.trace.call(name, start + MS, end - MS, tid=made.tid)

    for name, kind in (
        ("cuModuleLoadData", "loading"),
        ("cudaMalloc", "allocator"),
        ("cudaFuncSetAttribute", "loading"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        assert kinds(program(calls(name)).case(folder)) == [kind] * 3, name


def test_a_wait_for_the_gpu_is_not_slow(tmp_path):
    """This holds for a synchronisation in the op and for a launch that waits for room in the queue."""
    for name in ("cudaStreamSynchronize", "cudaLaunchKernel"):
        folder = tmp_path / name
        folder.mkdir()
        case = program(
            lambda made, start, end, name=name: made.trace.call(name, start + 100, end - 100 * US, tid=made.tid)
        )
        assert kinds(case.case(folder)) == [], name


def test_ops_of_another_thread_meanwhile_are_a_lock(tmp_path):
    case = program(lambda made, start, end: made.trace.op("aten::add", start, end, 77))
    assert kinds(case.case(tmp_path)) == ["locking"] * 3


def test_a_long_op_that_launches_nothing_computes(tmp_path):
    made = Program()
    for _ in range(3):
        made.step(lambda: [made.op("aten::cpu_adam", host=20 * MS), *(made.small_mm() for _ in range(50))])
    case = made.case(tmp_path)
    assert kinds(case) == []
    causes = dict(zip(CAUSES, find_gaps(case.timeline).by_cause.sum(axis=0).tolist(), strict=True))
    assert causes["cpu_compute"] == pytest.approx(3 * 20 * MS, rel=0.02), "nothing inside says that it launches"
    assert host_cause(case.graph) == "cpu_compute"


def test_launching_views_and_small_tensors_compute_nothing(tmp_path):
    """Ops that launch, ops in which others launch, quick ones, long ones on a tensor of few numbers, and lists of
    views, however long they take."""
    made = Program()

    def body():
        for _ in range(30):
            made.op(ATTENTION, "kernel", host=90 * US)
            made.op("aten::view", dims=[[1000, 1000]], host=5 * US)
            made.op("aten::sum", dims=[[10, 10]], host=70 * US)
            made.op("aten::unflatten_dense_tensors", dims=[[1000, 1000]], host=200 * US)

    for _ in range(3):
        made.step(body)
    case = made.case(tmp_path)
    assert find_gaps(case.timeline).by_cause[:, CAUSES.index("cpu_compute")].sum() == 0
    assert computes(case.timeline) is None


def test_a_conversion_in_host_memory_computes(tmp_path):
    """`.to(float)` of a tensor that stays in host memory, with no op for the copy inside of it."""
    made = Program()
    for _ in range(3):
        made.step(lambda: [made.op("aten::to", dims=[[1000, 1000]], host=5 * MS), made.small_mm()])
    assert computes(made.case(tmp_path).timeline) is not None


def test_without_planning_ops_take_their_usual_time(tmp_path):
    case = program().case(tmp_path)
    found = planning(case.graph)
    assert found.names == [ATTENTION]
    less = without_planning(case.graph)
    assert step_of(case.graph) - step_of(less) == pytest.approx(40 * MS, rel=0.02)
    assert (host_causes(case.graph) == CAUSES.index("slow_call")).any()


def test_timed_steps_that_are_longer_than_recorded_ones_planned_for_longer(tmp_path):
    """Launching takes as long as without the profiler, but plans differ from shape to shape."""
    graph = program().case(tmp_path).graph
    usual = remove_profiler(graph).graph
    recorded_ns = step_of(graph)
    found = remove_profiler(graph, recorded_ns + 30 * MS)
    assert step_of(found.graph) == pytest.approx(recorded_ns + 30 * MS, rel=0.01)
    plans = planning(graph).nodes
    others = (graph.lane >= 0) & ~plans
    assert found.graph.duration_ns[others].sum() == pytest.approx(usual.duration_ns[others].sum(), rel=0.01)
    assert found.scale == pytest.approx(remove_profiler(graph).scale), "the cost of recording is the usual one"
    less = step_of(without_planning(found.graph))
    assert less == pytest.approx(step_of(without_planning(usual)), rel=0.05)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="recordings that do not come with a checkout")
def test_the_planning_of_attention_is_not_launching():
    """A run whose single calls of attention took 41 to 55 ms of CPU time: the truth that came with the recording."""
    diagnosis = diagnosed(SHARED / "traces" / "wild" / "moe")
    analysis = analysis_of(diagnosis)
    assert analysis is not None
    found = slow_calls(analysis.timeline)
    long = found.own_ns > 30 * MS
    assert np.count_nonzero(long) == 3
    assert {KINDS[kind] for kind in found.kind[long].tolist()} == {"planning"}
    assert diagnosis.verdict.cause == "planning"
    fix = diagnosis.findings[0]
    assert fix.id == "planning"
    assert fix.speedup.low <= 1.76 <= fix.speedup.high, "measured: 318.6 → 181.3 ms without cuDNN attention"

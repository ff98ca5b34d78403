"""A program's start-up is named and kept out of verdicts, steps and fixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.present import present
from helpers.program import BF16, MATMUL, MS, US, Program
from helpers.valid_json import document

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.timeline.startup import start_up
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.recording import resolve


def timeline_of(program: Program, folder: Path) -> Timeline:
    trace = resolve(str(program.trace.write(folder / "trace.json"))).read().trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    return timeline


def diagnosed(program: Program, folder: Path) -> Diagnosis:
    found = gpuprof.diagnose(program.trace.write(folder / "trace.json"))
    document(found)
    return found


def call(program: Program, name: str, ns: int) -> None:
    program.trace.call(name, program.now, program.now + ns)
    program.now += ns


def layers(program: Program, count: int = 40) -> None:
    for _ in range(count):
        program.mm(512, 512, 512)


def started(program: Program) -> None:
    """A context is made, libraries load, memory is allocated, and then 40 kernels run."""
    call(program, "cudaDeviceGetStreamPriorityRange", 300 * MS)
    call(program, "cuLibraryLoadData", 20 * MS)
    call(program, "cudaMalloc", 80 * MS)
    layers(program)


def test_a_recording_without_steps_that_starts_the_program_has_no_verdict_and_no_fixes(tmp_path):
    program = Program()
    started(program)
    found = diagnosed(program, tmp_path)
    assert found.start_up is not None and found.steps is not None and found.steps.source == "none"
    assert found.start_up.share > 0.99
    assert {part.name: part.ns for part in found.start_up.parts} == {
        "creating the context": 300 * MS,
        "first allocations": 80 * MS,
        "loading code": 20 * MS,
    }
    assert found.verdict.bound is None and found.sensitivities is None
    assert "program's start" in found.verdict.summary
    assert not found.findings and not found.considered and found.combined is None
    assert {"start_up", "no_steps"} <= {issue.id for issue in found.quality.issues}


def test_pinning_gains_nothing_from_a_recording_without_steps(tmp_path):
    program = Program()
    for _ in range(20):
        start = program.now
        program.launch(
            "Memcpy HtoD (Pageable -> Device)", (start, start + 900 * US), 800 * US, cat="gpu_memcpy", bytes=10**7
        )
        program.now = start + 1 * MS
        program.mm(512, 512, 512)
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and found.steps.source == "none"
    assert found.findings == ()


def test_the_parts_sum_to_the_whole_however_they_overlap(tmp_path):
    program = Program()
    start = program.now
    call(program, "cuInit", 50 * MS)
    program.trace.frame("triton/compiler/compiler.py(100): compile", start - 10 * US, start + 30 * MS)
    layers(program)
    timeline = timeline_of(program, tmp_path)
    low, high = timeline.window
    assert sum(ns for _, ns in timeline.start_up.parts) == timeline.start_up.ns <= high - low
    assert dict(timeline.start_up.parts)["creating the context"] == 20 * MS


def first_launch(program: Program, kernel: str, busy: bool, times: int = 1) -> None:
    """A launch that lasts 5 ms while the GPU works, or has nothing to do."""
    for _ in range(times):
        start = program.now
        if busy:
            program.launch("before", (start, start + 2 * US), 6 * MS)
        program.launch(kernel, (start + 5 * US, start + 5 * MS), 10 * US)
        program.now = start + 6 * MS


@pytest.mark.parametrize(("busy", "expected"), [(False, [("loading code", 5 * MS - 5 * US)]), (True, [])])
def test_a_first_launch_that_lasts_long_loads_code_unless_the_queue_is_full(tmp_path, busy, expected):
    program = Program()
    layers(program)
    first_launch(program, "new_kernel", busy)
    timeline = timeline_of(program, tmp_path)
    assert list(timeline.start_up.parts) == expected


def test_a_later_launch_that_lasts_long_loads_nothing(tmp_path):
    program = Program()
    first_launch(program, "kernel", busy=False, times=4)
    timeline = timeline_of(program, tmp_path)
    assert timeline.start_up.ns == 5 * MS - 5 * US


def test_allocations_of_a_step_are_no_start_up(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: (call(program, "cudaMalloc", 5 * MS), layers(program)))
    timeline = timeline_of(program, tmp_path)
    assert timeline.start_up.ns == 0
    low, high = (np.array([t]) for t in timeline.window)
    everything = start_up(timeline.trace, timeline.links, low, high, allocations=True)
    assert everything.ns == 15 * MS


def compiles(program: Program) -> None:
    program.trace.annotation("entire_frame_compile (dynamo_timed)", program.now, program.now + 100 * MS)
    program.now += 100 * MS


def test_a_first_step_in_which_code_is_compiled_is_left_out(tmp_path):
    program = Program()
    program.step(lambda: (compiles(program), layers(program)))
    for _ in range(3):
        program.step(lambda: layers(program))
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and found.steps.count == 3
    assert max(found.steps.each_ns) < 10 * MS
    assert "start_up_steps" in {issue.id for issue in found.quality.issues}


def test_steps_that_compile_again_and_again_stay(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: (compiles(program), layers(program)))
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and found.steps.count == 4
    assert found.start_up is not None and found.start_up.ns == 0
    assert found.verdict.bound == "host"


def test_a_single_step_that_is_mostly_loading_has_no_verdict(tmp_path):
    program = Program()

    def body() -> None:
        for k in range(8):
            first_launch(program, f"kernel_{k}", busy=False)
        program.op("aten::mm", MATMUL, 5 * US, [[64, 64], [64, 64]], [BF16, BF16])

    program.step(body)
    found = diagnosed(program, tmp_path)
    assert found.start_up is not None and found.start_up.share > 0.5
    assert found.verdict.bound is None and not found.findings


def first_to(program: Program, own: int, api: int = 2 * MS) -> None:
    """The first `.to()`, in which the context is created without a recorded call."""
    start = program.now
    program.trace.call("cudaGetDeviceCount", start + 10 * US, start + 20 * US)
    program.trace.call("cudaMalloc", start + own, start + own + api)
    program.now = start + own + api + 10 * US
    program.launch(
        "Memcpy HtoD (Pageable -> Device)", (program.now, program.now + 50 * US), 40 * US, cat="gpu_memcpy", bytes=10**4
    )
    program.now += 60 * US
    for depth, name in enumerate(("aten::to", "aten::_to_copy")):
        program.trace.op(name, start - (2 - depth) * US, program.now + (2 - depth) * US)
    program.trace.op("aten::empty_strided", start, start + own + api + US)


@pytest.mark.parametrize("own", [300 * MS, 1 * MS])
def test_a_context_that_the_first_op_creates_is_start_up(tmp_path, own):
    """The recording only shows a long op."""
    program = Program()
    first_to(program, own)
    layers(program)
    parts = dict(timeline_of(program, tmp_path).start_up.parts)
    assert parts.get("creating the context", 0) == (own - 20 * US if own > 10 * MS else 0)


def test_an_op_that_lasts_after_the_gpu_has_worked_creates_no_context(tmp_path):
    program = Program()
    layers(program)
    first_to(program, 300 * MS)
    layers(program)
    assert timeline_of(program, tmp_path).start_up.parts == (("first allocations", 2 * MS),)


def test_a_first_call_that_lasts_creates_the_context(tmp_path):
    for name, expected in (("cudaHostRegister", 300 * MS), ("cudaMemcpyAsync", 0)):
        program = Program()
        call(program, name, 300 * MS)
        layers(program)
        parts = dict(timeline_of(program, tmp_path).start_up.parts)
        assert parts.get("creating the context", 0) == expected


def loads(later: int, step: int = 0, cut: bool = False, name: str = "aten::addmm") -> Program:
    """Steps of 5 ms, in one of which the first op of a name loads a library for 40 ms; later ones take `later`."""
    program, made = Program(), []

    def body():
        layers(program, 150)
        if program.steps >= step:
            program.op(name, MATMUL, 20 * US, host=later if made else 40 * MS)
            made.append(program.steps)
        layers(program, 150)

    for _ in range(1 if cut else 4):
        program.step(body)
    if cut:  # the recording ends in the step that follows
        start = program.now
        body()
        program.trace.step(9, start, program.now + MS)
        kept = [e for e in program.trace.events if e["ts"] < start + 2 * MS or e["name"].startswith("ProfilerStep")]
        again = [e for e in program.trace.events if e["name"] == "aten::addmm" and e["ts"] > start]
        program.trace.events = kept + again
    return program


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_library_that_one_step_loads_is_start_up_in_any_of_them(tmp_path, step):
    found = timeline_of(loads(20 * US, step), tmp_path)
    loaded = dict(found.start_up.parts).get("loading code", 0)
    if found.steps.starting:
        assert step == 0 and not loaded, "the first step is left out for it"
    else:
        assert loaded == pytest.approx(40 * MS, rel=0.01)


def test_an_op_that_lasts_each_time_loads_nothing(tmp_path):
    assert timeline_of(loads(39 * MS), tmp_path).start_up.parts == ()


def test_planning_for_a_new_shape_is_no_start_up(tmp_path):
    """Other shapes are planned for again."""
    assert timeline_of(loads(20 * US, 1, name="aten::_cudnn_attention_backward"), tmp_path).start_up.parts == ()


def test_a_library_in_the_only_whole_step_lowers_the_confidence(tmp_path):
    """The step after it was cut, so that loading looks like the step's work."""
    (tmp_path / "other").mkdir()
    program = loads(20 * US, cut=True)
    timeline = timeline_of(program, tmp_path)
    assert timeline.steps.cut == 1 and len(timeline.steps.start_ns) == 1
    assert dict(timeline.start_up.parts)["loading code"] == pytest.approx(40 * MS, rel=0.01)
    found = diagnosed(program, tmp_path)
    assert found.verdict.bound is None or present(found.verdict.confidence) < 0.2
    again = diagnosed(loads(39 * MS, cut=True), tmp_path / "other")
    assert again.verdict.bound == "host" and present(again.verdict.confidence) > 0.6

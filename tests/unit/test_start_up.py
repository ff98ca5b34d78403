"""The program's start is named and kept out of verdicts, steps and fixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.program import BF16, MS, PRODUCT, US, Program
from helpers.valid_json import document

import gpuprof
from gpuprof.diagnosis.diagnosis import Diagnosis
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
    """A launch that lasts 5 ms: the GPU works meanwhile, or it has nothing to do."""
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
        program.op("aten::mm", PRODUCT, 5 * US, [[64, 64], [64, 64]], [BF16, BF16])

    program.step(body)
    found = diagnosed(program, tmp_path)
    assert found.start_up is not None and found.start_up.share > 0.5
    assert found.verdict.bound is None and not found.findings

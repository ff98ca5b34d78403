"""Findings about what stalls the CPU: allocating, planning, compiling, blocking copies, saving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.case import only, run_of, with_facts
from helpers.eager_program import eager
from helpers.present import present
from helpers.program import MS, SHORT, US, Program

from gpuprof.calibration import allocator as allocator_calibrated
from gpuprof.calibration import shapes as shapes_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled import compiling
from gpuprof.diagnosis.findings import (
    allocator,
    garbage_collection,
    pageable_copies,
    planning,
    rare_steps,
    recompiles,
    syncs,
)
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess
from gpuprof.diagnosis.verdict.verdict import host_cause
from gpuprof.replay.mean_step import MeanStep


def _allocates(tmp_path, steps_with: set[int], steps: int = 3) -> Analysis:
    count = iter(range(100))

    def begin(program: Program):
        if next(count) in steps_with:
            for _ in range(40):
                program.trace.call("cudaMalloc", program.now, program.now + 200 * US)
                program.now += 201 * US

    return eager(tmp_path, steps=steps, begin=begin)


def test_allocations_in_every_step(tmp_path):
    case = _allocates(tmp_path, {0, 1, 2})
    proposal = only(allocator, case)
    saved = 40 * 200 * US * (1 - allocator_calibrated.CALL_TIME_LEFT.rising[1])
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_ns - saved, rel=0.02)
    assert "expandable_segments" in str(proposal.fix)
    assert not list(allocator.find(_allocates(tmp_path, {0})))


def test_allocations_in_the_only_step_of_a_run_that_had_settled(tmp_path):
    case = _allocates(tmp_path, {0}, steps=1)
    assert not list(allocator.find(case)), "the first step of a training allocates anyway"
    assert list(allocator.find(with_facts(case, run=run_of())))


def test_what_giving_memory_back_waits_for_is_the_allocators(tmp_path):
    """cudaFree returns when the GPU is done: 3 ms of a kernel each, while the call itself takes 20 µs."""

    def end(program: Program):
        for _ in range(24):
            program.op("aten::mm", kernel="gemm", gpu=3 * MS)
            done = max(program.idle_at, program.now) + 20 * US
            program.trace.call("cudaFree", program.now, done)
            program.now = done + 5 * US
            program.python(1_500 * US)
            program.op("aten::mul", "mul", SHORT, host=1_500 * US)

    # Without the waits the GPU's 3 ms and the host's 1.5 + 1.5 ms would overlap; either of these alone is less.
    case = eager(tmp_path, end=end)
    assert host_cause(case.graph) == "allocator"


def _plans(tmp_path, steps_with: set[int], steps: int = 3) -> Analysis:
    count = iter(range(100))

    def begin(program: Program):
        ns = 50 * MS if next(count) in steps_with else 40 * US
        for host in (ns, 40 * US):
            program.op("aten::_cudnn_attention_forward", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", host=host)

    return eager(tmp_path, begin=begin, steps=steps)


def test_planning_in_the_only_recorded_step_or_in_few_is_said_and_not_advised(tmp_path):
    absent = present(planning.FINDING.absent)
    case = _plans(tmp_path, {0}, steps=1)
    assert not list(planning.find(case))
    reason = absent.why(case)
    assert reason is not None and "50 ms of CPU time" in reason and "only one step was recorded" in reason
    assert absent.why(_plans(tmp_path, set(), steps=1)) is None, "nothing is planned"
    some = absent.why(_plans(tmp_path, {1}))
    assert some is not None and "in 1 of 3 recorded steps, 17 ms" in some
    assert absent.why(_plans(tmp_path, {0, 1, 2})) is None, "that is a finding"


def test_attention_that_is_planned_in_most_steps(tmp_path):
    case = _plans(tmp_path, {0, 1, 2})
    proposal = only(planning, case)
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(50 * MS, rel=0.02)
    assert "enable_cudnn_sdp(False)" in str(proposal.fix)
    assert not list(recompiles.find(case)), "no code is compiled"
    assert not list(planning.find(_plans(tmp_path, {1}))), "once is warming up"


def _compiles(tmp_path, plans: bool) -> Analysis:
    """Each step compiles for 60 ms, during which 200 candidates for a kernel are tried for 50 µs each, and takes 0.5 ms
    for the first matmul of its shape."""

    def begin(program: Program):
        start = program.now
        program.python(50 * MS)
        for _ in range(200):
            program.op("triton_poi_fused_mul_0", "triton_poi_fused_mul_0", 50 * US, host=50 * US)
        program.trace.op("_compile.compile_inner (dynamo_timed)", start, program.now)
        program.small_mm(500 * US)
        program.small_mm(20 * US)
        if plans:
            program.op("aten::_cudnn_attention_forward", "cudnn_generated_fort_native_sdpa_sm90_flash", host=50 * MS)

    return eager(tmp_path, begin=begin)


@pytest.mark.parametrize("plans", [False, True])
def test_code_that_is_compiled_in_every_step(tmp_path, plans):
    case = _compiles(tmp_path, plans)
    proposal = only(recompiles, case)
    usual = shapes_calibrated.USUAL_NS.value
    gone = 60 * MS + 500 * US - usual + (50 * MS - usual if plans else 0)
    assert case.step_ns - case.step_of(proposal.change(case.graph)) == pytest.approx(gone, rel=0.01)
    half = (500 * US - usual) / 2
    assert case.step_ns - case.step_of(present(proposal.worst)(case.graph)) == pytest.approx(gone - half, rel=0.01)
    assert proposal.title == "fixed shapes"
    assert str(proposal.fix).startswith("pad each batch")
    assert ("enable_cudnn_sdp(False)" in str(proposal.fix)) == plans
    assert not list(planning.find(case)), "the shapes are to be fixed for the compiled code, too"
    assert compiling.compiling_ns(case) == pytest.approx(60 * MS, rel=0.01)


def test_work_of_the_processor_is_no_first_call(tmp_path):
    """In addition to 5 ms of compiling, 40 ops of 1 ms launch nothing, and one op takes 50 ms at every step."""

    def begin(program: Program):
        start = program.now
        program.python(5 * MS)
        program.trace.op("_compile.compile_inner (dynamo_timed)", start, program.now)
        for _ in range(40):
            program.op("aten::sort", host=1 * MS)
        program.op("aten::_fused_adamw_", host=50 * MS)

    case = eager(tmp_path, begin=begin)
    proposal = only(recompiles, case)
    for change in (proposal.change, present(proposal.worst)):
        assert case.step_ns - case.step_of(change(case.graph)) == pytest.approx(5 * MS, rel=0.02)


def test_compiling_once_is_not_reported(tmp_path):
    count = iter(range(100))

    def begin(program: Program):
        if next(count) == 0:
            start = program.now
            program.python(200 * MS)
            program.trace.op("_compile.compile_inner (dynamo_timed)", start, program.now)

    case = eager(tmp_path, begin=begin)
    assert not list(recompiles.find(case)) and compiling.compiling_ns(case) == 0


def _copies(tmp_path, size: int, memory: str, returns_ns: int = 2 * US, way: str = "HtoD") -> Analysis:
    """`returns_ns`: how long after a copy from pageable memory its call returns."""

    def begin(program: Program):
        start, ns = program.now, max(size // 8, 2 * US)  # 8 GB/s
        call = (start + 2 * US, start + 8 * US)
        work = (call[0] + 5 * US, call[0] + 5 * US + ns)
        if memory == "Pageable":
            call = (call[0], work[1] + returns_ns)
        name = f"Memcpy {way} ({memory} -> Device)" if way == "HtoD" else f"Memcpy {way} (Device -> {memory})"
        program.trace.launch(name, call, work, cat="gpu_memcpy", bytes=size)
        program.free[7] = work[1]
        program.now = call[1] + 2 * US
        if memory == "Pageable":
            program.trace.call("cudaStreamSynchronize", program.now, program.now + 5 * US)
            program.now += 5 * US
        program.trace.op("aten::copy_", start, program.now + 1 * US)
        program.now += 2 * US

    return eager(tmp_path, begin=begin)


def test_pageable_copies_become_asynchronous(tmp_path):
    size = 24_000_000
    case = _copies(tmp_path, size, "Pageable")
    proposal = only(pageable_copies, case)
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    # The copy overlaps the host's work, which takes longer.
    assert saved == pytest.approx(size / 8, rel=0.03)
    assert "non_blocking=True" in str(proposal.fix)


def test_copies_to_pageable_memory_get_quicker_and_still_block(tmp_path):
    """Results of 24 MB that the CPU waits for: 3 ms at 8 GB/s, and 24 MB at the link's rate with pinned buffers."""
    case = _copies(tmp_path, 24_000_000, "Pageable", way="DtoH")
    (proposal,) = pageable_copies.find(case)
    assert proposal.title == "pinned buffers for copies to the CPU" and proposal.odds < 0.9
    assert case.roofline is not None and case.roofline.ceilings.link_bytes_per_s is not None
    quick = 24e6 / case.roofline.ceilings.link_bytes_per_s * 1e9
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx(24_000_000 / 8 - quick, rel=0.05)
    assert not list(pageable_copies.find(_copies(tmp_path, 24_000_000, "Pinned", way="DtoH")))


def test_copies_through_the_processor_leave_its_caches_to_the_rest(tmp_path):
    case = _copies(tmp_path, 80_000_000, "Pageable")
    (proposal,) = pageable_copies.find(case)
    assert proposal.best and proposal.worst
    steps = [case.step_of(way(case.graph)) for way in (proposal.best, proposal.change, proposal.worst)]
    # Afterwards the host limits the step; it loses the copy, and usually (and at best) some of its other work.
    rest = case.step_ns - 10 * MS
    for step, loss in zip(steps, allocator_calibrated.CACHE_LOSS.rising, strict=True):
        assert step == pytest.approx(loss * rest, rel=0.05)


def test_a_copy_blocks_though_its_call_returns_a_little_before_it_ends(tmp_path):
    """The driver releases the host once the last piece is in its buffer: on an H200 7 µs before the end of 65 ms."""
    cases = [_copies(tmp_path, 80_000_000, "Pageable", returns_ns) for returns_ns in (2 * US, -7 * US)]
    after, before = (case.sensitivities.transfer for case in cases)
    assert before == pytest.approx(after, rel=0.01) and before > 0.25


@pytest.mark.parametrize(("size", "memory"), [(80_000_000, "Pinned"), (8_192, "Pageable")])
def test_no_pinning_of_what_is_pinned_or_small(tmp_path, size, memory):
    assert not list(pageable_copies.find(_copies(tmp_path, size, memory)))


def _ahead(tmp_path, memory: str, *, reads: bool = False, blocks: bool = True, inside: bool = False) -> Analysis:
    """The GPU works for 6 ms on what the CPU launches in 5 ms: the CPU could be ahead, but waits for a small batch.
    Until the first kernel of a step it then works for 0.5 ms, in which the GPU has nothing to do."""

    def batch(program: Program):
        start = program.now
        call = (start + 2 * US, start + 6 * US)
        program.launch(f"Memcpy HtoD ({memory} -> Device)", call, 1 * US, cat="gpu_memcpy", bytes=8_192)
        end = max(call[1], program.idle_at) + 5 * US if blocks else call[1]
        if blocks:
            program.trace.call("cudaStreamSynchronize", call[1] + US, end)
        program.trace.op("aten::copy_", start, end + US)
        program.now = end + 2 * US

    def layers(program: Program):
        program.python(500 * US)
        for _ in range(50):
            program.small_mm(gpu=60 * US)
            program.python(20 * US)

    program = Program()

    def body():
        if not inside:
            batch(program)
        layers(program)
        if inside:
            batch(program)
            layers(program)
        program.backward(lambda: program.small_mm(gpu=60 * US), 50)
        if reads:
            program.item()

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path)


@pytest.mark.parametrize("memory", ["Pageable", "Pinned"])
def test_a_small_batch_keeps_the_cpu_from_running_ahead(tmp_path, memory: str):
    """From pinned memory too: a copy without non_blocking=True ends with a wait for the stream."""
    case = _ahead(tmp_path, memory)
    proposal = only(pageable_copies, case, "awaited")
    assert "non_blocking=True" in str(proposal.fix) and proposal.odds == 1
    # The GPU waits for the first launches of each step, and no longer does: its 100 kernels are left.
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(100 * 61 * US, rel=0.01)
    assert case.step_ns == pytest.approx(100 * 61 * US + 500 * US, rel=0.02)
    assert not list(pageable_copies.find(_ahead(tmp_path / "asynchronous", memory, blocks=False)))


def test_a_copy_within_a_pass_may_be_of_what_the_pass_makes(tmp_path):
    proposal = only(pageable_copies, _ahead(tmp_path, "Pageable", inside=True), "awaited")
    assert 0.5 < proposal.odds < 1 and proposal.needs


def test_what_is_read_and_the_next_batch_stop_the_cpu_together(tmp_path):
    """Each of both waits hides behind the other: one is worth nothing alone."""
    case = _ahead(tmp_path, "Pinned", reads=True)
    assert not list(pageable_copies.find(case))
    (together,) = syncs.find(case)
    assert together.key == "all" and "non_blocking=True" in str(together.fix) and ".item()" in str(together.fix)
    assert case.step_ns / case.step_of(together.change(case.graph)) > 1.01
    assert not list(syncs.find(_ahead(tmp_path / "alone", "Pinned")))
    within = _ahead(tmp_path / "within", "Pinned", reads=True, inside=True)
    assert not [one for one in syncs.find(within) if "non_blocking" in str(one.fix)], "it may be of what the pass makes"


@pytest.mark.parametrize(("copies", "size"), [(12, 512), (2, 512), (12, 4_000_000)], ids=["small", "few", "large"])
def test_small_tensors_that_each_layer_copies(tmp_path, copies: int, size: int):
    """Each copy stops the CPU; a batch has only a few tensors, and large ones have another fix."""

    def within(program: Program, layer: int) -> None:
        if layer < copies:
            start = program.now
            call = (start + 4 * US, start + 8 * US)
            program.launch("Memcpy HtoD (Pageable -> Device)", call, 2 * US, cat="gpu_memcpy", bytes=size)
            program.trace.call("cudaStreamSynchronize", call[1], max(call[1], program.idle_at) + 3 * US)
            program.now = max(call[1], program.idle_at) + 5 * US
            program.trace.op("aten::copy_", start + US, program.now - US)
            program.trace.op("aten::to", start, program.now)

    found = [one for one in pageable_copies.find(eager(tmp_path, within=within)) if one.key == "small"]
    assert len(found) == (copies == 12 and size == 512)
    if found:
        assert "12 copies a step of at most 512 bytes" in found[0].evidence[0].text and found[0].odds < 0.9


def _saves(tmp_path, steps: int, steps_with: set[int]) -> Analysis:
    count = iter(range(100))

    def end(program: Program):
        program.op("aten::_foreach_mul_", kernel="multi_tensor_apply_kernel")
        program.trace.annotation("Optimizer.step#AdamW.step", program.now - 25 * US, program.now)
        if next(count) in steps_with:
            start = program.now
            program.python(100 * MS)
            program.trace.annotation("save_checkpoint", start, program.now)

    return eager(tmp_path, steps=steps, end=end)


def test_the_mean_step_of_other_processes_is_known_less_well():
    """However even the steps of one process are, the next may run 6 % faster or slower, and a wide interval stays
    wide."""
    even = Budget(100 * MS, 100 * MS, 100 * MS, 100 * MS, (), (), 0, 20, "free")
    assert even.of_processes == (pytest.approx(100 * MS / 1.06, abs=1), pytest.approx(106 * MS, abs=1))
    wide = replace(even, low=50 * MS, high=200 * MS)
    assert wide.of_processes[0] < 50 * MS < 200 * MS < wide.of_processes[1] < 202 * MS


def test_saving_that_a_run_timed(tmp_path):
    """Saving adds 225 ms to a mean step of 325; done a tenth as often, it adds 22.5 ms."""
    excess = (Excess("save", 225 * MS, 5), Excess("input", 1 * MS, 3))
    found = Budget(326 * MS, 300 * MS, 350 * MS, 100 * MS, excess, (), 0, 20, "free")
    case = with_facts(_saves(tmp_path, 3, set()), run=run_of(), budget=found)
    mean = MeanStep(case.graph, usual_ns=100 * MS, mean_ns=325 * MS, lumps_ns={"save": 225 * MS})
    case = with_facts(case, mean=mean)
    (proposal,) = rare_steps.find(case)
    assert "saving adds 225 ms to the mean step (5 of 20 timed steps)" in proposal.evidence[0].text
    assert predict(case, proposal).expected == pytest.approx(122.5 * MS)
    assert not list(rare_steps.find(with_facts(case, budget=replace(found, excess=excess[1:]))))


def test_collections_that_python_makes_by_itself(tmp_path):
    """700 ms in one of twenty steps add 35 ms to the mean one; an objects' freeze leaves 15 % of that."""
    excess = (Excess("garbage_collection", 35 * MS, 1),)
    found = Budget(135 * MS, 130 * MS, 140 * MS, 100 * MS, excess, (), 0, 20, "free")
    case = with_facts(_saves(tmp_path, 3, set()), run=run_of(), budget=found)
    lumps = {"garbage_collection": 35 * MS}
    case = with_facts(case, mean=MeanStep(case.graph, usual_ns=100 * MS, mean_ns=135 * MS, lumps_ns=lumps))
    proposal = only(garbage_collection, case, "some_steps")
    assert "1 of 20 timed steps, which adds 35 ms" in proposal.evidence[0].text
    assert "gc.freeze()" in str(proposal.fix)
    assert predict(case, proposal).expected == pytest.approx((100 + 0.15 * 35) * MS)
    little = replace(found, excess=(replace(excess[0], mean_ns=2 * MS),))
    assert not list(garbage_collection.find(with_facts(case, budget=little)))


def test_evaluation_in_larger_batches_has_the_room_that_training_shows(tmp_path):
    """An eighth of 225 ms is left if a step takes no longer for 8 times the samples; otherwise nothing is known."""
    excess = (Excess("evaluation", 225 * MS, 5, every=20),)
    found = Budget(325 * MS, 300 * MS, 350 * MS, 100 * MS, excess, (), 0, 20, "free")
    case = with_facts(_saves(tmp_path, 3, set()), run=run_of(), budget=found)
    case = with_facts(
        case, mean=MeanStep(case.graph, usual_ns=100 * MS, mean_ns=325 * MS, lumps_ns={"evaluation": 225 * MS})
    )
    proposal = only(rare_steps, case, "larger")
    assert predict(case, proposal).expected == pytest.approx((100 + 225 / 8) * MS, rel=0.01)
    assert proposal.odds < 0.9 and "no larger than the training's" in proposal.needs
    saving = replace(found, excess=(replace(excess[0], cause="save"),))
    assert all(one.key != "larger" for one in rare_steps.find(with_facts(case, budget=saving)))


def test_a_rare_step_that_saves(tmp_path):
    case = _saves(tmp_path, 5, {2})
    proposal = only(rare_steps, case)
    median = float(np.median(case.schedule.each_ns))
    assert proposal.work == pytest.approx(1 + 100 * MS / 5 / median, rel=0.05)
    assert not list(rare_steps.find(_saves(tmp_path, 5, set())))
    assert not list(rare_steps.find(_saves(tmp_path, 3, {1}))), "of three steps none is usual"

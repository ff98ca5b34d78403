"""Findings about the host: small programs whose fixed step a hand computation tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.case import only, run_of
from helpers.present import present
from helpers.program import GAP, MS, SHORT, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.budget_model import Budget, Excess
from gpuprof.diagnosis.detect import batch_scaling, captured_graphs, compiled_passes, compiling
from gpuprof.diagnosis.detect.compiled_code import compiled_share
from gpuprof.diagnosis.detect.micro_batches import micro_batches
from gpuprof.diagnosis.findings import (
    allocator,
    compile,
    cuda_graphs,
    larger_batch,
    optimizer,
    pageable_copies,
    planning,
    rare_steps,
    recompiles,
    syncs,
)
from gpuprof.diagnosis.predict import LEAST_GAIN, fixes
from gpuprof.diagnosis.predicted_step import predict
from gpuprof.diagnosis.verdict import host_cause
from gpuprof.replay.mean_step import MeanStep


def shown(module, case: Analysis) -> list:
    """The proposals that are worth showing."""
    return [p for p in module.find(case) if p.work * case.step_ns / predict(case, p).expected >= LEAST_GAIN]


LAYERS, CHAIN, PAUSE = 60, 4, 20 * US


def eager(tmp_path, *, steps=3, within=None, begin=None, end=None) -> Analysis:
    """Layers of one product and a chain of elementwise ops, with pauses for Python; tiny kernels, so launch-bound.

    within, begin, end: what else a step does in its forward pass, before it and after the backward pass.
    """
    program = Program()

    def layer():
        program.small_mm()
        program.python(PAUSE)
        for _ in range(CHAIN):
            program.elementwise()
            program.python(PAUSE)

    def body():
        if begin:
            begin(program)
        for i in range(LAYERS):
            layer()
            if within:
                within(program, i)
        program.backward(layer, LAYERS)
        if end:
            end(program)

    for _ in range(steps):
        program.step(body)
    return program.case(tmp_path)


# -- torch.compile and CUDA graphs


def test_compile_keeps_products_and_one_launch_for_each_chain(tmp_path):
    case = eager(tmp_path)
    layer_ns = (1 + CHAIN) * (20 * US + PAUSE)
    assert case.step_ns == pytest.approx(2 * LAYERS * layer_ns, rel=0.02)
    found = compiled_passes.passes(case)
    assert found is not None
    assert len(found.speaker) == 2 * LAYERS * case.steps
    proposal = only(compile, case)
    host, left, once = compiled_passes.HOST[1], compiled_passes.LEFT, compiled_passes.PASS_NS[1]
    expected = 2 * (LAYERS * 20 * US * host * (1 + left) + once)
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(expected, rel=0.03)
    assert "reduce-overhead" not in str(proposal.fix)


def test_work_of_its_own_inside_a_pass_is_not_compiled_away(tmp_path):
    """30 ms in one piece are no launches: only at best they are gone."""
    case = eager(tmp_path, within=lambda program, i: program.python(30 * MS) if i == 5 else None)
    plain = eager(tmp_path / "plain")
    proposal, without = only(compile, case), only(compile, plain)
    expected = plain.step_of(without.change(plain.graph)) + 30 * MS
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(expected, rel=0.02)
    assert proposal.best is not None and case.step_of(proposal.best(case.graph)) < 10 * MS


def test_cuda_graphs_leave_the_passes_and_the_gpu(tmp_path):
    case = eager(tmp_path)
    proposal = only(cuda_graphs, case)
    assert "mark_step_begin()  # before each pass" in str(proposal.fix)
    assert (str(cuda_graphs.CLONED) in str(proposal.fix)) == ((micro_batches(case) or 1) > 1)
    products = (
        2
        * LAYERS
        * (3 * US * compiled_passes.REST[1] + 3 * US * compiled_passes.FUSED[1] + 2 * captured_graphs.NEXT_NS)
    )
    expected = max(products, 2 * compiled_passes.PASS_NS[1])
    step = case.step_of(proposal.change(case.graph))
    assert 0.8 * expected <= step <= expected + 2.2 * compiled_passes.PASS_NS[1]
    assert step < 0.6 * case.step_of(only(compile, case).change(case.graph))


def test_fused_kernels_are_as_long_as_their_longest(tmp_path):
    """A GPU-bound step: each chain's four kernels of 100 µs become one."""
    program = Program()

    def layer():
        program.small_mm(gpu=100 * US)
        for _ in range(CHAIN):
            program.elementwise(100 * US)

    def body():
        for _ in range(20):
            layer()
        program.backward(layer, 20)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    proposal = only(compile, case)
    expected = 40 * 100 * US * (compiled_passes.REST[1] + compiled_passes.FUSED[1])
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(expected, rel=0.05)
    assert not list(cuda_graphs.find(case)), "a GPU that is busy needs no graphs"


def test_gradients_of_biases_take_kernels_of_their_own(tmp_path):
    """A sum in the backward pass is reduced in two stages whatever it is fused with; one in the forward pass is not."""

    def summed(folder, name, count):
        program = Program()

        def layer():
            program.small_mm()
            program.elementwise()

        def back():
            layer()
            for _ in range(count):
                program.op(name, "reduce_kernel", SHORT)

        def body():
            for _ in range(LAYERS):
                layer()
            program.backward(back, LAYERS)

        for _ in range(3):
            program.step(body)
        return program.case(folder)

    cases = [summed(tmp_path / str(number), name, 1) for number, name in enumerate(("aten::sum", "aten::mean"))]
    steps = [case.step_of(only(compile, case).change(case.graph)) for case in cases]
    found = present(compiled_passes.passes(cases[-1]))
    more = LAYERS * compiled_passes.ACROSS[1] * compiled_passes.HOST[1] * found.launch_ns
    assert steps[0] - steps[1] == pytest.approx(more, rel=0.05)


def test_no_compile_where_values_part_the_graph(tmp_path):
    case = eager(tmp_path, within=lambda program, i: program.item() if i % 6 == 0 else None)
    assert compiled_passes.passes(case) is None
    few = eager(tmp_path, within=lambda program, i: program.item() if i == 5 else None)
    assert compiled_passes.passes(few) is not None


def test_where_values_part_the_graph_the_price_is_that_of_a_chain(tmp_path):
    """What compiling gains once the waits are gone, which is stated and may not be possible; a size that depends on
    values is less likely to go."""
    case = eager(tmp_path, within=lambda program, i: program.item() if i % 6 == 0 else None)
    chain, plain = only(compile, case), only(compile, eager(tmp_path))
    assert chain.parts[-1] == "torch.compile" and "of the GPU" not in chain.needs and "aten::item" in chain.needs
    alike = eager(tmp_path)
    assert case.step_of(chain.change(case.graph)) == pytest.approx(alike.step_of(plain.change(alike.graph)), rel=0.15)
    sized = only(compile, eager(tmp_path, within=lambda program, i: program.nonzero([64]) if i % 6 == 0 else None))
    assert 0.5 < sized.odds < chain.odds < 1.0
    found = {one.id: one for one in fixes(case).worth_trying}
    assert found["compile"].needs == chain.needs and found["compile"].speedup.low == 1.0
    assert "compile" not in {one.id for one in fixes(case).findings}


def test_waits_of_two_kinds_that_only_gain_together_are_one_fix(tmp_path):
    """The CPU runs ahead of the GPU only where neither a value nor a size stops it."""
    program = Program()

    def body() -> None:
        for _ in range(25):
            program.small_mm(10 * US, 200 * US)
        program.item()
        program.nonzero([64])
        for _ in range(25):
            program.small_mm(200 * US, 10 * US)

    for _ in range(4):
        program.step(body)
    found = list(syncs.find(program.case(tmp_path)))
    assert [one.title for one in found] == ["no waits for the GPU within the step"]
    assert "torch.nonzero_static" in str(found[0].fix) and "clip_grad_norm_" in str(found[0].fix)


@pytest.mark.parametrize("mark", ["Torch-Compiled Region: 0/0", "CompiledFunction"])
def test_no_compile_where_it_is_compiled(tmp_path, mark):
    program = Program()

    def marked(body):
        start = program.now
        body()
        program.trace.op(mark, start - 1 * US, program.now + 1 * US, program.tid)
        program.now += 2 * US

    def layers():
        for _ in range(LAYERS):
            program.small_mm()
            program.elementwise()
            program.python(PAUSE)

    def body():
        program.python(5 * US)
        marked(layers)
        program.backward(lambda: marked(layers), 1)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    assert compiled_share(case.timeline) > 0.9
    assert not list(compile.find(case))


def test_one_compiled_region_does_not_make_a_model_compiled(tmp_path):
    """A compiled helper with one kernel; the layers are eager."""

    def helper(program: Program):
        start = program.now
        program.elementwise()
        program.trace.op("Torch-Compiled Region: 0/0", start - 1 * US, program.now + 1 * US, program.tid)
        program.now += 2 * US

    case = eager(tmp_path, begin=helper)
    assert 0 <= compiled_share(case.timeline) < 0.01
    assert only(compile, case)
    assert not compile.ABSENT.why(case)


def test_collectives_can_be_captured(tmp_path):
    case = eager(tmp_path, end=lambda program: program.op("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum", SHORT))
    assert only(cuda_graphs, case)


def test_a_step_that_a_graph_launches_is_not_advised_graphs(tmp_path):
    """Names of calls decide: the same step launched by cudaGraphLaunch needs no graphs."""
    case = eager(tmp_path)
    assert only(cuda_graphs, case)
    strings = ["cudaGraphLaunch" if text == "cudaLaunchKernel" else text for text in case.trace.strings]
    graphed = case.with_facts(timeline=replace(case.timeline, trace=replace(case.trace, strings=strings)))
    assert not list(cuda_graphs.find(graphed))
    assert cuda_graphs.ABSENT.why(graphed) == "CUDA graphs launch most kernels already"


def test_graphs_where_lengths_vary_are_priced_with_the_padding_that_they_need(tmp_path):
    """Lengths of 100 to 102 become 128: the kernels take 1.27 times as long, and it may not be possible."""
    length = iter(range(100, 200))

    def begin(program: Program):
        program.op("aten::embedding", kernel="indexSelect", dims=[[1000, 64], [1, next(length)]])

    case = eager(tmp_path, begin=begin)
    found = only(cuda_graphs, case)
    assert found.parts == ("lengths padded to 64", "torch.compile with CUDA graphs")
    assert "1.27 times the tokens" in found.needs and found.odds == 0.8
    assert "dynamic=True" in str(only(compile, case).fix)


def test_graphs_on_top_of_compiled_code(tmp_path):
    program = Program()

    def region(launches):
        start = program.now
        for _ in range(launches):
            program.op("aten::mm", "nvjet_hsh_64x8", SHORT)
        program.trace.op(
            "## Call CompiledFxGraph fabc ##", start - 1 * US, program.now + 1 * US, program.tid, "user_annotation"
        )
        program.now += 2 * US

    def body():
        program.python(5 * US)
        region(200)
        program.backward(lambda: region(300), 1)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    proposal = only(cuda_graphs, case)
    # The host is done long before the GPU, which goes from kernel to kernel as graphs do.
    step = case.step_of(proposal.change(case.graph))
    assert step == pytest.approx(500 * (3 * US + captured_graphs.NEXT_NS), rel=0.05)
    host = [proposal.change(case.graph).duration_ns[case.graph.lane >= 0].sum() / 3, 2 * captured_graphs.GRAPH_NS[1]]
    assert host[0] == pytest.approx(host[1], abs=50 * US)  # two launches, and what is not in the regions


# -- a larger batch


def test_a_launch_bound_step_takes_more_tokens_in_the_same_time(tmp_path):
    case = eager(tmp_path)
    proposal = only(larger_batch, case)
    assert proposal.work == 8
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_ns, rel=0.02)


def test_kernels_that_fill_the_chip_grow_with_the_tokens(tmp_path):
    program = Program()

    def layer():
        start = program.now
        program.launch(
            "vectorized_elementwise_kernel",
            (start + 2 * US, start + 6 * US),
            200 * US,
            grid=[4096, 1, 1],
            block=[128, 1, 1],
        )
        program.trace.op("aten::mul", start, start + 8 * US, program.tid)
        program.now = start + 10 * US

    def body():
        for _ in range(20):
            layer()
        program.backward(layer, 20)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    doubled = case.step_of(batch_scaling.scaled_batch(case, 2)(case.graph))
    assert doubled == pytest.approx(2 * case.step_ns, rel=0.05)
    assert not list(larger_batch.find(case))


# -- waits


def _queued(tmp_path, waits: bool) -> Analysis:
    """The host is quick and the GPU is not, until a value is read and the queue runs dry; then slow host work."""
    program = Program()

    def body():
        for _ in range(50):
            program.small_mm(10 * US, 100 * US)
        if waits:
            program.item()
        for _ in range(50):
            program.small_mm(80 * US, 10 * US)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path)


def test_without_the_wait_the_host_runs_ahead(tmp_path):
    case = _queued(tmp_path, waits=True)
    gpu, slow = 50 * (100 * US + GAP), 50 * 80 * US
    assert case.step_ns == pytest.approx(gpu + slow, rel=0.03)
    proposal = only(syncs, case, "values")
    # 0.5 ms to launch what takes the GPU 5 ms, then 4 ms of host work at the same time: the GPU limits.
    freed = case.step_of(proposal.change(case.graph))
    assert freed == pytest.approx(50 * (100 * US + GAP) + 50 * (10 * US + GAP), rel=0.03)
    assert freed == pytest.approx(_queued(tmp_path, waits=False).step_ns, rel=0.03)
    assert "aten::item" in proposal.evidence[0].text
    assert proposal.evidence[0].text.startswith("values read from the GPU: 1 a step")


def test_a_wait_that_finds_the_gpu_idle_is_no_finding(tmp_path):
    assert not shown(syncs, eager(tmp_path, within=lambda program, i: program.item() if i % 20 == 0 else None))


def test_a_step_closed_by_a_synchronisation_names_that(tmp_path):
    program = Program()

    def body():
        for _ in range(50):
            program.small_mm(10 * US, 50 * US)
        program.synchronize("cudaDeviceSynchronize")
        program.python(1 * MS)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    proposal = only(syncs, case, "explicit")
    assert case.step_ns == pytest.approx(50 * 51 * US + 1 * MS, rel=0.03)
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(50 * 51 * US, rel=0.03)
    assert "synchronize" in str(proposal.fix)


# -- the optimizer


def _optimizer(tmp_path, name: str, op: str, count: int, late: int = 0) -> Analysis:
    """late: how long after the end of the step the optimizer's range ends."""

    def end(program: Program):
        start = program.now
        for _ in range(count):
            program.op(op, kernel="multi_tensor_apply_kernel<FusedAdam>", gpu=20 * US)
        program.trace.annotation(f"Optimizer.step#{name}.step", start - 1 * US, program.now + 1 * US + late)
        program.now += 2 * US

    return eager(tmp_path, end=end)


def test_a_loop_over_parameters_becomes_one_kernel(tmp_path):
    case = _optimizer(tmp_path, "AdamW", "aten::addcdiv_", 600)
    proposal = only(optimizer, case)
    saved = 600 * 20 * US * (1 - optimizer.LOOP_HOST[1])
    # Launched last, the fused kernel is what the next step's first kernels wait for, or next to that step's host work.
    tail = 600 * 20 * US * optimizer.GPU[1]
    step = case.step_of(proposal.change(case.graph))
    assert 0.99 * (case.step_ns - saved) <= step <= case.step_ns - saved + tail
    assert str(proposal.fix) == "torch.optim.AdamW(..., fused=True)"


def test_a_profiler_that_steps_within_the_optimizer(tmp_path):
    """The next step's range then begins in the optimizer's, and lies in it by its times."""
    case = _optimizer(tmp_path, "AdamW", "aten::_foreach_mul_", 40, late=5 * US)
    assert ": 40 kernels a step" in only(optimizer, case).evidence[0].text


@pytest.mark.parametrize(("name", "op"), [("AdamW", "aten::_fused_adamw_"), ("AdamW8bit", "aten::_foreach_mul_")])
def test_no_fused_optimizer_where_there_is_none_or_it_is_fused(tmp_path, name, op):
    assert not list(optimizer.find(_optimizer(tmp_path, name, op, 40)))


@pytest.mark.parametrize(("torch", "offered"), [("2.11.0+cu130", False), ("2.13.0+cu130", True), (None, False)])
def test_adagrad_is_fused_where_torch_can(tmp_path, torch: str | None, offered: bool):
    case = _optimizer(tmp_path, "Adagrad", "aten::_foreach_mul_", 40)
    versions = {} if torch is None else {"torch_version": torch}
    assert bool(list(optimizer.find(case.with_facts(versions=versions)))) == offered


def test_a_small_optimizer_is_within_the_noise(tmp_path):
    assert not shown(optimizer, _optimizer(tmp_path, "AdamW", "aten::_foreach_mul_", 6))


# -- the allocator, plans, copies, rare steps


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
    saved = 40 * 200 * US * (1 - allocator.LEFT[1])
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_ns - saved, rel=0.02)
    assert "expandable_segments" in str(proposal.fix)
    assert not list(allocator.find(_allocates(tmp_path, {0})))


def test_allocations_in_the_only_step_of_a_run_that_had_settled(tmp_path):
    case = _allocates(tmp_path, {0}, steps=1)
    assert not list(allocator.find(case)), "the first step of a training allocates anyway"
    assert list(allocator.find(case.with_facts(run=run_of())))


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
    """Each step compiles for 60 ms, in which 200 candidates of a kernel are tried for 50 µs each, and takes 0.5 ms for
    the first product of its shape."""

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
    usual = recompiles.USUAL_NS
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
    """In addition to 5 ms of compiling: 40 ops of 1 ms that launch nothing, and 50 ms of one at every step."""

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


def _copies(tmp_path, size: int, memory: str, returns_ns: int = 2 * US) -> Analysis:
    """`returns_ns`: how long after a copy from pageable memory its call returns."""

    def begin(program: Program):
        start, ns = program.now, max(size // 8, 2 * US)  # 8 GB/s
        call = (start + 2 * US, start + 8 * US)
        work = (call[0] + 5 * US, call[0] + 5 * US + ns)
        if memory == "Pageable":
            call = (call[0], work[1] + returns_ns)
        name = f"Memcpy HtoD ({memory} -> Device)"
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
    # The copy overlaps the host's work, which is longer than it is.
    assert saved == pytest.approx(size / 8, rel=0.03)
    assert "non_blocking=True" in str(proposal.fix)


def test_copies_through_the_processor_leave_its_caches_to_the_rest(tmp_path):
    case = _copies(tmp_path, 80_000_000, "Pageable")
    (proposal,) = pageable_copies.find(case)
    assert proposal.best and proposal.worst
    steps = [case.step_of(way(case.graph)) for way in (proposal.best, proposal.change, proposal.worst)]
    # Bound by the host after it, which loses the copy, and at best and usually some of its other work.
    rest = case.step_ns - 10 * MS
    for step, loss in zip(steps, pageable_copies.CACHE_LOSS, strict=True):
        assert step == pytest.approx(loss * rest, rel=0.05)


def test_a_copy_blocks_though_its_call_returns_a_little_before_it_ends(tmp_path):
    """The driver lets the host go once the last piece is in its buffer: 7 µs before the end of 65 ms on an H200."""
    cases = [_copies(tmp_path, 80_000_000, "Pageable", returns_ns) for returns_ns in (2 * US, -7 * US)]
    after, before = (case.sensitivities.transfer for case in cases)
    assert before == pytest.approx(after, rel=0.01) and before > 0.25


@pytest.mark.parametrize(("size", "memory"), [(80_000_000, "Pinned"), (8_192, "Pageable")])
def test_no_pinning_of_what_is_pinned_or_small(tmp_path, size, memory):
    assert not list(pageable_copies.find(_copies(tmp_path, size, memory)))


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
    """However evenly one process steps: the next may run 6 % faster or slower, and a wide interval stays wide."""
    even = Budget(100 * MS, 100 * MS, 100 * MS, 100 * MS, (), (), 0, 20, "free")
    assert even.of_processes == (pytest.approx(100 * MS / 1.06, abs=1), pytest.approx(106 * MS, abs=1))
    wide = replace(even, low=50 * MS, high=200 * MS)
    assert wide.of_processes[0] < 50 * MS < 200 * MS < wide.of_processes[1] < 202 * MS


def test_saving_that_a_run_timed(tmp_path):
    """Saving adds 225 ms to a mean step of 325: done a tenth as often, 22.5 ms of it are left."""
    excess = (Excess("save", 225 * MS, 5), Excess("input", 1 * MS, 3))
    found = Budget(326 * MS, 300 * MS, 350 * MS, 100 * MS, excess, (), 0, 20, "free")
    case = _saves(tmp_path, 3, set()).with_facts(run=run_of(), budget=found)
    mean = MeanStep(case.graph, usual_ns=100 * MS, mean_ns=325 * MS, lumps_ns={"save": 225 * MS})
    case = case.with_facts(mean=mean)
    (proposal,) = rare_steps.find(case)
    assert "saving adds 225 ms to the mean step (5 of 20 timed steps)" in proposal.evidence[0].text
    assert predict(case, proposal).expected == pytest.approx(122.5 * MS)
    assert not list(rare_steps.find(case.with_facts(budget=replace(found, excess=excess[1:]))))


def test_a_rare_step_that_saves(tmp_path):
    case = _saves(tmp_path, 5, {2})
    proposal = only(rare_steps, case)
    median = float(np.median(case.schedule.each_ns))
    assert proposal.work == pytest.approx(1 + 100 * MS / 5 / median, rel=0.05)
    assert not list(rare_steps.find(_saves(tmp_path, 5, set())))
    assert not list(rare_steps.find(_saves(tmp_path, 3, {1}))), "of three steps none is usual"

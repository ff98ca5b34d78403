"""Findings about the host: small programs whose fixed step can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.case import only, shown, with_facts
from helpers.eager_program import CHAIN, LAYERS, PAUSE, eager
from helpers.present import present
from helpers.program import GAP, MS, SHORT, US, Program

from gpuprof.calibration import breaks as breaks_calibrated
from gpuprof.calibration import compile as compile_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batches import batch_scaling
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batches
from gpuprof.diagnosis.detect.compiled import captured_graphs, compiled_passes
from gpuprof.diagnosis.detect.compiled.foreseen_breaks import further_calls
from gpuprof.diagnosis.detect.compiled_code import compiled_share
from gpuprof.diagnosis.findings import compile, cuda_graphs, larger_batch, syncs
from gpuprof.diagnosis.fixes.predict import fixes


def test_compile_keeps_products_and_one_launch_for_each_chain(tmp_path):
    case = eager(tmp_path)
    layer_ns = (1 + CHAIN) * (20 * US + PAUSE)
    assert case.step_ns == pytest.approx(2 * LAYERS * layer_ns, rel=0.02)
    found = compiled_passes.passes(case)
    assert found is not None
    assert len(found.speaker) == 2 * LAYERS * case.steps
    proposal = only(compile, case)
    host, left, once = (
        compile_calibrated.HOST.rising[1],
        compile_calibrated.CHAINS_LEFT.value,
        compile_calibrated.PASS_NS.rising[1],
    )
    expected = 2 * (LAYERS * 20 * US * host * (1 + left) + once)
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(expected, rel=0.03)
    assert "reduce-overhead" not in str(proposal.fix)


def test_work_of_its_own_inside_a_pass_is_not_compiled_away(tmp_path):
    """30 ms in one piece are not launches: they disappear only at best."""
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
    matmuls = (
        2
        * LAYERS
        * (
            3 * US * compile_calibrated.REST.rising[1]
            + 3 * US * compile_calibrated.FUSED.rising[1]
            + 2 * compile_calibrated.NEXT_NS.value
        )
    )
    expected = max(matmuls, 2 * compile_calibrated.PASS_NS.rising[1])
    step = case.step_of(proposal.change(case.graph))
    assert 0.8 * expected <= step <= expected + 2.2 * compile_calibrated.PASS_NS.rising[1]
    assert step < 0.6 * case.step_of(only(compile, case).change(case.graph))


def test_short_work_that_graphs_leave_is_quicker_and_long_work_is_not(tmp_path):
    case = eager(tmp_path, begin=lambda program: program.python(30 * MS))
    nothing = np.zeros(len(case.graph), bool)
    captured = captured_graphs.captured(case.graph, nothing, nothing, 0, 1)
    before, after = case.graph.duration_ns, captured(case.graph).duration_ns
    own, long = (case.graph.lane >= 0) & ~case.graph.waits, before > 20 * MS
    assert long.sum() == 3 and (after[long | ~own] == before[long | ~own]).all()
    short = own & ~long
    assert after[short] == pytest.approx(before[short] * compile_calibrated.WARM.value)


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
    expected = 40 * 100 * US * (compile_calibrated.REST.rising[1] + compile_calibrated.FUSED.rising[1])
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(expected, rel=0.05)
    assert not list(cuda_graphs.find(case)), "a GPU that is busy needs no graphs"


def test_kernels_of_a_library_call_stay_and_one_launch_takes_its_own_work_and_one_of_its_calls(tmp_path):
    """A convolution that converts layouts first launches three kernels; compiled code makes the same call."""

    def built(folder, conversions):
        program = Program()

        def layer():
            for i in range(conversions):
                program.launch(
                    "void nchwToNhwcKernel<float>", (program.now + (2 + i) * US, program.now + (3 + i) * US), SHORT
                )
            program.small_mm()
            program.elementwise()

        def body():
            for _ in range(LAYERS):
                layer()
            program.backward(layer, LAYERS)

        for _ in range(3):
            program.step(body)
        return program.case(folder)

    plain, converting = (built(tmp_path / str(count), count) for count in (0, 2))
    one, three = (present(compiled_passes.passes(case)) for case in (plain, converting))
    assert len(three.speaker) == len(one.speaker) and (three.group >= 0).sum() == (one.group >= 0).sum()
    before = 2 * converting.steps  # a pass begins at its first matmul
    assert three.rest.sum() == 3 * one.rest.sum() - before
    calls = 4 * US, 4 * US + 2 * US  # of the matmul's kernel alone, and with two conversions
    assert three.launch_ns == pytest.approx(one.launch_ns - calls[1] + calls[1] / 3, rel=0.01)


def test_a_cast_of_a_weight_is_no_part_of_its_chain(tmp_path):
    """Its size does not divide that of the activations; the size of a row's statistics does, and they are fused. A
    batch norm's chain reads its data again."""

    def built(folder: Path, name: str, *shape: int) -> Analysis:
        program = Program()

        def layer():
            program.small_mm()
            program.plain("mul", [128, 512])
            program.plain(name, list(shape), gpu=SHORT)

        def body():
            for _ in range(LAYERS):
                layer()
            program.backward(layer, LAYERS)

        for _ in range(3):
            program.step(body)
        return program.case(folder)

    cast = built(tmp_path / "weight", "copy_", 500, 512)
    found = present(compiled_passes.passes(cast))
    assert found.apart.tolist() == [1] * len(found.speaker)
    assert found.apart_ns == pytest.approx(2 * US)  # the smaller tensor is apart
    one, normed = (
        present(compiled_passes.passes(case))
        for case in (built(tmp_path / "row", "pow", 128), built(tmp_path / "norm", "native_batch_norm", 128, 512))
    )
    assert not one.apart.any() and not one.read_again.any()
    assert normed.read_again.tolist() == normed.across_rows.tolist() == [1] * len(normed.speaker)


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
    more = LAYERS * compile_calibrated.ACROSS.rising[1] * compile_calibrated.HOST.rising[1] * found.launch_ns
    assert steps[0] - steps[1] == pytest.approx(more, rel=0.05)


def test_no_compile_where_values_part_the_graph(tmp_path):
    case = eager(tmp_path, within=lambda program, i: program.item() if i % 6 == 0 else None)
    assert compiled_passes.passes(case) is None
    few = eager(tmp_path, within=lambda program, i: program.item() if i == 5 else None)
    assert compiled_passes.passes(few) is not None


def test_where_values_part_the_graph_the_price_is_that_of_a_chain(tmp_path):
    """The price is what compiling gains once the waits are gone, which is stated and may not be possible; a size that
    depends on values is less likely to be removable."""
    case = eager(tmp_path, within=lambda program, i: program.item() if i % 6 == 0 else None)
    chain, plain = only(compile, case), only(compile, eager(tmp_path))
    assert chain.parts[-1] == "torch.compile" and "of the GPU" not in chain.needs and "aten::item" in chain.needs
    alike = eager(tmp_path)
    assert case.step_of(chain.change(case.graph)) == pytest.approx(alike.step_of(plain.change(alike.graph)), rel=0.15)
    sized = only(compile, eager(tmp_path, within=lambda program, i: program.nonzero([64]) if i % 6 == 0 else None))
    assert 0.5 < sized.odds < chain.odds < 1.0
    found = {one.id: one for one in fixes(case).worth_trying}
    assert found["compile"].needs == chain.needs and found["compile"].probability < 1.0
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
@pytest.mark.parametrize("fused", [True, False])
def test_no_compile_where_it_is_compiled(tmp_path, mark, fused):
    """Ranges of compiled code whose kernels Inductor generated; a captured graph that runs op by op is eager."""
    program = Program()

    def marked(body):
        start = program.now
        body()
        program.trace.op(mark, start - 1 * US, program.now + 1 * US, program.tid)
        program.now += 2 * US

    def layers():
        for _ in range(LAYERS):
            program.small_mm()
            if fused:
                program.launch("triton_poi_fused_mul_0", (program.now + 1 * US, program.now + 3 * US), 2 * US)
            else:
                program.elementwise()
            program.python(PAUSE)

    def body():
        program.python(5 * US)
        marked(layers)
        program.backward(lambda: marked(layers), 1)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    assert (compiled_share(case.timeline) > 0.9) == fused
    found = list(compile.find(case))
    assert bool(found) != fused
    assert fused or any("runs op by op" in one.text for one in found[0].evidence)


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
    graphed = with_facts(case, timeline=replace(case.timeline, trace=replace(case.trace, strings=strings)))
    assert not list(cuda_graphs.find(graphed))
    assert cuda_graphs.ABSENT.why(graphed) == "CUDA graphs launch most kernels already"


def test_graphs_where_lengths_vary_are_priced_with_the_padding_that_they_need(tmp_path):
    """Lengths of 100 to 102 become 128: the kernels take 1.27 times as long, and the change may not be possible."""
    length = iter(range(100, 200))

    def begin(program: Program):
        program.op("aten::embedding", kernel="indexSelect", dims=[[1000, 64], [1, next(length)]])

    case = eager(tmp_path, begin=begin)
    found = only(cuda_graphs, case)
    assert found.parts == ("lengths padded to 64", "torch.compile with CUDA graphs")
    assert found.title == "torch.compile with CUDA graphs, after giving batches one shape", "nothing waits here"
    assert "1.27 times the tokens" in found.needs and found.odds == 0.8
    assert "dynamic=True" in str(only(compile, case).fix)


def test_each_call_of_the_model_enters_the_compiled_code(tmp_path):
    """A policy that acts 40 times before a backward pass: 39 calls more, of 0.13 ms each on the CPU."""

    def acting(times: int):
        def begin(program: Program):
            for _ in range(times):
                program.trace.annotation("forward", program.now, program.now + 1)
                program.now += 1

        return begin

    once, often = (eager(tmp_path / str(times), begin=acting(times)) for times in (1, 40))
    assert further_calls(once) == 0 and further_calls(often) == 39
    for finding in (compile, cuda_graphs):
        a, b = (case.step_of(only(finding, case).change(case.graph)) for case in (once, often))
        assert b - a == pytest.approx(39 * breaks_calibrated.CALL_NS.value, rel=0.1)


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
    # The host finishes long before the GPU, which goes from kernel to kernel as with graphs.
    step = case.step_of(proposal.change(case.graph))
    assert step == pytest.approx(500 * (3 * US + compile_calibrated.NEXT_NS.value), rel=0.05)
    added = proposal.change(case.graph).duration_ns[case.graph.lane >= 0].sum() / 3
    launches = 2 * compile_calibrated.GRAPH_NS.value
    assert added == pytest.approx(launches, abs=50 * US)  # two launches, and what is not in the regions


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

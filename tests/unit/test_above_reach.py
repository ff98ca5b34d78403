"""The ledger of a step: what it should cost and what lies above that, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.above_reach import identity_holds
from helpers.case import with_facts
from helpers.diagnosed import diagnosed
from helpers.program import MS, OP, US, Program
from helpers.quick import few

from gpuprof import diagnose
from gpuprof.calibration import reach as table
from gpuprof.calibration import slow as slow_calibrated
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.gpu.kernel_reach import CELLS, kernel_reach
from gpuprof.diagnosis.reach.ledger import above_reach, explained
from gpuprof.diagnosis.reach.reasons import reason
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.report.page.reach_bar import reach_bars
from gpuprof.report.words.above_words import lines

ROOT = Path(__file__).parents[2]
BF16 = "c10::BFloat16"


def steps(body, count: int = 3) -> Program:
    made = Program()
    for _ in range(count):
        made.step(lambda: body(made))
    return made


def ledger(made: Program, folder: Path, **more):
    case = made.case(folder, **more)
    found = above_reach(case, None, ())
    assert found is not None
    assert identity_holds(found)
    return found


def item(found, word: str):
    return next(one for one in found.items if word in one.what)


def test_a_slow_kernel_costs_what_is_above_the_rate_of_its_kind(tmp_path):
    """A matmul of 4096³ in bf16 takes 0.17 ms at the roofline; of a kernel of 2 ms all above that is listed."""

    def body(made: Program):
        for _ in range(20):
            made.mm(4096, 4096, 4096, gpu=2 * MS)

    made = steps(body)
    case = made.case(tmp_path)
    assert case.roofline is not None, "the GPU is known"
    found = above_reach(case, None, ())
    slow = item(found, "slow matrix multiplications")
    roof = 2 * 4096**3 / case.roofline.ceilings.flops["bf16"] * 1e9
    assert slow.own_ns == pytest.approx(40 * MS, rel=0.01)
    assert slow.reach_ns == pytest.approx(20 * roof / table.GEMM_LONG.value, rel=0.02)
    assert slow.reach_ns is not None
    assert slow.ns == pytest.approx(slow.own_ns - slow.reach_ns, rel=0.05)
    assert slow.where.op == "aten::mm"


def test_waits_and_python_and_batches_are_items(tmp_path):
    def body(made: Program):
        start = made.now
        made.python(5 * MS)
        made.trace.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, made.now, tid=made.tid)
        for _ in range(50):
            made.small_mm()
        made.python(8 * MS)
        for _ in range(50):
            made.small_mm()
            made.python(10 * US)

    found = ledger(steps(body), tmp_path)
    assert item(found, "batch").ns == pytest.approx(5 * MS, rel=0.2)
    assert item(found, "batch").kind == "input"
    assert item(found, "batch").why == "the training process makes its batches itself"
    python = item(found, "Python")
    assert python.ns == pytest.approx(8 * MS, rel=0.05)
    assert python.reach_ns is not None
    assert python.why == "its functions were not sampled"
    assert python.where.before == "aten::mm" and python.where.op is None, "what follows, where no op contains it"


def test_what_workers_do_is_not_recorded_unless_they_are_sampled(tmp_path):
    def body(made):
        start = made.now
        made.python(5 * MS)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        made.trace.op(name, start, made.now, tid=made.tid)
        for _ in range(50):
            made.small_mm()

    assert "--sample-workers" in (item(ledger(steps(body), tmp_path), "batch").why or "")


def test_the_usual_step_that_was_measured_leaves_a_signed_residual(tmp_path):
    case = steps(lambda made: [made.small_mm(gpu=12 * US) for _ in range(50)]).case(tmp_path)
    step = round(case.mean.simulated(case.graph))
    for measured in (step + 1234, step - 777):
        found = above_reach(case, measured, ())
        assert found is not None
        assert found.residual_ns == measured - step
        assert identity_holds(found)


def test_recorded_steps_with_more_work_than_usual_are_scaled(tmp_path):
    """Recorded steps of two micro-batches, where most steps have one: this leaves no residual."""
    case = steps(lambda made: [made.small_mm(gpu=12 * US) for _ in range(50)]).case(tmp_path)
    step = round(case.mean.simulated(case.graph))
    double = with_facts(case, step_times=replace(case.step_times, unprofiled_ns=step))
    found = above_reach(double, step // 2, ())
    assert found is not None
    assert identity_holds(found)
    assert abs(found.residual_ns) <= 1
    assert found.reach_ns == pytest.approx(step // 2, rel=0.01)


def test_an_op_on_host_tensors_computes_on_the_cpu(tmp_path):
    def body(made: Program):
        for n in range(4):
            made.small_mm()
            made.op(
                "aten::mul", "", dims=[[1000, 1000], []], types=["float", "double"], host=(5 * MS if n == 3 else OP)
            )

    found = item(ledger(steps(body), tmp_path), "computing on the CPU")
    assert found.where.op == "aten::mul"
    assert found.ns == pytest.approx((1 - slow_calibrated.MOVED_LEFT.value) * 5 * MS, rel=0.02)
    assert found.finding is None


def test_an_op_in_which_another_launches_has_its_tensors_on_the_gpu(tmp_path):
    """A linear layer whose own Python part is slow, as under anomaly detection."""

    def body(made: Program):
        for n in range(4):
            start = made.now
            made.mm(1000, 1000, 1000)
            made.python(5 * MS if n == 3 else OP)
            arguments = {"Input Dims": [[1000, 1000], [1000, 1000], []], "Input type": [BF16, BF16, ""]}
            made.trace.op("aten::linear", start, made.now, made.tid, **arguments)

    found = ledger(steps(body), tmp_path)
    assert not [one for one in found.items if "computing on the CPU" in one.what]
    assert item(found, "aten::linear takes the CPU unusually long").why is None


def test_sampled_functions_name_long_stretches_of_python():
    """cpu_adam's optimizer runs `_single_tensor_adam`: no stack was recorded, but unprofiled steps were sampled."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "cpu_adam" / "recording").above_reach
    assert found is not None
    python = item(found, "Python in optimizer")
    assert python.where.function == "torch/optim/adam.py: _single_tensor_adam"
    assert python.where.line is not None
    assert "of the samples there" in (python.why or "")


def test_sampled_functions_name_waits():
    """A waiting call takes no time of its own: what waits is the function that was sampled between the node before it
    and its end."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "detr_matcher" / "recording").above_reach
    assert found is not None
    waiting = [item for item in found.items if item.what.startswith(("waiting for the GPU", "copies that block"))]
    assert len(waiting) == 2
    assert all((item.where.function or "").endswith("HungarianMatcher.forward") for item in waiting)


def test_a_recorded_run_is_explained_and_in_words():
    path = ROOT / "scenarios" / "timm_resnet50" / "recording"
    diagnosis = diagnose(path)
    found = diagnosis.above_reach
    assert found is not None
    assert identity_holds(found)
    assert explained(found) >= 0.85
    assert found.unknown_ns == sum(one.ns for one in found.items if one.reach_ns is None)
    document = json.loads(json.dumps(to_json(diagnosis)["above_reach"]))
    assert (
        document["usual_ns"] == document["reach_ns"] + sum(i["ns"] for i in document["items"]) + document["residual_ns"]
    )
    said = lines(diagnosis)
    assert len(said) == 4
    assert "step could take" in said[0] and "on this machine" in said[0]
    assert "replace its ops" not in said[0]
    (bar,) = reach_bars(diagnosis)
    assert sum(part.percent for part in bar.parts) == pytest.approx(100)
    assert bar.parts[0].label == "reach"


def test_launching_is_an_item_where_it_is_most_of_the_step(tmp_path):
    """300 kernels of 2 µs that take the CPU 10 times as long: from a CUDA graph they follow one another directly. Of
    kernels that take as long as their launches only some of the step is gone without these: the reach is this CPU's."""

    def body(gpu: int):
        def run(made: Program):
            for _ in range(300):
                made.small_mm(host=20 * US, gpu=gpu)

        return run

    found = ledger(steps(body(2 * US)), tmp_path / "short")
    mine = item(found, "launched one by one")
    assert mine.kind == "host" and mine.why is not None and "300 a step, half of them under 2" in mine.why
    assert found.largest[0] is mine and mine.ns > 0.8 * found.usual_ns
    assert mine.reach_ns == pytest.approx(300 * 420, rel=0.05)
    assert 300 * 2 * US <= found.reach_ns < 3 * 300 * 2 * US
    longer = ledger(steps(body(18 * US)), tmp_path / "long")
    assert not any("one by one" in one.what for one in longer.items)


def test_a_reach_above_what_a_fix_promises_says_so():
    """A launch-bound step: captured graphs need a sixth of what its ops need when this CPU launches them one by one,
    and the reach is about theirs. If it were above theirs, this would be said."""
    diagnosis = diagnosed(ROOT / "scenarios" / "small_batch" / "recording")
    found, graphs = diagnosis.above_reach, diagnosis.findings[0].step_ns
    assert found is not None and graphs.low < found.reach_ns < graphs.high
    assert "go lower" not in lines(diagnosis)[0]
    diagnosis = replace(diagnosis, above_reach=replace(found, reach_ns=40 * MS))
    assert "on this machine (fixes that replace its ops go lower); what makes it longer, and" in lines(diagnosis)[0]
    unknown = replace(diagnosis, above_reach=replace(found, reach_ns=9 * MS, unknown_ns=20 * MS))
    assert "could take 9.0–29 ms on this machine (how fast 20 ms of it could be is not known" in lines(unknown)[0]


def test_a_fix_that_replaces_no_op_says_nothing_of_the_reach():
    """More work per step, or the same ops less often, does not go below what the ops of this step take."""
    diagnosis = diagnosed(ROOT / "scenarios" / "small_batch" / "recording")
    assert diagnosis.above_reach is not None
    diagnosis = replace(diagnosis, above_reach=replace(diagnosis.above_reach, reach_ns=40 * MS))
    graphs = diagnosis.findings[0]
    both = diagnosis.combined
    assert both is not None and both.work > 1
    for first in (replace(graphs, work=8.0), replace(graphs, id="accumulation"), replace(graphs, id="recompute")):
        assert "replace its ops" not in lines(replace(diagnosis, findings=(first,)))[0]
        says_so = "fixes that run its ops less often go lower" in lines(replace(diagnosis, findings=(first,)))[0]
        assert says_so == (first.work == 1), "the reach is no contradiction to the fix above it"
    together = replace(both, ids=("accumulation", "compile"), work=1.0)
    assert "replace its ops" in lines(replace(diagnosis, findings=(), combined=together))[0]


@pytest.mark.parametrize(
    "name",
    few(
        ["nanogpt", "examples_imagenet", "open_clip_vit", "trl_sft", "accelerate_bert", "lightning_transformer"],
        ["nanogpt", "accelerate_bert"],
    ),
)
def test_programs_that_nothing_was_fitted_to(name):
    """Neither the replay's error nor the time without a known reach is more than 15 % of the usual step."""
    found = diagnosed(ROOT / "scenarios" / name / "recording").above_reach
    assert found is not None
    assert identity_holds(found)
    assert explained(found) >= 0.85


def test_mfu_counts_no_forward_pass_that_repeats_another():
    """Weights of 12 layers and of the output layer in two passes of a teacher, of 4 and of it in three of a student."""
    roof = diagnosed(ROOT / "scenarios" / "programs" / "teacher_twice" / "recording").roofline
    assert roof is not None and roof.useful is not None and roof.mfu is not None and roof.hfu is not None
    width, keys, inner, words = 1024, 256, 2816, 32_000
    layer, head = 2 * width * (width + keys) + 3 * width * inner, width * words
    teacher, student = 12 * layer + head, 3 * (4 * layer + head)
    assert roof.useful.share == pytest.approx((teacher + student) / (2 * teacher + student), abs=0.02)
    assert roof.useful.share is not None and roof.mfu / roof.hfu <= roof.useful.share
    assert "attention mask" in roof.useful.unknown["tokens"]


LATER = {
    "teacher_offloaded": "offload", "teacher_twice": "redundant_forward", "vit_checkpointed": "recompute",
    "gc_each_step": "garbage_collection", "loss_on_cpu": "offload", "one_hot_tokens": "one_hot",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "finding"),
    few([pytest.param(*one, id=one[0]) for one in LATER.items()], ["teacher_twice", "gc_each_step", "one_hot_tokens"]),
)
def test_the_largest_item_of_programs_that_were_recorded_later(name, finding):
    """Without that item, the programs measured 4.4, 1.46, 1.89, 3.2, 4.4 and 2.4 times as fast in fresh processes."""
    diagnosis = diagnosed(ROOT / "scenarios" / "programs" / name / "recording")
    found = diagnosis.above_reach
    assert found is not None and identity_holds(found) and explained(found) >= 0.85
    # A teacher that runs twice is two items of about the same length: the second pass, and the one that is left.
    assert found.largest[0].finding in {finding, *({"frozen_encoder"} if name == "teacher_twice" else ())}
    mine = next(one for one in found.largest if one.finding == finding)
    assert mine.ns >= 0.9 * found.largest[0].ns
    assert finding in {one.id for one in diagnosis.findings}
    assert any(found.largest[0].what in line for line in lines(diagnosis)[:2])
    fix = next(one for one in diagnosis.findings if one.id == finding)
    assert mine.ns == pytest.approx(found.usual_ns - fix.step_ns.expected, rel=0.1), "they say the same"


def test_what_takes_most_of_its_time_outside_of_ops_is_placed_at_none():
    """Collecting garbage is a stretch of Python; the ops whose time is scaled with it are not its place."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "gc_each_step" / "recording").above_reach
    assert found is not None
    assert found.largest[0].finding == "garbage_collection"
    assert (found.largest[0].where.op, found.largest[0].where.module) == (None, None)


@pytest.mark.slow
def test_a_loop_of_python_that_is_worth_trying_lies_above_reach():
    """Weights are averaged one by one: the step went from 68.6 to 41.6 ms with one op over the list of them."""
    found = diagnosed(ROOT / "scenarios" / "cases" / "ema_loop" / "recording").above_reach
    assert found is not None and identity_holds(found)
    mine, launching = item(found, "in a Python loop"), item(found, "launched one by one")
    assert mine.finding == "python_loop" and mine.ns == pytest.approx(27 * MS, rel=0.2)
    # Launches of all the rest take about as long, and are replayed without the loop.
    assert {one.what for one in found.largest[:2]} == {mine.what, launching.what}
    assert found.items.index(mine) < found.items.index(launching)


@pytest.mark.slow
def test_the_reach_is_above_what_the_measured_fix_of_a_program_reached():
    """An eager attention and a loop over experts: the fixed programs were recorded, and take no less than the reach."""
    for name in ("eager_attention", "expert_loop"):
        folder = ROOT / "scenarios" / name
        found = diagnosed(folder / "recording").above_reach
        assert found is not None
        largest = found.largest[0]
        assert largest.finding == name
        assert found.reach_ns < found.usual_ns - largest.ns + 1


def test_no_verdict_no_ledger(tmp_path):
    """A cut file lacks kernels, so there is no statement about what the step could take either."""
    whole = gzip.decompress((ROOT / "scenarios" / "small_batch" / "recording" / "trace.rank0.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    diagnosis = diagnose(cut)
    assert analysis_of(diagnosis) is not None and diagnosis.verdict.bound is None
    assert diagnosis.above_reach is None and not lines(diagnosis) and not reach_bars(diagnosis)


def test_no_advice_no_ledger():
    from gpuprof.diagnosis.diagnose import diagnose as of_trace
    from gpuprof.tracefile.read import read_trace

    trace = read_trace(str(ROOT / "tests" / "data" / "unsloth_llama1b.json.gz"))
    assert of_trace(trace, advise=False).above_reach is None


@pytest.mark.slow
def test_reach_lies_between_nothing_and_what_a_kernel_takes():
    case = analysis_of(diagnosed(ROOT / "tests" / "data" / "unsloth_llama1b.json.gz"))
    assert case is not None
    assert case.roofline is not None
    found = kernel_reach(case.timeline, case.roofline)
    gpu = case.trace.gpu
    took = (gpu.end_ns - gpu.start_ns).clip(0)
    known = np.isfinite(found.reach_ns)
    assert known.mean() > 0.9
    assert (found.reach_ns[known] <= took[known]).all()
    assert (found.reach_ns[known] >= 0).all()
    assert not found.slow[~known].any()


def test_cells_do_not_overlap():
    for one in CELLS:
        for other in CELLS:
            if one is not other and set(one.kinds) & set(other.kinds):
                assert one.to_ns <= other.from_ns or other.to_ns <= one.from_ns


def test_a_reason_is_read_or_not_given(tmp_path):
    def body(made: Program):
        made.op("aten::mm", "nvjet_hsh_128x64", 2 * MS, [[4096, 4096], [4096, 50257]], [BF16, BF16])

    case = steps(body).case(tmp_path)
    rows = np.flatnonzero(case.graph.gpu_row >= 0)
    said = reason(case, case.graph.gpu_row[rows])
    assert said is not None
    assert "50,257 is not a multiple of 8" in said


@pytest.mark.parametrize(
    ("op", "shapes", "strides", "said"),
    [
        ("aten::mm", [[545, 4096], [4096, 4096]], [], None),
        ("aten::mm", [[4096, 545], [545, 4096]], [], None),
        ("aten::mm", [[4096, 545], [545, 4096]], [[1, 4096], [4096, 1]], None),
        ("aten::mm", [[4096, 545], [545, 4096]], [[545, 1], [4096, 1]], "545 is not a multiple of 8"),
        ("aten::bmm", [[16, 545, 545], [16, 545, 64]], [], "545 is not a multiple of 8"),
        ("aten::convolution_backward", [[8, 512, 300], [8, 512, 601], [512, 512, 3]], [], None),
        ("aten::convolution_backward", [[8, 96, 64, 64], [8, 3, 64, 64], [96, 3, 3, 3]], [], "3 channels"),
    ],
)
def test_rows_in_memory_have_to_be_aligned_and_not_every_dimension(tmp_path, op, shapes, strides, said):
    """The number of tokens is no row length, unless a matrix is stored so; nor is the length of a sound."""

    def body(made: Program):
        recorded = {"Input Strides": strides} if strides else {}
        made.op(op, "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n_tilesize128x128x64", 2 * MS, shapes, [BF16] * 3, **recorded)

    case = steps(body).case(tmp_path)
    found = reason(case, case.graph.gpu_row[np.flatnonzero(case.graph.gpu_row >= 0)])
    assert (said in (found or "")) if said else found is None


def test_passes_over_one_tensor_and_short_kernels_are_reasons(tmp_path):
    shapes = {"large": [8192, 32000], "small": [64, 64]}

    def body(made: Program):
        for _ in range(5):
            made.plain("mul", shapes["large"], shapes["large"], gpu=MS)
        for _ in range(20):
            made.plain("exp", shapes["small"], gpu=2_000)

    case = steps(body).case(tmp_path)
    rows = case.graph.gpu_row[np.flatnonzero(case.graph.gpu_row >= 0)]
    took = (case.trace.gpu.end_ns - case.trace.gpu.start_ns)[rows]
    assert "5 passes a step over tensors of 8,192 × 32,000" in (reason(case, rows[took > 10_000]) or "")
    assert "20 kernels a step of 2.0 µs each" in (reason(case, rows[took < 10_000]) or "")


@pytest.mark.parametrize(("gpu", "far"), [(1 * MS, True), (250_000, False)])
def test_a_kernel_far_from_the_memory_s_rate_is_limited_by_instructions(tmp_path, gpu: int, far: bool):
    """0.79 GB read and written; an H200's memory moves 4.8 TB a second."""
    case = steps(lambda made: made.plain("erf", [8192, 24000], gpu=gpu)).case(tmp_path)
    said = reason(case, case.graph.gpu_row[np.flatnonzero(case.graph.gpu_row >= 0)]) or ""
    assert ("instructions limit it" in said) == far
    assert not far or "at 1" in said or "at 2" in said


@pytest.mark.parametrize(
    ("op", "kernel", "dtype", "said"),
    [
        ("aten::mm", "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128", BF16, "built for sm_8x and runs on an sm_9x"),
        ("aten::mm", "ampere_bf16_s16816gemm_bf16_128x64_tn", BF16, "built for sm_8x and runs on an sm_9x"),
        ("aten::bmm", "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128", BF16, "built for sm_7x and runs on an sm_9x"),
        ("aten::mm", "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n_tilesize128x128x64", BF16, None),
        ("aten::mm", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", "float", "without tensor cores"),
        ("aten::_efficient_attention_forward", "fmha_cutlassF_bf16_aligned_rf_sm80", BF16, "not flash attention"),
        ("aten::cudnn_batch_norm_backward", "void cudnn::bn_bw_1C11_kernel_new<int>()", "float", "by channel"),
        ("aten::cudnn_convolution", "void implicit_convolve_sgemm<float, 128>(int)", BF16, "without tensor cores"),
        ("aten::copy_", "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>()", BF16, "strided"),
        ("aten::copy_", "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>()", BF16, None),
    ],
)  # fmt: skip
def test_what_a_kernel_s_name_says_of_why_it_is_slow(tmp_path, op, kernel, dtype, said):
    """On an H200: a kernel of an older generation, a general kernel where a special one exists, and the layout."""

    def body(made: Program):
        made.op(op, kernel, 2 * MS, [[4096, 4096], [4096, 4096]], [dtype, dtype])

    case = steps(body).case(tmp_path)
    found = reason(case, case.graph.gpu_row[np.flatnonzero(case.graph.gpu_row >= 0)])
    assert (said in (found or "")) if said else found is None
    assert dtype == BF16 or "sm_8x" not in (found or "")


@pytest.mark.slow
def test_what_the_cpu_computes_goes_before_the_loop_that_it_is_in():
    """Samples are augmented one by one: the item is named by the sampled function, and not as a loop."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "augment_in_loop" / "recording").above_reach
    assert found is not None and identity_holds(found)
    first = found.largest[0]
    assert first.what.startswith("computing on the CPU") and (first.where.function or "").endswith("train.py: augment")
    assert item(found, "in a Python loop").ns < 0.1 * first.ns

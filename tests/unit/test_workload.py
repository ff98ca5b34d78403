"""Training is distinguished from inference, an engine's iterations are found, and the wording fits what was
recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder
from helpers.program import BF16, MATMUL, MS, PLAIN, US, Program
from helpers.valid_json import document

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.page.html import render
from gpuprof.report.terminal.terminal import plain
from gpuprof.timeline.unit import ITERATION, REQUEST, STEP, TOKEN, common_unit

DECODE = "void vllm::paged_attention_v2_kernel<bf16>"
VLLM = "vllm/v1/worker/gpu_model_runner.py(3380): execute_model"


def diagnosed(program: Program | TraceBuilder, folder: Path) -> Diagnosis:
    builder = program.trace if isinstance(program, Program) else program
    return gpuprof.diagnose(builder.write(folder / "trace.json"))


def forward(program: Program, layers: int = 12, tokens: int = 1, batch: int = 1) -> None:
    """A model's pass over new tokens, bound by the CPU's launches (host)."""
    program.op("aten::embedding", PLAIN, dims=[[32_000, 1024], [batch, tokens], [], [], []])
    for _ in range(layers):
        program.linear(tokens * batch, 1024, 1024)
        program.plain("mul", [batch, tokens, 1024], [1024])


def served(body: Callable[[Program], object], times: int, name: str = "") -> Program:
    """Inference without gradients, in ranges named like a serving engine's, or in the profiler's steps."""
    program = Program(gradients=False)
    for number in range(times):
        start = program.now
        if name:
            body(program)
            program.trace.annotation(name.format(number=number), start, program.now)
            program.now += 50 * US
        else:
            program.step(lambda: body(program))
    return program


def training(program: Program) -> None:
    forward(program)
    program.backward(lambda: program.op("aten::mm", MATMUL, dims=[[1, 1024], [1024, 1024]], types=[BF16, BF16]), 12)


def test_a_backward_pass_is_training(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: training(program))
    found = diagnosed(program, tmp_path)
    assert found.workload is not None
    assert (found.workload.kind, found.unit) == ("training", "step")


def test_ops_without_gradients_and_without_a_backward_pass_are_inference(tmp_path):
    found = diagnosed(served(lambda p: forward(p, tokens=64), 3), tmp_path)
    assert found.workload is not None
    assert (found.workload.kind, found.workload.activity, found.unit) == ("inference", None, "iteration")


def test_a_transposed_convolution_is_no_training(tmp_path):
    """Its forward pass is the gradient of a convolution's input, and runs the same kernels."""

    def body(program: Program):
        for _ in range(8):
            program.op("aten::conv_transpose2d", "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32")
            program.op("aten::mm", MATMUL, dims=[[1, 1024], [1024, 1024]], types=[BF16, BF16])

    workload = diagnosed(served(body, 3), tmp_path).workload
    assert workload is not None and workload.kind == "inference"


def test_a_forward_pass_with_gradients_may_be_of_a_training(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: forward(program))
    found = diagnosed(program, tmp_path)
    assert found.workload is not None and found.workload.kind == "unknown"
    assert found.unit == "step"


def test_copies_alone_are_no_inference(tmp_path):
    program = Program(gradients=False)
    for _ in range(3):
        program.step(lambda: program.plain("mul", [4, 4], [4, 4]))
    found = diagnosed(program, tmp_path)
    assert found.workload is not None and found.workload.kind == "unknown"


def test_kernels_of_a_backward_pass_are_training_without_any_op(tmp_path):
    builder = TraceBuilder()
    for k in range(80):
        at = k * 20 * US
        builder.launch("batch_norm_backward_kernel", (at, at + 4 * US), (at + 6 * US, at + 14 * US))
    found = diagnosed(builder, tmp_path)
    assert found.workload is not None and found.workload.kind == "training"


@pytest.mark.parametrize(
    ("name", "activity", "batch"),
    [
        ("execute_context_0(0)_generation_32(32_{number})", "decode", 32),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk{number})", "decode", 32),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 1),
        ("execute_8192_context_9(sq8155)_generation_37(sq37)", "mixed", 46),
        ("step[DECODE bs=16]", "decode", 16),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15),
        ("[Executor] _forward_step {number}: 0 ctx reqs, 8 gen reqs", "decode", 8),
        ("execute_diffusion_1_256x256", "diffusion", 1),
    ],
)
def test_the_ranges_of_serving_engines_say_what_an_iteration_does(tmp_path, name, activity, batch):
    found = diagnosed(served(forward, 4, name), tmp_path)
    assert found.workload is not None and found.steps is not None
    assert (found.workload.kind, found.workload.activity, found.workload.batch) == ("inference", activity, batch)
    assert (found.steps.source, found.steps.count, found.steps.cut) == ("user_range", 3, 1)


def test_an_iteration_lasts_until_the_next_one_begins(tmp_path):
    found = diagnosed(served(forward, 4, "step[DECODE bs=16]"), tmp_path)
    assert found.steps is not None and found.window is not None
    assert sum(found.steps.each_ns) == found.window.end_ns - found.window.start_ns


def test_a_single_iteration_lasts_until_the_gpu_is_done_with_it(tmp_path):
    program = Program(gradients=False)
    start = program.now
    forward(program)
    program.op("aten::mm", MATMUL, 5 * MS, [[1, 8], [8, 8]], [BF16, BF16])
    program.trace.annotation("execute_context_0(0)_generation_4(4)", start, program.now)
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and found.steps.count == 1
    assert found.steps.recorded_ns == program.idle_at - start


def test_iterations_in_a_step_of_the_profiler_are_the_steps(tmp_path):
    program = Program(gradients=False)

    def several() -> None:
        for _ in range(5):
            start = program.now
            forward(program)
            program.trace.annotation("step[DECODE bs=2]", start, program.now)

    program.step(several)
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and (found.steps.source, found.steps.count) == ("user_range", 4)


def test_one_new_token_for_each_sequence_is_decoding(tmp_path):
    found = diagnosed(served(lambda p: forward(p, tokens=1, batch=3), 3), tmp_path)
    assert found.workload is not None
    assert (found.workload.activity, found.workload.batch, found.unit) == ("decode", 3, "token")


def test_many_tokens_in_a_step_are_a_request(tmp_path):
    found = diagnosed(served(lambda p: [forward(p) for _ in range(5)], 3), tmp_path)
    assert found.workload is not None and found.workload.activity == "decode"
    assert found.unit == "request"


def test_tokens_are_found_by_their_period(tmp_path):
    program = Program(gradients=False)
    for _ in range(12):
        forward(program)
        program.op("aten::argmax", "void at::native::reduce_kernel<argmax>", dims=[[1, 32_000]])
        program.python(200 * US)
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and (found.steps.source, found.unit) == ("periodicity", "token")
    assert found.steps.count >= 8


def test_layers_are_no_tokens(tmp_path):
    program = Program(gradients=False)
    for _ in range(40):
        program.linear(512, 1024, 1024)
        program.plain("mul", [512, 1024], [1024])
        program.plain("add", [512, 1024], [1024])
    found = diagnosed(program, tmp_path)
    assert found.steps is not None and found.steps.source == "none"


@pytest.mark.parametrize(
    ("frame", "engine", "unit"),
    [
        ("transformers/pipelines/base.py(1306): __call__", "transformers_pipeline", "request"),
        ("diffusers/pipelines/flux/pipeline_flux.py(700): __call__", "diffusers", "request"),
        (VLLM, "vllm", "iteration"),
    ],
)
def test_frames_say_what_serves_the_model(tmp_path, frame, engine, unit):
    program = Program(gradients=False)
    for _ in range(3):
        start = program.now
        program.step(lambda: forward(program, tokens=64))
        program.trace.frame(frame, start, program.now - 2 * US)
    found = diagnosed(program, tmp_path)
    assert found.workload is not None
    assert (found.workload.engine, found.unit) == (engine, unit)


# -- words and advice

TRAINING_WORDS = ("DataLoader(..., batch_size", "optimizer", "gradient", "TrainingArguments", "micro-step", "training:")


@pytest.mark.parametrize("name", ["", "step[DECODE bs=1]", "execute_context_2(64)_generation_0(0)"])
def test_inference_gets_no_advice_for_training(tmp_path, name):
    found = diagnosed(served(forward, 6, name), tmp_path)
    assert found.findings and found.workload is not None and found.workload.is_inference
    ids = {finding.id for finding in found.findings} | {one.id for one in found.considered}
    assert not ids & {"larger_batch", "accumulation", "optimizer", "recompute", "padding", "exposed_communication"}
    text = plain(found, 140)
    assert not [word for word in TRAINING_WORDS if word in text]
    fixes = " ".join(finding.fix for finding in found.findings)
    assert not [word for word in TRAINING_WORDS if word in fixes]


def test_a_training_gets_no_advice_for_inference(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: training(program))
    ids = {finding.id for finding in diagnosed(program, tmp_path).findings}
    assert ids and not ids & {"continuous_batching", "speculative_decoding", "static_cache"}


def test_the_words_are_those_of_the_workload(tmp_path):
    found = diagnosed(served(lambda p: forward(p, tokens=64), 4), tmp_path)
    text = plain(found, 140)
    assert " an iteration" in text and "  iteration  " in text
    assert " a step" not in text
    assert "an iteration" in found.verdict.summary
    assert document(found)["workload"]["unit"] == "iteration"


def test_the_page_speaks_of_iterations_too(tmp_path):
    page = render(diagnosed(served(lambda p: forward(p, tokens=64), 4), tmp_path))
    assert "an iteration, estimated" in page and "One iteration of the GPU" in page
    shown = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    shown = re.sub(r'<section id="words">.*?</section>', "", shown, flags=re.DOTALL)  # of trainings and inference
    assert not re.findall(r".{60}\ba step\b.{20}", shown, re.DOTALL)


def test_a_unit_is_a_word_with_its_article():
    assert [unit.a for unit in (STEP, ITERATION, REQUEST, TOKEN)] == ["a step", "an iteration", "a request", "a token"]
    assert f"{ITERATION}s" == "iterations" and ITERATION == "iteration"
    assert common_unit(TOKEN, TOKEN) == TOKEN
    assert common_unit(TOKEN, REQUEST) == ITERATION
    assert common_unit(TOKEN, STEP) == common_unit(STEP, ITERATION) == STEP


# -- decoding is judged against memory


def graph_decode(program: Program) -> None:
    """One launch of a CUDA graph: matrix multiplications without shapes keep the GPU busy."""
    program.op("aten::embedding", PLAIN, dims=[[32_000, 1024], [4, 1], [], [], []])
    program.trace._correlation += 1
    number = program.trace._correlation
    program.trace.call("cudaGraphLaunch", program.now, program.now + 20 * US, correlation=number)
    begin = program.now + 25 * US
    for _ in range(20):
        program.trace.gpu("nvjet_sm90_tst_64x8", begin, begin + 200 * US, correlation=number)
        begin += 201 * US
    program.trace.gpu(DECODE, begin, begin + 100 * US, correlation=number)
    program.free[7] = begin + 100 * US
    program.now += 30 * US
    program.synchronize()


def test_decoding_in_cuda_graphs_is_bound_by_memory(tmp_path):
    found = diagnosed(served(graph_decode, 4), tmp_path)
    assert found.workload is not None and found.workload.decodes
    assert found.verdict.bound == "memory"


def test_the_same_kernels_in_a_prefill_are_not(tmp_path):
    found = diagnosed(served(graph_decode, 4, "execute_context_2(64)_generation_0(0)"), tmp_path)
    assert found.verdict.bound == "compute"

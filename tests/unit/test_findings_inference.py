"""Findings for inference: small programs whose fixed iteration can be computed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from helpers.case import only
from helpers.program import BF16, MATMUL, MS, PLAIN, US, Program

from gpuprof.diagnosis.findings import (
    FINDINGS,
    continuous_batching,
    cuda_graphs,
    eager_attention,
    host_preprocessing,
    speculative_decoding,
    static_cache,
)
from gpuprof.diagnosis.fixes.predict import fixes
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.timeline.gpu.cache_appends import cache_appends

LAYERS = 20


def inference(body: Callable[[Program], object], times: int = 3, name: str = "", frame: str = "") -> Program:
    """Iterations without gradients; `name`: a serving engine's range around each, `frame`: a Python frame."""
    program = Program(gradients=False)
    for _ in range(times + bool(name)):
        start = program.now
        if name:
            body(program)
            program.trace.annotation(name, start, program.now)
            program.now += 5 * US
        else:
            program.step(lambda: body(program))
        if frame:
            program.trace.frame(frame, start, program.now - 3 * US)
    return program


def decode(program: Program, batch: int = 1, gpu: int = 100 * US, cache: int = 0) -> None:
    """Decodes one token: each layer reads its weights, and the GPU is always busy."""
    program.op("aten::embedding", PLAIN, dims=[[32_000, 1024], [batch, 1], [], [], []])
    for _ in range(LAYERS):
        if cache:
            for _ in range(2):
                past, new = [batch, 8, cache, 64], [batch, 8, 1, 64]
                program.op("aten::cat", "CatArrayBatchedCopy<bf16>", 50 * US, [[past, new], []], ["TensorList", ""])
        program.op("aten::mm", MATMUL, gpu, [[batch, 8192], [8192, 8192]], [BF16, BF16])


def small(program: Program, tokens: int = 64) -> None:
    """A pass that is bound by its launches: 20 µs of the host for each, 2 µs of the GPU."""
    program.op("aten::embedding", PLAIN, dims=[[32_000, 1024], [1, tokens], [], [], []])
    for _ in range(LAYERS):
        program.op("aten::mm", MATMUL, 2 * US, [[tokens, 512], [512, 512]], [BF16, BF16], grid=[8, 1, 1])


def ids(case) -> set[str]:
    return {finding.id for finding in fixes(case).findings}


# -- more requests at once


def test_launch_bound_inference_takes_as_long_for_more_requests(tmp_path):
    case = inference(small).case(tmp_path)
    found = only(continuous_batching, case)
    assert found.work == 8.0
    assert predict(case, found).expected < 1.3 * case.step_ns


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("vllm/v1/worker/gpu_model_runner.py(3380): execute_model", "--max-num-seqs"),
        ("sglang/srt/managers/scheduler.py(2919): run_batch", "--max-running-requests"),
        ("transformers/pipelines/base.py(1306): __call__", "pipe(inputs, batch_size="),
        ("my_server.py(10): loop", "a queue in front of the model"),
    ],
)
def test_the_fix_is_written_for_what_serves_the_model(tmp_path, frame, says):
    case = inference(small, frame=frame).case(tmp_path)
    assert says in str(only(continuous_batching, case).fix)


def test_a_batch_that_fills_the_gpu_gets_no_such_advice(tmp_path):
    def full(program: Program) -> None:
        for _ in range(LAYERS):
            program.op(
                "aten::mm", MATMUL, 500 * US, [[16384, 8192], [8192, 8192]], [BF16, BF16], grid=[4096, 1, 1]
            )  # fmt: skip

    assert "continuous_batching" not in ids(inference(full).case(tmp_path))


# -- decoding


def test_one_sequence_gains_from_drafted_tokens(tmp_path):
    """With 65 % accepted, 2.51 tokens for an iteration and 4 drafts of 6 %: about twice as fast."""
    case = inference(decode).case(tmp_path)
    found = only(speculative_decoding, case)
    assert found.work == pytest.approx((1 - 0.65**5) / (1 - 0.65))
    after = predict(case, found)
    assert found.work * case.step_ns / after.expected == pytest.approx(2.51 / 1.24, rel=0.1)
    assert after.low < after.expected < after.high


@pytest.mark.parametrize("batch", [3, 64])
def test_many_sequences_do_not(tmp_path, batch):
    case = inference(lambda p: decode(p, batch)).case(tmp_path)
    assert case.workload.decodes and case.workload.batch == batch
    assert not list(speculative_decoding.find(case))


def test_nor_does_what_drafts_already(tmp_path):
    case = inference(decode, frame="sglang/srt/speculative/eagle_worker.py(3): draft").case(tmp_path)
    assert not list(speculative_decoding.find(case))


def test_a_prefill_is_not_decoding(tmp_path):
    case = inference(lambda p: small(p, 64)).case(tmp_path)
    assert not list(speculative_decoding.find(case))


def test_a_cache_that_is_concatenated_is_copied_for_each_token(tmp_path):
    """40 concatenations of 50 µs an iteration, of which 40 % stay; 20 products of 100 µs."""
    case = inference(lambda p: decode(p, cache=2000)).case(tmp_path)
    found = only(static_cache, case)
    assert "40 concatenations" in found.evidence[0].text
    assert predict(case, found).expected == pytest.approx(case.step_ns - 0.6 * 40 * 50 * US, rel=0.05)


@pytest.mark.parametrize(
    ("dims", "appends"),
    [
        ([[1, 8, 100, 64], [1, 8, 1, 64]], True),
        ([[1, 100, 8, 64], [1, 1, 8, 64]], True),
        ([[1, 8, 100, 64], [1, 8, 100, 64]], False),  # halves of rotary embeddings
        ([[1, 8, 100, 64], [1, 8, 20, 64]], False),
        ([[4, 100], [4, 1]], False),
    ],
)
def test_only_a_cache_and_a_token_are_an_append(tmp_path, dims, appends):
    def body(program: Program) -> None:
        small(program)
        program.op("aten::cat", PLAIN, 50 * US, [dims, []], ["TensorList", ""])

    case = inference(body).case(tmp_path)
    assert bool(cache_appends(case.trace, case.timeline.window).any()) == appends


def test_an_engine_that_decodes_kernel_by_kernel_is_advised_to_use_its_graphs(tmp_path):
    def body(program: Program) -> None:
        for _ in range(60):
            program.op("aten::mm", MATMUL, 2 * US, [[8, 512], [512, 512]], [BF16, BF16])

    frame = "vllm/v1/worker/gpu_model_runner.py(3380): execute_model"
    case = inference(body, 4, "execute_context_0(0)_generation_8(8)", frame).case(tmp_path)
    found = only(cuda_graphs, case)
    assert "--enforce-eager" in str(found.fix)
    assert predict(case, found).expected < 0.6 * case.step_ns


# -- preparing samples


def prepares(program: Program, ms: int, frames: str = "", ops: bool = False) -> None:
    start = program.now
    if ops:
        for _ in range(4 * ms):
            program.trace.op("aten::_upsample_bicubic2d_aa", program.now, program.now + 200 * US)
            program.now += 250 * US
    else:
        program.now += ms * MS
    if frames:
        program.trace.frame(frames, start, program.now)
    decode(program, gpu=500 * US)
    program.synchronize()


PREPROCESS = "transformers/pipelines/video_classification.py(129): preprocess"


@pytest.mark.parametrize(("frames", "ops"), [(PREPROCESS, False), ("", True)])
def test_preparing_samples_between_passes_goes_to_workers(tmp_path, frames, ops):
    """20 ms of preparing before 10 ms of GPU work: with three or more workers 10 ms are left, and 5 % of the 20."""
    case = inference(lambda p: prepares(p, 20, frames, ops)).case(tmp_path)
    found = only(host_preprocessing, case)
    assert found.title == "preprocessing in 4 workers"
    assert found.least_ns == pytest.approx(1.25 * 20 * MS / 4, rel=0.05)
    assert predict(case, found).expected == pytest.approx(case.step_ns - 0.95 * 20 * MS, rel=0.05)


def test_a_pause_in_unknown_code_is_not_preparing(tmp_path):
    case = inference(lambda p: prepares(p, 20, "server.py(3): wait_for_request")).case(tmp_path)
    assert not list(host_preprocessing.find(case))


def test_a_larger_batch_takes_as_much_longer_to_prepare(tmp_path):
    """Eight times the requests take eight times the 20 ms: nothing is gained."""
    case = inference(lambda p: (prepares(p, 20, PREPROCESS), small(p))).case(tmp_path / "prepared")
    assert "host_preprocessing" in ids(case) and "continuous_batching" not in ids(case)
    assert "continuous_batching" in ids(inference(small).case(tmp_path / "bare"))


# -- the mask keeps its meaning


def attention(program: Program, mask: bool, embeds: bool) -> None:
    heads, length, width = 16, 1024, 64
    if embeds:
        program.op("aten::embedding", PLAIN, dims=[[32_000, 1024], [1, length], [], [], []])
    for _ in range(6):
        program.op(
            "aten::bmm", MATMUL, 300 * US, [[heads, length, width], [heads, width, length]], [BF16, BF16]
        )  # fmt: skip
        if mask:
            program.op("aten::add", PLAIN, 400 * US, [[1, heads, length, length], [1, 1, length, length]], [BF16, BF16])
        program.op("aten::_softmax", PLAIN, 900 * US, [[1, heads, length, length], [], []], [BF16, "Scalar", "Scalar"])
        program.op(
            "aten::bmm", MATMUL, 300 * US, [[heads, length, length], [heads, length, width]], [BF16, BF16]
        )  # fmt: skip


def test_attention_without_a_mask_is_not_made_causal(tmp_path):
    case = inference(lambda p: attention(p, mask=False, embeds=False)).case(tmp_path)
    fix = str(only(eager_attention, case).fix)
    assert "is_causal=True" not in fix and "CausalLM" not in fix
    assert "scaled_dot_product_attention(q, k, v)" in fix


def test_a_mask_is_passed_on(tmp_path):
    case = inference(lambda p: attention(p, mask=True, embeds=True)).case(tmp_path)
    fix = str(only(eager_attention, case).fix)
    assert "attn_mask=mask" in fix and "if that hides nothing but later positions" in fix
    assert "AutoModelForCausalLM" in fix


# -- what applies to what


def test_every_finding_says_what_it_applies_to():
    for page, _ in FINDINGS:
        assert page.applies and set(page.applies) <= {"training", "inference"}
        assert page.applies_to("unknown") == page.applies_to("training")
    only_training = {page.id for page, _ in FINDINGS if not page.applies_to("inference")}
    assert only_training >= {"larger_batch", "optimizer", "accumulation", "recompute", "rare_steps"}


@pytest.mark.parametrize(
    "engine", ["vllm/v1/worker/gpu_model_runner.py(3380): x", "sglang/srt/managers/scheduler.py(9): x"]
)
def test_what_an_engine_takes_at_once_is_never_set_to_a_number(tmp_path, engine):
    """A recording of one request does not show the option: 8 may be far below what is set, or below its default."""
    fix = str(only(continuous_batching, inference(small, frame=engine).case(tmp_path)).fix)
    assert fix.startswith("send 8 times the requests at once") and "lower" in fix
    assert not re.search(r"--max[\w-]+ \d", fix)

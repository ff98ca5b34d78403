"""Findings about image models, and advice for language models that such models do not get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.case import only, run_of
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import BF16, FLOAT, MS, PLAIN, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import (
    channels_last,
    eager_attention,
    frozen_encoder,
    fused_elementwise,
    larger_batch,
    padding,
)
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.diagnosis.reach.ledger import above_reach
from gpuprof.diagnosis.result.run_model import StepWork

CONVOLVED = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
TO_LAST = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>"
TO_FIRST = "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float>"
IMAGES, WEIGHTS = [64, 64, 56, 56], [64, 64, 3, 3]
SHAPES, TYPES = [IMAGES, WEIGHTS], [BF16, BF16]
LAYERS = 10


def after_ms(case: Analysis, proposal) -> float:
    return predict(case, proposal).expected / MS


def number(program: Program) -> dict[str, Any]:
    """The sequence number of an op that creates no node: the next op that does has the same."""
    return {"Sequence number": program.sequence + 1, "Fwd thread id": 0}


def convolve(program: Program, trains: bool = True, gpu: int = 1 * MS, converts: int = 0) -> None:
    """A convolution of 20 µs of host time; `converts`: GPU time of a conversion before it and one behind it."""
    more: dict[str, Any] = {} if trains else number(program)
    start = program.now
    if not trains:
        program.sequence -= 1  # `op` counts on
    if converts:
        program.launch(TO_LAST, (start + 2 * US, start + 4 * US), converts)
    program.op("aten::conv2d", CONVOLVED, gpu, SHAPES, TYPES, ("aten::cudnn_convolution",), **more)
    if converts:
        program.launch(TO_FIRST, (start + 15 * US, start + 17 * US), converts)


def network(program: Program, converts: int = 0) -> None:
    """The trained model, in the range that `gpuprof trace` puts around it, and its backward pass."""
    start, first = program.now, program.sequence + 1
    for _ in range(LAYERS):
        convolve(program, converts=converts)
    program.trace.annotation("forward", start, program.now)
    backward(program, first, LAYERS)


def backward(program: Program, first: int, layers: int) -> None:
    program.tid = AUTOGRAD
    for layer in reversed(range(layers)):
        start = program.now
        program.op("aten::convolution_backward", CONVOLVED, 1 * MS, SHAPES, TYPES)
        numbers: dict[str, Any] = {"Sequence number": first + layer, "Fwd thread id": 1}
        for name in ("autograd::engine::evaluate_function: ConvolutionBackward0", "ConvolutionBackward0"):
            program.trace.op(name, start, program.now, AUTOGRAD, **numbers)
        program.now += 2 * US
    program.tid = MAIN


def encoder(program: Program, layers: int = 5) -> None:
    for _ in range(layers):
        convolve(program, trains=False)


def captions(program: Program, shape: tuple[int, int] = (4, 77)) -> None:
    """A text encoder that is not trained."""
    program.op(
        "aten::embedding", "indexSelectLargeIndex", dims=[[49408, 768], list(shape), [], [], []], **number(program)
    )
    program.sequence -= 1
    for _ in range(8):
        program.op("aten::mm", "nvjet_hsh_128x64", 200 * US, [[308, 768], [768, 768]], [BF16, BF16], **number(program))
        program.sequence -= 1


def of(tmp_path, *parts, steps: int = 3, run=None) -> Analysis:
    program = Program()
    for _ in range(steps):
        program.step(lambda: [part(program) for part in parts])
    return program.case(tmp_path, run=run)


# -- channels_last


def test_without_conversions_only_the_convolutions_are_left(tmp_path):
    case = of(tmp_path, lambda program: network(program, converts=400 * US))
    found = only(channels_last, case)
    assert case.step_ns / MS == pytest.approx(28, rel=0.01)
    assert after_ms(case, found) == pytest.approx(20, rel=0.01)
    assert "20 kernels a step" in found.evidence[0].text and "8.0 ms, 29 % of the GPU's time" in found.evidence[0].text
    assert predict(case, found).high / MS > 22  # other ops may copy
    assert "channels_last" in str(found.fix) and "images" in str(found.fix)


def norms(program: Program, count: int, kind: str) -> None:
    for _ in range(count):
        program.op(f"aten::native_{kind}_norm", PLAIN, 1 * MS, [IMAGES], [BF16])


def test_batch_norms_are_faster_in_channels_last(tmp_path):
    case = of(tmp_path, lambda p: norms(p, 3, "batch"), lambda p: network(p, converts=400 * US))
    assert after_ms(case, only(channels_last, case)) == pytest.approx(20 + 3 * 0.67, rel=0.01)


def test_group_norms_copy_what_convolutions_would_have_converted(tmp_path):
    """Each costs 15 conversions: one as much as most of the 20 that are saved, two more than all."""
    one = of(tmp_path, lambda p: norms(p, 1, "group"), lambda p: network(p, converts=400 * US))
    found = only(channels_last, one)
    assert "each of 1 group norms will copy" in found.evidence[0].text
    assert after_ms(one, found) == pytest.approx(1 + 20 + 15 * 0.4, rel=0.01)
    two = of(tmp_path, lambda p: norms(p, 2, "group"), lambda p: network(p, converts=400 * US))
    assert after_ms(two, only(channels_last, two)) > two.step_ns / MS


def test_convolutions_that_convert_nothing_are_left_alone(tmp_path):
    assert not list(channels_last.find(of(tmp_path, network)))


def test_kernels_that_convert_for_something_else_do_not_count(tmp_path):
    def other(program: Program) -> None:
        program.op("aten::contiguous", TO_FIRST, 1 * MS, [IMAGES], [BF16])

    assert not list(channels_last.find(of(tmp_path, network, other)))


# -- modules that are not trained


def test_the_outputs_of_an_encoder_can_be_computed_once(tmp_path):
    case = of(tmp_path, encoder, network)
    found = only(frozen_encoder, case, "encoder")
    assert case.step_ns / MS == pytest.approx(25, rel=0.01)
    assert after_ms(case, found) == pytest.approx(20, rel=0.01)
    assert found.evidence[0].text.startswith("1 forward pass of modules that are not trained a step")
    assert "5.0 ms of GPU time" in found.evidence[0].text
    assert "second epoch" in str(found.fix)
    ledger = above_reach(case, None, ["frozen_encoder"])
    assert ledger is not None
    assert [one.ns for one in ledger.items if one.finding == "frozen_encoder"] == [pytest.approx(5 * MS, rel=0.01)]


@pytest.mark.parametrize(("epochs", "expected"), [(1, None), (2, 22.5), (5, 21.0)])
def test_computing_them_once_is_counted_where_the_run_has_its_epochs(tmp_path, epochs: int, expected: float | None):
    run = replace(run_of(), loader={"length": 100}, steps_total=100 * epochs)
    case = of(tmp_path, encoder, network, run=run)
    found = list(frozen_encoder.find(case))
    if expected is None:
        assert not found  # the work would only move elsewhere
    else:
        assert after_ms(case, found[0]) == pytest.approx(expected, rel=0.01)
        assert f"{max(100 * 5 / 1000, 1):.0f} s over the data first" in str(found[0].fix)


def test_frozen_layers_of_the_trained_model_are_no_module_of_their_own(tmp_path):
    def fine_tuned(program: Program) -> None:
        start, first = program.now, program.sequence + 1
        encoder(program)
        convolve(program)
        program.trace.annotation("forward", start, program.now)
        backward(program, first, 1)

    case = of(tmp_path, fine_tuned)
    assert case.frozen_passes is not None and case.frozen_passes.trained == 3
    assert not list(frozen_encoder.find(case))


def test_a_reference_of_the_model_itself_is_computed_before(tmp_path):
    def without_gradients(program: Program) -> None:
        start = program.now
        encoder(program)
        program.trace.annotation("forward", start, program.now)

    case = of(tmp_path, without_gradients, network)
    found = only(frozen_encoder, case, "reference")
    assert after_ms(case, found) == pytest.approx(20, rel=0.01)
    assert "log-probabilities" in str(found.fix)

    def generates(program: Program) -> None:
        for _ in range(3):
            without_gradients(program)

    assert not list(frozen_encoder.find(of(tmp_path, generates, network)))


def test_a_reference_before_the_loss_of_the_trained_model_is_found_without_its_name(tmp_path):
    """As in trl's DPO: the model, the reference, then a loss through which gradients flow, and the backward pass."""

    def preference(program: Program) -> None:
        start, first = program.now, program.sequence + 1
        for _ in range(LAYERS):
            convolve(program)
        program.trace.annotation("forward", start, program.now)
        encoder(program)
        program.op("aten::log_sigmoid_forward", PLAIN, 1 * MS, [[4]], [BF16])
        backward(program, first, LAYERS + 1)

    case = of(tmp_path, preference)
    assert case.frozen_passes is not None and len(case.frozen_passes) and not case.frozen_passes.of_trained.any()
    assert case.step_ns / MS - after_ms(case, only(frozen_encoder, case, "encoder")) == pytest.approx(5, rel=0.01)


def test_without_modules_nothing_is_found(tmp_path):
    def unnamed(program: Program) -> None:
        first = program.sequence + 1
        for _ in range(LAYERS):
            convolve(program)
        backward(program, first, LAYERS)

    case = of(tmp_path, encoder, unnamed)
    assert case.frozen_passes is None
    assert not list(frozen_encoder.find(case))


# -- language


def language(program: Program) -> None:
    start, first = program.now, program.sequence + 1
    program.op("aten::embedding", "indexSelectLargeIndex", dims=[[32000, 512], [4, 128], [], [], []])
    for _ in range(9):
        program.small_mm(gpu=300 * US)
    program.trace.annotation("forward", start, program.now)
    backward(program, first, LAYERS)


WORK = StepWork(4.0, 308.0, 200.0, 1.0, real_share=0.6)


def test_what_a_model_is_trained_on_is_inferred_from_what_it_embeds_and_convolves(tmp_path):
    assert of(tmp_path, language).trains_on_tokens
    assert not of(tmp_path, network).trains_on_tokens
    assert not of(tmp_path, captions, network).trains_on_tokens
    patches = of(tmp_path, lambda program: convolve(program, trains=False), language)
    assert patches.trains_on_tokens  # a language model that reads images, too
    speech = replace(run_of(), model={"vocabulary": 51866})
    assert of(tmp_path, network, run=speech).trains_on_tokens


def test_a_diffusion_model_gets_no_advice_for_language_models(tmp_path):
    run = run_of(work=WORK)

    def norm(program: Program) -> None:
        shape = [8, 4096, 640]
        program.cast(shape, BF16, FLOAT, gpu=400 * US)
        for name in ("pow", "mean", "rsqrt", "mul", "mul"):
            program.plain(name, shape, gpu=400 * US, type=FLOAT)

    case = of(tmp_path, captions, norm, network, run=run)
    assert not list(padding.find(case))
    assert not list(fused_elementwise.find(case))
    for module in (larger_batch, eager_attention, frozen_encoder, channels_last):
        for proposal in module.find(case):
            said = " ".join((proposal.title, str(proposal.fix), proposal.evidence[0].text))
            assert not any(word in said for word in ("token", "packing", "CausalLM", "Liger")), said
    same = of(tmp_path, language, run=run)
    assert list(padding.find(same))

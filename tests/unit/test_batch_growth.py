"""Which kernels take longer with more tokens, and which do not because they work on weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import BF16, MATMUL, PLAIN, US, Program
from helpers.timeline import timeline_of

from gpuprof.costs.roofline import roofline
from gpuprof.projection.changes import weights
from gpuprof.projection.changes.batch import event_growth
from gpuprof.projection.changes.weights import on_weights

FULL = [100_000, 1, 1]
"""Enough blocks to fill any GPU, so that more work takes longer."""
HIDDEN, WIDE, VOCABULARY = 512, 2048, 32_000
FP32 = "float"


def tall(program: Program, name: str, dims: list[Any], types: list[str] | None = None, kernel: str = PLAIN) -> None:
    result = types if types is not None else [FP32 if one else "Scalar" for one in dims]
    program.op(name, kernel, 50 * US, dims, result, grid=FULL)


def autocast(batch: int, length: int, hidden: int = HIDDEN, ahead=(), behind=()) -> Program:
    """One layer with float32 weights that computes in bf16: forward, and backward on autograd's thread.

    ahead, behind: (op, dims, types or None) of more work in the two.
    """
    tokens = batch * length
    program = Program()

    def body() -> None:
        tall(program, "aten::embedding", [[VOCABULARY, hidden], [batch, length], [], [], []])
        tall(program, "aten::copy_", [[WIDE, hidden], [WIDE, hidden], []])  # the weight, to bf16
        tall(program, "aten::copy_", [[batch, length, hidden], [batch, length, hidden], []])
        types = [BF16, BF16, ""]
        program.op("aten::linear", MATMUL, 50 * US, [[batch, length, hidden], [WIDE, hidden], []], types, grid=FULL)
        for row in ahead:
            tall(program, *row)
        program.tid = AUTOGRAD
        start = program.now
        tall(program, "aten::mm", [[WIDE, tokens], [tokens, hidden]], [BF16, BF16], MATMUL)
        tall(program, "aten::copy_", [[WIDE, hidden], [WIDE, hidden], []], [FP32, BF16, "Scalar"])  # its gradient
        tall(program, "aten::fill_", [[VOCABULARY, hidden], []])
        tall(program, "aten::add_", [[VOCABULARY, hidden], [VOCABULARY, hidden], []])
        tall(program, "aten::mul", [[tokens, hidden], [tokens, hidden]])
        for row in behind:
            tall(program, *row)
        program.engine(start - 1 * US, program.now + 1 * US)
        program.now += 5 * US
        program.tid = MAIN

    for _ in range(2):
        program.step(body, sync=True)
    return program


def growth(program: Program, tmp_path: Path, factor: float = 8.0) -> dict[tuple[str, str], float]:
    """By op and dims, without blanks: how many times as long its kernel takes."""
    timeline = timeline_of(program.trace.write(tmp_path / "trace.json"))
    trace, op = timeline.trace, timeline.links.op
    found = event_growth(timeline, None, factor, None)
    names, dims = trace.ops.name[op], trace.ops.dims[op]
    texts = [(trace.strings[n], (trace.text(d) or "").replace(" ", "")) for n, d in zip(names, dims, strict=True)]
    return dict(zip(texts, found.tolist(), strict=True))


def test_work_on_weights_and_their_gradients_takes_no_longer(tmp_path):
    found = growth(autocast(2, 64), tmp_path)
    assert found["aten::copy_", "[[2048,512],[2048,512],[]]"] == 1
    assert found["aten::fill_", "[[32000,512],[]]"] == 1
    assert found["aten::add_", "[[32000,512],[32000,512],[]]"] == 1
    assert found["aten::copy_", "[[2,64,512],[2,64,512],[]]"] == 8
    assert found["aten::mul", "[[128,512],[128,512]]"] == 8
    assert found["aten::mm", "[[2048,128],[128,512]]"] == 8
    assert found["aten::embedding", "[[32000,512],[2,64],[],[],[]]"] == 8


@pytest.mark.parametrize(("batch", "length"), [(1, 512), (4, 512), (512, 4), (4, 128)], ids=str)
def test_as_many_tokens_as_the_model_is_wide_leave_it_open(batch: int, length: int, tmp_path):
    """A tensor of [2048, 512] can then be a weight or activations; it is taken to grow, like everything else."""
    found = growth(autocast(batch, length), tmp_path)
    assert {f for (name, _), f in found.items() if name == "aten::copy_"} == {8}


def test_a_second_factor_is_a_weight_in_the_forward_pass_only(tmp_path):
    """The second factor of a weight's gradient is an activation, whose rows may not be a batch's: a loss without the
    last token."""
    behind = [
        ("aten::mm", [[VOCABULARY, 126], [126, HIDDEN]], [BF16, BF16], MATMUL),
        ("aten::mul", [[126, HIDDEN], [126, HIDDEN]]),
    ]
    assert growth(autocast(2, 64, behind=behind), tmp_path)["aten::mul", "[[126,512],[126,512]]"] == 8


def test_rows_that_are_no_batch_are_tokens_too(tmp_path):
    """Four images of 577 patches, and a second layer that has as many rows as the first one's weight."""
    ahead = [
        ("aten::linear", [[4, 577, 1024], [768, 1024], []], [BF16, BF16, ""], MATMUL),
        ("aten::linear", [[768, 48], [96, 48], []], [BF16, BF16, ""], MATMUL),
        ("aten::copy_", [[768, 1024], [768, 1024], []]),
        ("aten::copy_", [[96, 48], [96, 48], []]),
    ]
    found = growth(autocast(2, 64, ahead=ahead), tmp_path)
    assert found["aten::copy_", "[[768,1024],[768,1024],[]]"] == 8
    assert found["aten::copy_", "[[96,48],[96,48],[]]"] == 1


def test_a_weight_among_others_is_no_work_on_weights(tmp_path):
    ahead = [
        ("aten::index", [[VOCABULARY, HIDDEN], []], [FP32, ""]),  # picks rows: how many tells a list of indices
        ("aten::cat", [[[WIDE, HIDDEN], [WIDE, HIDDEN]], []], ["TensorList", "Scalar"]),
        ("aten::add", [[WIDE, HIDDEN], [300, WIDE, HIDDEN], []]),
        ("aten::mul", [[WIDE, HIDDEN], []], [FP32, "TensorList"]),
        ("aten::sub", [[WIDE, HIDDEN], [1], []]),
    ]
    found = growth(autocast(2, 64, ahead=ahead), tmp_path)
    grown = {name for (name, _), f in found.items() if f == 8}
    assert {"aten::index", "aten::cat", "aten::add", "aten::mul"} <= grown
    assert found["aten::sub", "[[2048,512],[1],[]]"] == 1


def test_what_a_gradient_is_accumulated_for_is_a_parameter(tmp_path):
    """Weights of experts, which no multiplication of two matrices shows."""
    name = "torch::autograd::AccumulateGrad"
    program = autocast(2, 64, behind=[(name, [[8, 512, 96]]), ("aten::fill_", [[8, 96, 512], []])])
    assert growth(program, tmp_path)["aten::fill_", "[[8,96,512],[]]"] == 1


@pytest.mark.parametrize(("rows", "slower", "expected"), [(192, 1.41, 5.7), (192, 1.0, 8.0), (4096, 1.2, 8.0)])
def test_a_product_leaves_the_balance_of_arithmetic_and_memory(rows: int, slower: float, expected: float, tmp_path):
    """A matmul of 192 rows computes for as long as it reads its weights, and takes 1.4 times that. With 8 times the
    rows it is limited by computing, which takes 8 times as long. A matmul that took no longer than its computing cannot
    gain, and one of many rows stays as slow as it was."""
    program = Program()
    wide = 16_384
    compute = 2 * rows * wide * wide / 796e12 * 1e9

    def body() -> None:
        types = [BF16, BF16]
        program.op("aten::mm", MATMUL, round(slower * compute), [[rows, wide], [wide, wide]], types, grid=FULL)

    for _ in range(2):
        program.step(body, sync=True)
    timeline = timeline_of(program.trace.write(tmp_path / "trace.json"))
    found = event_growth(timeline, roofline(timeline), 8.0, rows)
    assert found == pytest.approx(expected, rel=0.05)


def test_of_many_events_each_text_is_decoded_once(tmp_path, monkeypatch):
    """A million events with few different shapes."""
    timeline = timeline_of(autocast(2, 64).trace.write(tmp_path / "trace.json"))
    rows = np.resize(np.arange(len(timeline.trace.gpu)), 1_000_000)
    links = replace(timeline.links, **{name: getattr(timeline.links, name)[rows] for name in timeline.links.__slots__})
    many = replace(timeline, links=links, category=timeline.category[rows])
    decoded: list[str] = []
    decode = weights.shapes_of
    monkeypatch.setattr(weights, "shapes_of", lambda text: decoded.append(text) or decode(text))
    on_weights(timeline)
    few, decoded[:] = decoded[:], []
    assert on_weights(many).sum() > 200_000
    assert decoded == few and len(few) <= 4 * len(set(few))

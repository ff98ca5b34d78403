"""Copies between CPU and GPU next to a cast to or from the copied type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.make_trace import dims
from helpers.program import BF16, FLOAT, MS, US, Program

from gpuprof.calibration import offload
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import wide_copies

SHAPE = [64, 1_000_000]
SIZE = 4 * 64_000_000
COPY = 100 * MS
ON_CPU = 40 * MS
"""CPU time of each op that computes between the cast and the copy."""


def moved(program: Program, name: str, shape: list[int]) -> None:
    """`.cpu()` or `.cuda()` of fp32 values, which blocks its caller."""
    start = program.now
    program.python(5 * US)
    inner = program.now
    program.python(5 * US)
    call = program.now
    program.launch(name, (call, call + 4 * US), COPY, cat="gpu_memcpy", bytes=SIZE)
    program.now += 5 * US
    program.synchronize()
    arguments: dict[str, Any] = {"Input Dims": [shape, shape, []], "Input type": [FLOAT, FLOAT, "Scalar"]}
    program.trace.op("aten::copy_", inner, program.now, program.tid, **arguments)
    program.python(2 * US)
    outer: dict[str, Any] = {"Input Dims": [shape]}
    program.trace.op("aten::to", start, program.now, program.tid, **outer)


def case_of(folder: Path, *parts: str) -> Analysis:
    program = Program()
    on_cpu = {
        "floats": ("to", "unsigned char", SHAPE), "divided": ("div", FLOAT, SHAPE), "summed": ("cumsum", FLOAT, SHAPE),
        "scaled": ("mul", "unsigned char", SHAPE), "moved": ("contiguous", FLOAT, SHAPE[::-1]),
        "masked": ("where", "bool", SHAPE), "copied": ("copy_", FLOAT, SHAPE),
        "noisy": ("bernoulli_", FLOAT, SHAPE), "smaller": ("max_pool2d", FLOAT, [64, 4_000_000]),
    }  # fmt: skip
    others = {"masked": SHAPE, "copied": SHAPE}

    def body() -> None:
        program.small_mm()
        for part in parts:
            if part == "widened":
                program.cast(SHAPE, BF16, FLOAT, 50 * US)
            elif part == "narrowed":
                program.cast(SHAPE, FLOAT, BF16, 50 * US)
            elif part == "between":
                program.plain("mul", SHAPE, SHAPE, type=FLOAT)
            elif part in on_cpu:
                name, source, shape = on_cpu[part]
                program.op(
                    f"aten::{name}",
                    dims=[shape, others.get(part, [])],
                    types=[source, "unsigned char" if part == "copied" else FLOAT],
                    host=ON_CPU,
                )
            elif part == "aside":  # a view of the tensor, and a mean by channel
                program.op("aten::permute", dims=[SHAPE], types=[FLOAT])
                program.op("aten::view", dims=[[3]], types=[FLOAT])
            else:
                moved(program, part, SHAPE)
        program.small_mm()

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def cast_within(program: Program) -> None:
    """`x.to("cuda", torch.float32)` of bytes, blocking: PyTorch casts on the CPU, in the op that copies."""
    start = program.now
    program.python(5 * US)
    program.op("aten::to", dims=[SHAPE], types=["unsigned char"], host=ON_CPU)
    program.op("aten::expand_as", dims=[SHAPE, SHAPE], types=[FLOAT, FLOAT])
    begin = program.now
    program.launch(UP, (begin + 2 * US, begin + 6 * US), COPY, cat="gpu_memcpy", bytes=SIZE)
    program.now += 7 * US
    program.synchronize()
    inner: dict[str, Any] = {"Input Dims": [SHAPE, SHAPE, []], "Input type": [FLOAT, FLOAT, "Scalar"]}
    program.trace.op("aten::copy_", begin, program.now, program.tid, **inner)
    outer: dict[str, Any] = {"Input Dims": [SHAPE, SHAPE, []], "Input type": [FLOAT, "unsigned char", "Scalar"]}
    program.trace.op("aten::copy_", start + US, program.now + US, program.tid, **outer)
    program.trace.op("aten::to", start, program.now + 2 * US, program.tid, **dims(SHAPE))
    program.now += 3 * US


DOWN, UP = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


@pytest.mark.parametrize("parts", [("widened", DOWN), (UP, "narrowed"), (UP, "between", "narrowed")])
def test_half_the_bytes_take_half_the_time_and_the_cpu_casts(tmp_path: Path, parts: tuple[str, ...]):
    case = case_of(tmp_path, *parts)
    proposal = only(wide_copies, case)
    assert proposal.title == "copied in bf16" and "256.0 MB a step" in proposal.evidence[0].text
    for change, rate in zip((proposal.best, proposal.change), offload.CAST_RATE.falling, strict=False):
        assert change is not None
        added = SIZE / rate * 1e9
        assert case.step_ns - case.step_of(change(case.graph)) == pytest.approx(COPY / 2 - added, rel=0.02)


def test_a_cast_that_pytorch_makes_in_the_copy_belongs_to_the_gpu(tmp_path: Path):
    program = Program()
    for _ in range(3):
        program.step(lambda: cast_within(program))
    case = program.case(tmp_path)
    proposal = only(wide_copies, case)
    assert proposal.title == "copied in uint8"
    gone = case.step_ns - case.step_of(proposal.change(case.graph))
    assert gone == pytest.approx(COPY * 3 / 4 + ON_CPU, rel=0.01)


@pytest.mark.parametrize(
    "parts",
    [
        ("floats",),
        ("floats", "divided"),
        ("scaled",),
        ("copied", "divided"),
        ("floats", "moved", "summed"),
        ("floats", "aside", "divided"),
    ],
)
def test_what_is_computed_on_the_cpu_before_the_copy_goes_with_it(tmp_path: Path, parts: tuple[str, ...]):
    case = case_of(tmp_path, *parts, UP)
    proposal = only(wide_copies, case)
    assert proposal.title == "copied in uint8" and proposal.odds == 1
    gone = case.step_ns - case.step_of(proposal.change(case.graph))
    passes = len(set(parts) - {"aside"})
    assert gone == pytest.approx(COPY * 3 / 4 + passes * ON_CPU, rel=0.01)


@pytest.mark.parametrize(
    "parts",
    [("floats", "noisy", UP), ("floats", "smaller", UP), ("masked", UP), ("divided", UP), ("floats", "divided", DOWN)],
)
def test_not_where_the_cpu_does_more_or_the_tensor_was_wide(tmp_path: Path, parts: tuple[str, ...]):
    assert not list(wide_copies.find(case_of(tmp_path, *parts)))


@pytest.mark.parametrize("parts", [(DOWN,), ("widened", "between", DOWN), (DOWN, "narrowed"), ("narrowed", UP), (UP,)])
def test_not_where_the_type_is_needed(tmp_path: Path, parts: tuple[str, ...]):
    assert not list(wide_copies.find(case_of(tmp_path, *parts)))

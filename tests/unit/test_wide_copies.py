"""Copies between CPU and GPU next to a cast to or from the copied type."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from helpers.case import only
from helpers.make_trace import dims
from helpers.program import BF16, FLOAT, MS, US, Program

from gpuprof.calibration import offload
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batches.float_pictures import without_casts
from gpuprof.diagnosis.findings import wide_copies
from gpuprof.replay.loader_queue import Loader

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


def pictures(
    folder: Path, shape: list[int], type: str = FLOAT, workers: bool = True, gpu: int = 20 * MS, autocast: bool = False
) -> Analysis:
    """A batch from a loader is copied to the GPU from pinned memory, and the GPU waits for it."""
    program = Program()
    iterator = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"

    def body() -> None:
        start = program.now
        program.python(2 * MS)
        program.trace.annotation(f"enumerate(DataLoader)#{iterator}.__next__", start, program.now)
        start = program.now
        program.launch(
            "Memcpy HtoD (Pinned -> Device)", (start + 5 * US, start + 9 * US), gpu, cat="gpu_memcpy",
            bytes=math.prod(shape) * (4 if type == FLOAT else 1),
        )  # fmt: skip
        program.now += 20 * US
        program.trace.op("aten::copy_", start + 2 * US, program.now - US, **{
            "Input Dims": [shape, shape, []], "Input type": [type, type, "Scalar"],
        })  # fmt: skip
        if autocast:
            program.cast(shape, FLOAT, BF16)
        program.small_mm(gpu=10 * MS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_autocast_does_not_make_the_copy_of_pictures_narrow(tmp_path):
    found = list(wide_copies.find(pictures(tmp_path, [256, 3, 224, 224], autocast=True)))
    assert {one.key for one in found} == {"", "pictures"}


@pytest.mark.parametrize("shape", [[256, 3, 224, 224], [8, 16, 3, 224, 224], [64, 224, 224, 3]])
def test_pictures_that_workers_make_floats_are_sent_as_bytes(tmp_path, shape):
    case = pictures(tmp_path, shape)
    found = only(wide_copies, case, "pictures")
    assert found.best is not None and found.worst is not None
    steps = [case.step_of(change(case.graph)) for change in (found.best, found.change, found.worst)]
    assert case.step_ns - steps[1] == pytest.approx(0.75 * 20 * MS, rel=0.05)
    assert steps[0] <= steps[1] <= steps[2]
    assert " × ".join(f"{side:,}" for side in shape) in found.evidence[0].text and found.odds < 1


@pytest.mark.parametrize(
    ("shape", "type", "workers"),
    [
        ([256, 3, 224, 224], "unsigned char", True), ([64, 4, 64, 64], FLOAT, True), ([64, 1, 80, 3000], FLOAT, True),
        ([256, 3, 224, 224], FLOAT, False), ([64, 512, 512, 16], FLOAT, True),
    ],
    ids=["bytes", "latents", "spectrograms", "no workers", "features"],
)  # fmt: skip
def test_not_what_is_no_picture_or_not_a_workers(tmp_path, shape, type, workers):
    assert not [one for one in wide_copies.find(pictures(tmp_path, shape, type, workers)) if one.key == "pictures"]


def test_workers_that_make_no_floats_take_less_time():
    loader = Loader(batch_ns=800 * MS, workers=4)
    values = 256 * 3 * 224 * 224
    times = [without_casts(loader, values, level).batch_ns for level in range(3)]
    assert times[1] == pytest.approx(800 * MS - values * 2.5)
    assert 400 * MS <= times[0] < times[1] < times[2] < loader.batch_ns

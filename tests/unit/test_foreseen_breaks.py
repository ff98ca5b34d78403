"""torch.compile before it is used: foreseeable breaks, blocks as a separate entry, compile time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import only, run_of
from helpers.program import US, Program

from gpuprof.calibration import breaks as breaks_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled.foreseen_breaks import blocks_of, foreseen, in_words
from gpuprof.diagnosis.detect.compiled.opaque_functions import opaque_nodes
from gpuprof.diagnosis.findings import compile
from gpuprof.diagnosis.result.run_model import Run

BLOCKS = 12


def model(tmp_path: Path, run: Run | None = None, buckets: int = 0, reads: int = 0, named: bool = True) -> Analysis:
    """Launch-bound blocks; the backward pass reduces gradients in buckets, the forward pass reads values."""
    program = Program()

    def layer() -> None:
        program.small_mm()
        for _ in range(4):
            program.elementwise()

    def backward(i: int) -> None:
        layer()
        if i < buckets:
            program.op("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 3 * US)

    def body() -> None:
        for i in range(BLOCKS):
            start = program.now
            layer()
            if named:
                program.trace.op(f"nn.Module: Block_{i}", start, program.now, program.tid, "user_annotation")
            if i < reads:
                program.item()
        done = iter(range(BLOCKS))
        program.backward(lambda: backward(next(done)), BLOCKS)

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path, run)


def test_blocks_are_counted(tmp_path: Path):
    found = blocks_of(model(tmp_path / "a"))
    assert found is not None and (found.name, found.count) == ("Block", BLOCKS)
    assert blocks_of(model(tmp_path / "b", named=False)) is None


def test_one_block_compiles_in_less_time():
    whole, one = compile_ns(2400, False), compile_ns(2400, False, blocks=24)
    assert all(a < b for a, b in zip(one, whole, strict=True))
    assert compile_ns(2400, False, 1) == whole


def test_blocks_are_an_entry_where_the_run_is_too_short_for_the_whole(tmp_path: Path):
    short = replace(run_of(), steps_total=10)
    found = {one.key: one for one in compile.find(model(tmp_path / "a", short))}
    assert set(found) == {"", "blocks"}
    assert found["blocks"].once_ns[1] < found[""].once_ns[1]
    patch = found["blocks"].fix.patch
    assert patch is not None and (patch.name, patch.value) == ("compile", "blocks")
    long = replace(run_of(), steps_total=10_000_000)
    assert [one.key for one in compile.find(model(tmp_path / "b", long))] == [""]


def test_each_block_costs_a_call_in_both_passes(tmp_path: Path):
    case = model(tmp_path, replace(run_of(), steps_total=10))
    found = {one.key: one for one in compile.find(case)}
    whole, each = (case.step_of(found[key].change(case.graph)) for key in ("", "blocks"))
    assert each - whole == pytest.approx(2 * BLOCKS * breaks_calibrated.CALL_NS.rising[1], rel=0.05)


def test_buckets_of_ddp_and_values_that_are_read_break_the_graph(tmp_path: Path):
    ddp = replace(run_of(), model={"wrapper": "DistributedDataParallel"})
    case = model(tmp_path / "a", ddp, buckets=3, reads=2)
    found = dict(foreseen(case))
    assert found["buckets of DDP"] == 3 and found["values that are read"] == pytest.approx(2, abs=0.5)
    text = in_words(foreseen(case))
    assert text.startswith("foreseen graph breaks: ") and "3 buckets of DDP" in text
    plain = model(tmp_path / "b", None, buckets=3, reads=2)
    assert "buckets of DDP" not in dict(foreseen(plain))
    with_ddp, without = only(compile, case), only(compile, plain)
    more = case.step_of(with_ddp.change(case.graph)) - plain.step_of(without.change(plain.graph))
    assert more == pytest.approx(2 * 3 * breaks_calibrated.CALL_NS.rising[1], rel=0.1)


@pytest.mark.parametrize(("call", "inner", "stays"), [
    ("cudaLaunchKernel", (), True),
    ("cuLaunchKernelEx", (), False),  # Triton's launcher, which Dynamo knows
    ("cudaLaunchKernel", ("mamba::scan",), False),  # a custom operator
])  # fmt: skip
def test_a_custom_function_of_an_extension_stays_as_it_is(
    call: str, inner: tuple[str, ...], stays: bool, tmp_path: Path
):
    program = Program()

    def one(name: str) -> None:
        program.op(name, "selective_scan_kernel", 500 * US, inner=inner, host=100 * US)

    def body() -> None:
        for _ in range(BLOCKS):
            program.small_mm()
            for _ in range(4):
                program.elementwise()
        one("SelectiveScanFn")
        program.backward(lambda: one("SelectiveScanFnBackward"), 1)

    for _ in range(3):
        program.step(body)
    for event in program.trace.events:
        if event["name"] == "cudaLaunchKernel":
            event["name"] = call
    case = program.case(tmp_path)
    said = dict(foreseen(case))
    assert said == ({"calls of custom autograd functions": 1.0} if stays else {})
    assert opaque_nodes(case).any() == stays
    after = only(compile, case).change(case.graph)
    scans = opaque_nodes(case) & case.graph.on_gpu
    assert after.duration_ns[scans].tolist() == case.graph.duration_ns[scans].tolist()


def test_nothing_is_foreseen_where_nothing_breaks(tmp_path: Path):
    assert foreseen(model(tmp_path)) == () and in_words(()) == ""

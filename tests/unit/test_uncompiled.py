"""A compiled model with many small graphs, priced as if it were not compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.case import only, run_of
from helpers.program import OP, US, Program

from gpuprof.calibration import breaks, compile
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled.uncompiled import uncompiled
from gpuprof.diagnosis.findings import graph_breaks
from gpuprof.tracefile.run_folder.compiler import Compiler
from gpuprof.tracefile.run_folder.untrusted import read

BLOCKS, ENTRY, BETWEEN = 8, 200 * US, 30 * US
BREAK = {"reason": "logging", "detail": None, "calls": [{"file": "t.py", "line": 30, "function": "f"}], "count": 2}


def function(number: int, ops: int, resumed_at: int | None) -> dict[str, Any]:
    return {
        "id": number, "function": "f", "file": "t.py", "line": 20, "resumed_at": resumed_at, "versions": 1, "ops": ops,
        "compile_us": 2_000_000, "ended_unix_us": 1, "limit": False, "failed": None, "recompiles": [],
    }  # fmt: skip


def graph(program: Program, number: int, kernels: int = 1, matmul: bool = True, version: int = 0) -> None:
    """A call of a compiled graph: it sets up for long, and launches some kernels."""
    region = program.now
    program.python(US)
    start = program.now
    program.python(ENTRY)
    generated = program.now
    program.python(US)
    for _ in range(kernels):
        if matmul:
            program.small_mm()
        else:
            program.elementwise()
    program.python(US)
    program.trace.op("## Call CompiledFxGraph fabc ##", generated, program.now, program.tid, "user_annotation")
    numbers: dict[str, Any] = program.numbered()
    program.trace.op("CompiledFunction", start, program.now, program.tid, **numbers)
    program.trace.op(f"Torch-Compiled Region: {number}/{version}", region, program.now + US, program.tid)
    program.now += US


def compiler(ops: int) -> Compiler:
    found = read(Compiler, {
        "functions": [function(1, ops, None), function(2, ops, 30)], "breaks": [BREAK], "recompile_limit": 8,
    })  # fmt: skip
    assert found is not None
    return found


def model(folder: Path, ops: int, matmul: bool = True) -> Analysis:
    """Two graphs a block with a break in between; each launches one kernel."""
    program = Program()

    def body() -> None:
        for _ in range(BLOCKS):
            graph(program, 1, matmul=matmul)
            program.python(BETWEEN)
            graph(program, 2, matmul=matmul)
            program.python(BETWEEN)

    for _ in range(3):
        program.step(body)
    return program.case(folder, replace(run_of(), compiler=compiler(ops)))


@pytest.mark.parametrize("ops", [2, 8])
def test_ops_in_graphs_take_what_they_take_one_by_one(tmp_path: Path, ops: int):
    case = model(tmp_path, ops)
    found = uncompiled(case)
    assert found is not None
    each = [number * OP / compile.HOST.value for number in breaks.EAGER_OP.rising]
    for way, ns in enumerate(each):
        then = case.step_of(found.without(way)(case.graph))
        # What lies between two graphs is the program's own here, and stays.
        assert then == pytest.approx(2 * BLOCKS * (ops * ns + BETWEEN), rel=0.06)


def test_not_compiling_is_proposed_and_gains_only_with_few_ops_a_graph(tmp_path: Path):
    for ops, gains in ((2, True), (12, False)):
        case = model(tmp_path / str(ops), ops)
        proposal = only(graph_breaks, case, "eager")
        assert (case.step_of(proposal.change(case.graph)) < 0.9 * case.step_ns) == gains
        assert f"for {2 * BLOCKS * ops:,} ops of the forward pass" in proposal.evidence[-1].text


def test_a_version_with_fewer_kernels_has_fewer_ops(tmp_path: Path):
    """Blocks with a break and blocks without one are versions of one function, of which the larger one was counted."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [(graph(program, 1, kernels=2), graph(program, 1, kernels=1)) for _ in range(BLOCKS)])
    case = program.case(tmp_path, replace(run_of(), compiler=compiler(ops=8)))
    found = uncompiled(case)
    assert found is not None and found.ops == 3 * BLOCKS * (8 + 4)


def test_where_the_ops_of_versions_are_known_they_count(tmp_path: Path):
    program = Program()
    for _ in range(3):
        program.step(
            lambda: [(graph(program, 1, kernels=2), graph(program, 1, kernels=1, version=1)) for _ in range(BLOCKS)]
        )
    known = read(Compiler, {"functions": [function(1, 8, None) | {"ops_of_versions": [8, 7]}], "breaks": [BREAK]})
    found = uncompiled(program.case(tmp_path, replace(run_of(), compiler=known)))
    assert found is not None and found.ops == 3 * BLOCKS * (8 + 7)


def test_without_the_number_of_ops_or_the_pace_of_the_cpu_there_is_no_price(tmp_path: Path):
    assert uncompiled(model(tmp_path / "no ops", 0)) is None
    assert uncompiled(model(tmp_path / "no matmul", 4, matmul=False)) is None

"""Graph breaks of a compiled model: which stretches of a step belong to them, and what removing them gains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.case import only, run_of
from helpers.program import GRID, US, Program

from gpuprof.calibration import breaks as breaks_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled.compiled_regions import broken_at
from gpuprof.diagnosis.findings import compile, cuda_graphs, graph_breaks, recompiles
from gpuprof.tracefile.run_folder.compiler import Compiler
from gpuprof.tracefile.run_folder.untrusted import read

ENTRY, GRAPH, BLOCKS = 40 * US, 80 * US, 8
"""Host time of setting a graph call up, and of launching what is in it; blocks of the model."""
KERNELS = 8


def function(number: int, name: str, line: int, resumed_at: int | None = None, **more: Any) -> dict[str, Any]:
    nothing = {"versions": 1, "ops": 5, "compile_us": 2_000_000, "ended_unix_us": 1, "limit": False, "failed": None}
    place = {"id": number, "function": name, "file": "train.py", "line": line, "resumed_at": resumed_at}
    return place | nothing | {"recompiles": []} | more


def a_break(reason: str, *lines: int) -> dict[str, Any]:
    calls = [{"file": "train.py", "line": line, "function": "forward"} for line in lines]
    return {"reason": reason, "detail": None, "calls": calls, "count": 2}


ITEM, LOG = "Unsupported Tensor.item() call", "logging.Logger method not supported"


def compiler(functions: list[dict[str, Any]], breaks: list[dict[str, Any]], **more: Any) -> Compiler:
    found = read(Compiler, {"functions": functions, "breaks": breaks, "recompile_limit": 8, **more})
    assert found is not None
    return found


BROKEN = compiler(
    [function(0, "forward", 40, failed=ITEM), function(1, "forward", 20), function(2, "forward", 30, 30)],
    [a_break(ITEM, 30)],
)


def graph_call(program: Program, number: int, kernel_ns: int, inner: Any = None) -> None:
    """A compiled function: setting up, its graph, and what it calls after a break."""
    start = program.now
    program.python(2 * US)
    call = program.now
    program.python(ENTRY)
    generated = program.now
    for _ in range(KERNELS):
        program.launch("triton_poi_fused_add_0", (program.now, program.now + 4 * US), kernel_ns, grid=GRID)
        program.python(GRAPH // KERNELS)
    program.trace.op("## Call CompiledFxGraph fabc ##", generated, program.now, program.tid, "user_annotation")
    numbers: dict[str, Any] = program.numbered()
    program.trace.op("CompiledFunction", call, program.now, program.tid, **numbers)
    if inner is not None:
        inner()
    program.trace.op(f"Torch-Compiled Region: {number}/0", start, program.now, program.tid)
    program.now += 1 * US


def model(
    tmp_path: Path,
    found: Compiler | None,
    reads: bool = True,
    kernel_ns: int = 10 * US,
    blocks: tuple[int, ...] = (BLOCKS,) * 3,
) -> Analysis:
    """Blocks of two graphs with a break in between, which waits for the GPU or not; `blocks`: their number by step."""
    program = Program()

    def rest() -> None:
        program.python(20 * US)
        if reads:
            program.item()
        graph_call(program, 2, kernel_ns)

    def body(count: int) -> None:
        for _ in range(count):
            graph_call(program, 1, kernel_ns, rest)
        program.python(10 * US)

    for count in blocks:
        program.step(lambda count=count: body(count))
    run = None if found is None else replace(run_of(), compiler=found)
    return program.case(tmp_path, run)


def test_stretches_between_graph_calls_belong_to_the_break(tmp_path: Path):
    case = model(tmp_path, BROKEN)
    (found,) = broken_at(case)
    # One within each block, and one between two blocks, whose caller was abandoned for the same reason.
    assert found.times == 2 * BLOCKS - 1
    assert case.per_step(float(found.waits.sum())) == pytest.approx(BLOCKS, abs=0.4)


def test_without_what_the_run_says_of_breaks_nothing_is_found(tmp_path: Path):
    assert not list(graph_breaks.find(model(tmp_path, None)))
    assert not list(graph_breaks.find(model(tmp_path, compiler([function(1, "forward", 20)], []))))


def test_blocks_that_are_compiled_one_by_one_are_no_breaks(tmp_path: Path):
    """Their caller was never compiled, and no break is before them."""
    blocks = compiler([function(1, "forward", 20), function(2, "other", 50)], [a_break(LOG, 99)])
    assert broken_at(model(tmp_path, blocks)) == ()


@pytest.mark.parametrize("kernel_ns", [2 * US, 60 * US], ids=["the CPU is the limit", "the GPU is the limit"])
def test_a_break_that_waits_gains_its_wait_and_its_set_up(tmp_path: Path, kernel_ns: int):
    case = model(tmp_path, BROKEN, kernel_ns=kernel_ns)
    proposal = only(graph_breaks, case, "joined")
    best, usual, worst = (
        case.step_of(change(case.graph)) for change in (proposal.best, proposal.change, proposal.worst) if change
    )
    gpu = 2 * BLOCKS * KERNELS * (kernel_ns + 1 * US)
    # Launching stays, except for fused kernels and the way out of a graph; the set-up of one graph, and what
    # follows it; and of the set-up of the others the part that grows with their ops.
    way_out = GRAPH // KERNELS - 4 * US
    fused = breaks_calibrated.FUSED_LAUNCHES.falling[0] * (GRAPH - way_out) / KERNELS
    host = 2 * BLOCKS * GRAPH - (2 * BLOCKS - 1) * (way_out + fused) + ENTRY + 10 * US
    host += 5 / (5 + breaks_calibrated.CALL_OPS.falling[0]) * (2 * BLOCKS - 1) * (ENTRY + 20 * US)
    assert best <= usual <= worst < case.step_ns
    assert best == pytest.approx(max(gpu, host), rel=0.1)


def test_a_break_that_waits_for_nothing_gains_nothing_where_the_gpu_is_the_limit(tmp_path: Path):
    case = model(tmp_path, BROKEN, reads=False, kernel_ns=200 * US)
    proposal = only(graph_breaks, case, "joined")
    assert case.step_of(proposal.change(case.graph)) == pytest.approx(case.step_ns, rel=0.02)


def test_what_a_branch_leaves_out_is_computed_in_each_step_without_the_break(tmp_path: Path):
    case = model(tmp_path, BROKEN, kernel_ns=60 * US, blocks=(BLOCKS, BLOCKS // 2, BLOCKS // 2))
    (tmp_path / "all").mkdir()
    every = model(tmp_path / "all", BROKEN, kernel_ns=60 * US)
    proposal = only(graph_breaks, case, "joined")
    then = [one.step_of(only(graph_breaks, one, "joined").change(one.graph)) for one in (case, every)]
    assert then[0] == pytest.approx(then[1], rel=0.05)
    assert proposal.evidence[-1].text.startswith("forward passes call 8 to 16 graphs;")


def test_the_line_the_count_and_the_gain_are_named(tmp_path: Path):
    case = model(tmp_path, BROKEN)
    texts = [one.text for one in only(graph_breaks, case, "joined").evidence]
    assert "15 graph breaks a step" in texts[0]
    assert "forward (train.py:30)" in texts[1] and ITEM in texts[1] and "8 waits for the GPU" in texts[1]
    assert " µs a step less" in texts[1]
    assert "torch.where" in str(only(graph_breaks, case, "joined").fix)


def test_each_break_has_a_price_of_its_own(tmp_path: Path):
    """Two alternating breaks: removing the one that waits gains more than removing the one that logs."""
    program = Program()
    two = compiler(
        [function(1, "forward", 20), function(2, "forward", 30, 30), function(3, "forward", 33, 33)],
        [a_break(LOG, 33), a_break(ITEM, 30)],
    )

    def body() -> None:
        for _ in range(BLOCKS):
            graph_call(program, 1, 6 * US)
            program.item()
            graph_call(program, 2, 6 * US)
            program.python(6 * US)
            graph_call(program, 3, 6 * US)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path, replace(run_of(), compiler=two))
    found = {one.broken.reason: one for one in broken_at(case)}
    assert found[ITEM].times == found[LOG].times == BLOCKS
    alone = {
        reason: case.step_ns - case.step_of(graph_breaks.without([one], 1)(case.graph)) for reason, one in found.items()
    }
    assert alone[ITEM] > alone[LOG] > 0


def test_matmuls_between_two_graphs_are_launched_by_the_joined_one(tmp_path: Path):
    """A layer that a hook keeps out of the graphs: its matrix multiplication stays, what follows it is fused."""

    def case_with(op: str) -> Analysis:
        program = Program()

        def rest() -> None:
            (program.small_mm if op == "mm" else program.elementwise)(gpu=40 * US)
            graph_call(program, 2, 6 * US)

        for _ in range(3):
            program.step(lambda: [graph_call(program, 1, 6 * US, rest) for _ in range(BLOCKS)])
        (tmp_path / op).mkdir()
        return program.case(tmp_path / op, replace(run_of(), compiler=BROKEN))

    gpu, launched = {}, {}
    for op in ("mm", "mul"):
        case = case_with(op)
        (found,) = broken_at(case)
        joined = graph_breaks.without([found], 1)(case.graph)
        gpu[op] = float(joined.duration_ns[found.eager].sum()) / float(case.graph.duration_ns[found.eager].sum())
        launched[op] = joined.duration_ns[found.launching]
    assert gpu == {"mm": 1.0, "mul": pytest.approx(breaks_calibrated.FUSED.value)}
    assert len(launched["mm"]) == 3 * BLOCKS and not len(launched["mul"])
    assert launched["mm"] == pytest.approx(GRAPH / KERNELS, rel=0.1)


def test_graphs_after_that_where_launching_is_the_limit(tmp_path: Path):
    case = model(tmp_path, BROKEN, kernel_ns=2 * US)
    joined, graphs = only(graph_breaks, case, "joined"), only(graph_breaks, case, "graphs")
    assert case.step_of(graphs.change(case.graph)) < case.step_of(joined.change(case.graph)) < case.step_ns
    assert graphs.odds < 1 and "reduce-overhead" in str(graphs.fix)


@pytest.mark.parametrize("computes", [True, False], ids=["computes on the CPU", "launches"])
def test_a_thread_that_wakes_late_does_so_because_of_code_that_computes_on_the_cpu(tmp_path: Path, computes: bool):
    """2 ms until autograd's thread begins: without the break it is as quick as usual, if threads kept cores busy."""
    program = Program()

    def body() -> None:
        graph_call(program, 1, 2 * US)
        program.item()
        start = program.now
        graph_call(program, 2, 2 * US)
        if computes:
            began = program.now
            program.python(300 * US)
            program.trace.op("## Call CompiledFxGraph fdef ##", began, program.now, program.tid, "user_annotation")
            program.trace.op("CompiledFunction", began - US, program.now, program.tid)
            program.trace.op("Torch-Compiled Region: 2/0", start - US, program.now, program.tid)
        program.now += 2_000 * US
        program.backward(program.small_mm, 3)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path, replace(run_of(), compiler=BROKEN))
    (found,) = broken_at(case)
    joined = graph_breaks.without([found], 1)(case.graph)
    assert found.waking.any() == computes
    late = case.graph.duration_ns > 1_500 * US
    assert late.sum() == 3
    assert (joined.duration_ns[late] == breaks_calibrated.WAKE_NS.value).all() == computes


# -- a function that dynamo gave up


def eager_model(tmp_path: Path, found: Compiler | None) -> Analysis:
    """Kernels launched one by one, forward and backward."""
    program = Program()

    def layer() -> None:
        program.small_mm()
        for _ in range(4):
            program.elementwise()

    def body() -> None:
        for _ in range(20):
            layer()
        program.backward(layer, 40)

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path, None if found is None else replace(run_of(), compiler=found))


GUARD = {"guard": "self.strength == 3", "file": "train.py", "line": 24, "function": "forward", "count": 4}
WHOLE = 20 * 5
"""Ops of the forward pass."""
GIVEN_UP = compiler([function(0, "forward", 22, limit=True, versions=4, ops=WHOLE, recompiles=[GUARD])], [])


def test_a_function_given_up_is_priced_as_compiling_it(tmp_path: Path):
    case, plain = eager_model(tmp_path / "a", GIVEN_UP), eager_model(tmp_path / "b", None)
    found = only(recompiles, case, "guard")
    expected = only(compile, plain)
    assert np.isclose(case.step_of(found.change(case.graph)), plain.step_of(expected.change(plain.graph)))
    texts = " ".join(one.text for one in found.evidence)
    assert "self.strength == 3" in texts and "train.py:24" in texts and "4 versions" in texts


def test_each_call_of_a_function_given_up_is_a_graph_of_its_own(tmp_path: Path):
    block = compiler([function(0, "forward", 22, limit=True, versions=4, ops=WHOLE // 5, recompiles=[GUARD])], [])
    case, whole = eager_model(tmp_path / "a", block), eager_model(tmp_path / "b", GIVEN_UP)
    each, once = (one.step_of(only(recompiles, one, "guard").change(one.graph)) for one in (case, whole))
    assert each - once == pytest.approx(2 * 4 * breaks_calibrated.CALL_NS.rising[1], rel=0.05)


LOOP = "Failed to trace builtin operator"
IN_A_LOOP = function(0, "forward", 22, versions=0, ops=0, failed=LOOP, failed_at={"file": "train.py", "line": 25})


def test_where_a_break_left_nothing_compiled_the_price_is_that_of_compiling(tmp_path: Path):
    case, plain = eager_model(tmp_path / "a", compiler([IN_A_LOOP], [])), eager_model(tmp_path / "b", None)
    found = only(graph_breaks, case, "joined")
    expected = only(compile, plain)
    assert case.step_of(found.change(case.graph)) == pytest.approx(plain.step_of(expected.change(plain.graph)))
    assert found.odds < 1 and "train.py:25" in str(found.fix) and LOOP in found.evidence[0].text
    assert not list(compile.find(case)) and not list(cuda_graphs.find(case))
    assert "gave up" in (compile.ABSENT.why(case) or "")


def test_a_break_in_a_loop_is_found_between_the_calls_that_stayed_compiled(tmp_path: Path):
    """Dynamo then notes no break, but why it gave up the function with the loop."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [graph_call(program, 1, 2 * US) for _ in range(BLOCKS)])
    run = replace(run_of(), compiler=compiler([IN_A_LOOP, function(1, "forward", 30)], []))
    (found,) = broken_at(program.case(tmp_path, run))
    assert found.times == BLOCKS - 1
    assert (found.broken.reason, found.broken.place.line) == (LOOP, 25)


def test_then_compiling_it_is_not_advised_once_more(tmp_path: Path):
    case = eager_model(tmp_path, GIVEN_UP)
    assert not list(compile.find(case)) and not list(cuda_graphs.find(case))
    assert "gave up forward" in (compile.ABSENT.why(case) or "")


def test_a_guard_that_failed_and_no_limit_reached_says_nothing(tmp_path: Path):
    once = compiler([function(0, "forward", 22, versions=2, recompiles=[GUARD])], [])
    assert not list(recompiles.find(eager_model(tmp_path, once)))


# -- the contents of a run folder, none of it trusted


@pytest.mark.parametrize(
    "value",
    [
        None, [], "x", {"functions": "x"}, {"functions": [{"id": -1}, {"id": True}, 3]}, {"breaks": [{"reason": 5}]},
        {"counters": {"inductor": []}}, {"breaks": [{"reason": "a", "calls": [{"line": "x"}, 7], "count": -1}]},
        {"cudagraph_skips": [{"reason": None}]}, {"functions": [{"id": 1, "recompiles": [{"guard": ["x"]}]}]},
    ],
)  # fmt: skip
def test_odd_facts_do_no_harm(value: Any):
    found = read(Compiler, value)
    assert found is None or isinstance(found, Compiler)


def test_why_torch_skipped_cuda_graphs_is_said(tmp_path: Path):
    skipped = compiler([function(1, "forward", 20)], [], cudagraph_skips=[{"reason": "mutated inputs", "count": 3}])
    case = model(tmp_path, skipped, reads=False, kernel_ns=2 * US)
    assert cuda_graphs.ABSENT.why(case) == "torch skipped CUDA graphs: mutated inputs (3 times)"

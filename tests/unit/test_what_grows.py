"""What else in a step takes longer for a larger batch besides the model's kernels: preparing samples, copies,
exchanges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.program import MS, PLAIN, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.projection.changes.batch import another_batch, communication_at_worst
from gpuprof.projection.changes.sample_preparation import preparing
from gpuprof.replay.graph import COMMUNICATION
from gpuprof.replay.split_collectives import model_collectives, waiting

FACTOR = 4.0


def step(body: Callable[[Program], object], folder: Path) -> Analysis:
    """Three steps of a model's forward and backward pass, preceded by the work that the test gives."""
    program = Program()

    def whole() -> None:
        body(program)
        for _ in range(10):
            program.mm(512, 512, 512)
        program.backward(lambda: program.op("aten::mm", PLAIN, dims=[[512, 512], [512, 512]]), 10)

    for _ in range(3):
        program.step(whole)
    return program.case(folder)


def grown(case: Analysis) -> np.ndarray:
    """For each node, how many times as long it takes with a batch of four times the size whose kernels do not take
    longer."""
    graph = case.graph
    change = another_batch(graph, np.ones(len(case.trace.gpu)), FACTOR)
    return change(graph).duration_ns / np.maximum(graph.duration_ns, 1e-9)


def of_kernels(case: Analysis, name: str) -> np.ndarray:
    rows = case.trace.rows_named(case.trace.gpu.name, lambda text: name in text)
    nodes = case.nodes_of_gpu(rows) & case.graph.on_gpu & (case.graph.duration_ns > 0)
    return grown(case)[nodes]


@pytest.mark.parametrize(
    ("kernel", "op", "expected"),
    [
        ("ncclDevKernel_SendRecv", "record_param_comms", FACTOR),
        ("ncclKernel_AllToAll_Sum_int8_t", "record_param_comms", FACTOR),
        ("ncclDevKernel_Generic", "nccl:all_to_all", FACTOR),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl:all_reduce", 1.0),
        ("ncclDevKernel_AllGather_RING_LL", "nccl:all_gather", 1.0),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "nccl:all_reduce", 1.0),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "nccl:all_to_all", FACTOR),
    ],
)
def test_an_exchange_of_tokens_grows_and_one_of_weights_does_not(tmp_path, kernel, op, expected):
    def exchange(program: Program) -> None:
        start = program.now
        program.launch(kernel, (start + 2 * US, start + 6 * US), 300 * US, stream=20)
        program.now += 20 * US
        program.trace.annotation(op, start, program.now)

    found = of_kernels(step(exchange, tmp_path), kernel)
    assert len(found) and found == pytest.approx(expected)


@pytest.mark.parametrize(("op", "waits"), [("nccl:all_to_all", 0.0), ("nccl:all_reduce", FACTOR)])
def test_what_one_rank_waits_grows_at_worst(tmp_path: Path, op: str, waits: float):
    """Two collectives of one size, the second ten times as long: in an exchange of tokens all of that may be moving
    data, in an all-reduce it may be the other rank's work on its batch."""

    def exchange(program: Program) -> None:
        for took in (300 * US, 3000 * US):
            start = program.now
            program.launch("ncclDevKernel_SendRecv", (start + 2 * US, start + 6 * US), took, stream=20)
            program.now += 4000 * US
            program.trace.annotation(op, start, start + 20 * US)

    graph = model_collectives(step(exchange, tmp_path).graph)
    assert waiting(graph).any()
    changed = communication_at_worst(graph, FACTOR)(graph)
    late = waiting(graph)
    assert changed.duration_ns[late] == pytest.approx(waits * graph.duration_ns[late])
    moves = (graph.resource == COMMUNICATION) & ~late & np.isin(graph.gpu_row, graph.gpu_row[late])
    gpu, rows = graph.timeline.trace.gpu, graph.gpu_row[moves]
    took = graph.duration_ns[moves] if waits else FACTOR * (gpu.end_ns - gpu.start_ns)[rows]
    assert len(rows) and changed.duration_ns[moves] == pytest.approx(took)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("Memcpy HtoD (Pinned -> Device)", 10**6, FACTOR),
        ("Memcpy DtoH (Device -> Pinned)", 10**6, FACTOR),
        ("Memcpy DtoH (Device -> Pinned)", 4, 1.0),
    ],
)
def test_copies_of_batches_and_results_grow_and_those_of_single_values_do_not(tmp_path, name, size, expected):
    def copy(program: Program) -> None:
        start = program.now
        program.launch(name, (start, start + 4 * US), 50 * US, cat="gpu_memcpy", bytes=size)
        program.now += 10 * US

    found = of_kernels(step(copy, tmp_path), name)
    assert len(found) and found == pytest.approx(expected)


def cpu_ops(program: Program) -> None:
    for _ in range(30):
        program.trace.op("aten::_upsample_bilinear2d_aa", program.now, program.now + 150 * US)
        program.now += 200 * US


def in_range(name: str) -> Callable[[Program], object]:
    def body(program: Program) -> None:
        program.trace.annotation(name, program.now, program.now + 6 * MS)
        program.now += 6 * MS

    return body


def pause(program: Program) -> None:
    program.python(6 * MS)


def compiling(program: Program) -> None:
    program.trace.annotation("entire_frame_compile (dynamo_timed)", program.now, program.now + 6 * MS)
    program.trace.op("aten::empty", program.now, program.now + 10 * US)
    program.now += 6 * MS


def views(program: Program) -> None:
    """Parameters become views of a flat buffer: many ops, none of which reads an element."""
    for _ in range(600):
        program.trace.op("aten::narrow", program.now, program.now + 9 * US)
        program.trace.op("aten::as_strided", program.now + 1 * US, program.now + 5 * US)
        program.now += 10 * US


def compiled_prologue(program: Program) -> None:
    program.trace.op("TorchDynamo Cache Lookup", program.now, program.now + 4 * MS)
    program.now += 6 * MS


def slow_launch(program: Program) -> None:
    """The op looks for its fastest kernel before it launches it."""
    program.op("aten::cudnn_convolution", PLAIN, 50 * US, host=6 * MS)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (cpu_ops, 6 * MS),
        (in_range("## load_batch ##"), 6 * MS),
        (pause, 0),
        (compiling, 0),
        (slow_launch, 0),
        (views, 0),
        (compiled_prologue, 0),
    ],
    ids=[
        "ops on the CPU",
        "a range that loads data",
        "a pause",
        "compiling",
        "an op that launches",
        "views",
        "compiled",
    ],
)
def test_preparing_samples_is_found_by_what_it_does(tmp_path, body, expected):
    case = step(body, tmp_path)
    graph = case.graph
    nodes = (graph.lane >= 0) & (grown(case) > 1)
    assert case.per_step(float(graph.duration_ns[nodes].sum())) == pytest.approx(expected, abs=150 * US)
    assert grown(case)[nodes] == pytest.approx(FACTOR)


def test_the_ops_of_an_optimizer_on_the_cpu_are_no_samples(tmp_path):
    def body(program: Program) -> None:
        start = program.now
        cpu_ops(program)
        program.trace.annotation("Optimizer.step#CPUAdam.step", start, program.now)

    case = step(body, tmp_path)
    assert not preparing(case.graph).any()

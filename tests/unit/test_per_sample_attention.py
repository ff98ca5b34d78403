"""Attention is called for one sample after another, so that more samples mean more calls."""

import numpy as np
import pytest
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import BF16, MATMUL, US, Program

from gpuprof.projection.changes.batch import another_batch
from gpuprof.projection.changes.per_sample_attention import rounds_of
from gpuprof.replay.graph import Graph

LAYERS, SAMPLES, STEPS = 4, 3, 2
SLICE, CALL, LINEAR, KERNEL = 30 * US, 50 * US, 20 * US, 2 * US
ATTENTION = "aten::_scaled_dot_product_cudnn_attention"


def call(program: Program, batch: int, name: str = ATTENTION) -> None:
    shapes = [[batch, 8, 64, 32]] * 5
    program.op("aten::slice", host=SLICE)
    program.op(name, "cudnn_sdpa", KERNEL, shapes, [BF16] * len(shapes), host=CALL)


def matmul(program: Program, name: str = "aten::mm", kernel: str = MATMUL) -> None:
    program.op(name, kernel, 2 * US, [[64, 64], [64, 64]], [BF16, BF16], host=LINEAR)


def graph_of(tmp_path, layer) -> Graph:
    program = Program()
    for _ in range(STEPS):
        program.step(lambda: [layer(program) for _ in range(LAYERS)])
    return program.case(tmp_path).graph


def loops(samples: int, batch: int = 1):
    def layer(program: Program) -> None:
        matmul(program)
        for _ in range(samples):
            call(program, batch)

    return layer


def changed(graph: Graph, factor: float, growth: float = 1.0, share: float = 1.0) -> Graph:
    per_event = np.full(len(graph.timeline.trace.gpu), growth)
    return another_batch(graph, per_event, factor, of_a_round=share)(graph)


def total(graph: Graph, of: np.ndarray) -> float:
    return float(graph.duration_ns[of].sum()) / (STEPS * LAYERS)


@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_each_sample_more_is_another_round(tmp_path, factor, share):
    graph = graph_of(tmp_path, loops(SAMPLES))
    host = (graph.lane >= 0) & ~graph.waits
    assert set(rounds_of(graph).tolist()) == {0, SAMPLES - 1}
    added = total(changed(graph, factor, share=share), host) - total(graph, host)
    assert added == pytest.approx((factor - 1) * SAMPLES * share * (SLICE + CALL), rel=0.02)


@pytest.mark.parametrize("samples", [2, 3, 4])
@pytest.mark.parametrize("growth", [1.0, 4.0], ids=["as long", "four times as long"])
def test_the_gpu_has_as_much_more_as_there_are_samples(tmp_path, samples, growth):
    """This holds however the first call, which is not part of a loop's rounds, is assumed to grow."""
    graph = graph_of(tmp_path, loops(samples))
    attention = (
        graph.on_gpu
        & np.append(
            graph.timeline.trace.rows_named(graph.timeline.trace.gpu.name, lambda name: name == "cudnn_sdpa"), False
        )[graph.gpu_row]
    )
    before, after = total(graph, attention), total(changed(graph, 4.0, growth), attention)
    assert before == pytest.approx(samples * KERNEL)
    assert after == pytest.approx(4 * before)


def two_of_a_batch(program: Program) -> None:
    loops(2, batch=8)(program)


def forward_and_its_backward(program: Program) -> None:
    matmul(program)
    program.tid = AUTOGRAD
    call(program, 1)
    call(program, 1, f"{ATTENTION}_backward")
    program.tid = MAIN


def products_of_templates(program: Program) -> None:
    matmul(program, "triton_tem_fused_mm_0", "triton_tem_fused_mm_0")
    call(program, 1)


@pytest.mark.parametrize(
    "layer", [loops(1), two_of_a_batch, forward_and_its_backward, products_of_templates], ids=lambda f: f.__name__
)
def test_what_is_no_loop_over_samples(tmp_path, layer):
    graph = graph_of(tmp_path, layer)
    assert not rounds_of(graph).any()
    host = (graph.lane >= 0) & ~graph.waits
    assert total(changed(graph, 8.0), host) == pytest.approx(total(graph, host))


def test_steps_are_not_joined(tmp_path):
    """Attention at the end of a step and at the beginning of the next, and nothing else."""
    program = Program()
    for _ in range(3):
        program.step(lambda: call(program, 1))
    assert not rounds_of(program.case(tmp_path).graph).any()


def test_the_same_batch_changes_nothing(tmp_path):
    graph = graph_of(tmp_path, loops(SAMPLES))
    assert np.array_equal(changed(graph, 1.0).duration_ns, graph.duration_ns)

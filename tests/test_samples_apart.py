"""Samples that attention is called for one after another: more samples are more calls."""

import numpy as np
import pytest
from test_findings_gpu import BF16, PRODUCT, US, Program

from gpuprof.projection.apart import _rounds, more_calls

LAYERS, SAMPLES, STEPS = 4, 3, 2
SLICE, CALL, LINEAR = 30 * US, 50 * US, 20 * US


def layers(program: Program, samples: int) -> None:
    """A product, and attention sample by sample: slices of 30 µs, a call of 50 µs."""
    for _ in range(LAYERS):
        program.op("aten::mm", PRODUCT, 2 * US, [[64, 64], [64, 64]], [BF16, BF16], host=LINEAR)
        for _ in range(samples):
            program.op("aten::slice", host=SLICE)
            program.op("aten::_scaled_dot_product_cudnn_attention", "cudnn_sdpa", 2 * US, host=CALL)


def graph_of(tmp_path, samples: int):
    program = Program()
    for _ in range(STEPS):
        program.step(lambda: layers(program, samples))
    return program.case(tmp_path).graph


def test_each_sample_more_is_another_round(tmp_path):
    graph = graph_of(tmp_path, SAMPLES)
    rounds, loops = _rounds(graph)
    assert rounds.tolist() == [SAMPLES - 1] * (LAYERS * STEPS)
    assert (loops.end_ns - loops.start_ns).tolist() == [(SAMPLES - 1) * (SLICE + CALL)] * (LAYERS * STEPS)
    host = (graph.lane >= 0) & ~graph.waits
    for factor in (2.0, 8.0):
        for share in (0.5, 1.0):
            after = graph.duration_ns * more_calls(graph, factor, share)
            added = (after - graph.duration_ns)[host].sum() / (STEPS * LAYERS)
            assert added == pytest.approx((factor - 1) * SAMPLES * share * (SLICE + CALL), rel=0.02)


def test_one_call_a_layer_is_no_loop(tmp_path):
    graph = graph_of(tmp_path, 1)
    assert np.all(more_calls(graph, 8.0) == 1)


def test_the_same_batch_changes_nothing(tmp_path):
    assert np.all(more_calls(graph_of(tmp_path, SAMPLES), 1.0) == 1)

"""Scores of attention that are written out: told by their shapes, and grown with the length of samples."""

from __future__ import annotations

import numpy as np
import pytest

import gpuprof
from gpuprof.diagnosis.projection_input.subject import subject_of
from gpuprof.projection.batch import event_growth
from gpuprof.projection.squares import _is_square, _makes_square, _parsed, _scores, on_squares, score_elements
from gpuprof.timeline.categories import CATEGORIES
from scenarios import catalogue


@pytest.mark.parametrize(
    ("shape", "is_scores"),
    [((4, 32, 2048, 2048), True), ((8, 64, 231, 232), True), ((128, 512, 512), True), ((4096, 128256), False),
     ((8, 64, 231, 300), False), ((8, 16, 1, 1), False)],
)  # fmt: skip
def test_a_softmax_over_scores_is_square_but_for_a_sink(shape, is_scores):
    assert (_scores([shape]) is not None) == is_scores


def test_a_square_by_chance_is_none():
    lengths, heads = {2048}, {128}
    assert _is_square((4, 1, 2048, 2048), lengths, heads), "a mask for all heads"
    assert _is_square((128, 2048, 2048), lengths, heads)
    assert not _is_square((4, 2048, 2048), lengths, heads), "hidden states as wide as the sample is long"
    assert not _is_square((4, 32, 512, 512), lengths, heads)
    assert _makes_square([(128, 2048, 64), (128, 64, 2048)], lengths, heads)
    assert not _makes_square([(4, 2048, 64), (4, 64, 2048)], lengths, heads)
    assert not _makes_square([(128, 64, 2048), (128, 2048, 64)], lengths, heads)


def test_shapes_of_lists_and_of_damage():
    assert _parsed("[[[1,64,1024,1024],[1,64,1024,1]],[]]") == [(1, 64, 1024, 1024), (1, 64, 1024, 1)]
    assert _parsed("[[4,-1,3],[2,3],7,null]") == _parsed("{") == _parsed(None) == _parsed("3") == []


@pytest.fixture(scope="module")
def eager():
    path = catalogue.scenario("eager_attention").recording
    if path is None:
        pytest.skip("the scenario's recording is not there")
    return subject_of(gpuprof.diagnose(path))


def test_all_work_on_scores_goes_with_tokens_and_length(eager):
    timeline = eager.graph.timeline
    squares = on_squares(timeline)
    named = {CATEGORIES[code] for code in np.unique(timeline.category[squares]).tolist()}
    assert {"softmax", "gemm", "elementwise", "cast/copy"} <= named
    ns = (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns)[timeline.members]
    assert 0.5 < ns[squares[timeline.members]].sum() / ns.sum() < 0.6
    # Twice the tokens, in samples of twice the length.
    growth = event_growth(timeline, eager.roofline, 2.0, eager.pass_tokens, 2.0)
    large = squares & (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns > 100_000)
    assert np.allclose(growth[large], 4.0, rtol=0.1)
    rest = ~squares & (timeline.category != CATEGORIES.index("attention"))
    assert growth[rest].max() <= 2 * 2
    assert np.median(growth[rest & (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns > 100_000)]) < 2.05


def test_scores_are_most_of_what_fused_attention_saved(eager):
    """19,962 MiB less at the peak with fused attention; the scores that stay are told by their shapes."""
    recorded = eager.memory.recorded
    assert len(score_elements(eager.graph.timeline)) == 6
    truth = catalogue.scenario("eager_attention").truth
    assert truth is not None
    saved = [p["peak_mib"] for p in truth["processes"]]
    assert recorded.score_bytes / 2**20 == pytest.approx(max(saved) - min(saved), rel=0.1)

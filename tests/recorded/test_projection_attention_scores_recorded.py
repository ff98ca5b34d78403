"""A recorded fine-tune whose attention writes its scores to memory."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.diagnosed import diagnosed

from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.projection.changes.attention_scores import on_attention_scores, score_elements
from gpuprof.projection.changes.batch import event_growth
from gpuprof.timeline.categories import CATEGORIES
from scenarios import catalogue


@pytest.fixture(scope="module")
def eager():
    path = catalogue.scenario("eager_attention").recording
    if path is None:
        pytest.skip("the scenario's recording is not there")
    return subject_of(diagnosed(path))


def test_all_work_on_scores_goes_with_tokens_and_length(eager):
    timeline = eager.graph.timeline
    squares = on_attention_scores(timeline)
    named = {CATEGORIES[code] for code in np.unique(timeline.category[squares]).tolist()}
    assert {"softmax", "gemm", "elementwise", "cast/copy"} <= named
    ns = (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns)[timeline.members]
    assert 0.5 < ns[squares[timeline.members]].sum() / ns.sum() < 0.6
    # Twice the tokens, in samples twice as long.
    growth = event_growth(timeline, eager.roofline, 2.0, eager.pass_tokens, 2.0)
    large = squares & (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns > 100_000)
    assert np.allclose(growth[large], 4.0, rtol=0.1)
    rest = ~squares & (timeline.category != CATEGORIES.index("attention"))
    assert growth[rest].max() <= 2 * 2
    assert np.median(growth[rest & (timeline.trace.gpu.end_ns - timeline.trace.gpu.start_ns > 100_000)]) < 2.05


def test_scores_are_most_of_what_fused_attention_saved(eager):
    """Fused attention reduced the peak by 19,962 MiB; the scores that are kept are recognised by their shapes."""
    recorded = eager.memory.recorded
    assert len(score_elements(eager.graph.timeline)) == 6
    truth = catalogue.scenario("eager_attention").truth
    assert truth is not None
    saved = [p["peak_mib"] for p in truth["processes"]]
    assert recorded.score_bytes / 2**20 == pytest.approx(max(saved) - min(saved), rel=0.1)

"""Work on the weights in a recorded full fine-tune."""

from __future__ import annotations

import pytest
from helpers.paths import ROOT
from helpers.timeline import timeline_of

from gpuprof.projection.changes.weights import on_weights, weight_shapes


def test_a_full_fine_tune_with_float32_weights_under_autocast():
    """The recording has 58 casts and gradients cast back, and the embedding's gradient zeroed: 6.4 ms of each step."""
    timeline = timeline_of(ROOT / "scenarios" / "optimizer_memory" / "recording" / "trace.rank0.json.gz")
    found = on_weights(timeline)
    gpu = timeline.trace.gpu
    assert found.sum() == 3 * 59
    assert (gpu.end_ns - gpu.start_ns)[found].sum() / 3e6 == pytest.approx(6.38, abs=0.05)
    assert all(256 not in shape and 1 not in shape for shape in weight_shapes(timeline))

"""The largest batch that fits in a GPU's memory."""

from __future__ import annotations

from helpers.budgets import budget
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.costs.hardware import find
from gpuprof.projection.memory.activations import RecordedPeak
from gpuprof.projection.memory.recorded_memory import RecordedMemory, fit, usage


@budget(50)
@given(st.floats(1e8, 1e11), st.floats(1e3, 1e7), st.integers(1, 64), st.floats(1, 1e6), st.floats(0, 0.9))
def test_the_largest_batch_fits_and_one_more_does_not(static, per_token, batch, tokens, fixed):
    above = per_token * tokens
    recorded = RecordedMemory(int(static), RecordedPeak(above, tokens, line_fixed_bytes=fixed * above))
    use = usage(recorded)
    gpu = find("A100 SXM4 80GB")
    assert gpu is not None
    found = fit(gpu, use, tokens, batch)
    room = found.usable_bytes - use.static_bytes
    largest = found.largest_batch
    assert largest is not None
    assert found.largest_batch_low is not None
    assert found.largest_batch_high is not None
    assert found.largest_batch_low <= largest <= found.largest_batch_high
    line, sample = use.activations.likely, tokens / batch
    if 0 < largest < 1_000_000:
        assert line.at(largest * sample) <= room * (1 + 1e-6)
        assert line.at((largest + 1) * sample) > room * (1 - 1e-6)

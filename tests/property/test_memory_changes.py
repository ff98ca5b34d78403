"""Changes to a footprint, for any recorded peak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.fixes.memory_remedies import memory_fixes
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.activations import Loss, RecordedPeak
from gpuprof.projection.memory.footprint import Footprint
from gpuprof.projection.memory.memory_fixes import recorded_footprint
from gpuprof.projection.memory.recorded_memory import RecordedMemory

GIB = 2**30


@st.composite
def recordings(draw) -> RecordedMemory:
    layers, hidden = draw(st.integers(1, 80)), draw(st.sampled_from([512, 2048, 4096, 8192]))
    tokens = float(draw(st.integers(64, 65536)))
    above = draw(st.floats(0.01, 100)) * GIB
    recorded = RecordedPeak(
        above_bytes=above,
        tokens=tokens,
        checkpointing=draw(st.booleans()),
        layers=layers,
        hidden=hidden,
        kept_bytes=2.0 * hidden,
        loss=Loss(draw(st.integers(1000, 200_000)), draw(st.sampled_from([0.0, 0.2, 1.0]))),
        score_bytes=draw(st.sampled_from([0.0, 0.3])) * above,
        layer_bytes=draw(st.one_of(st.none(), st.floats(10, 80).map(lambda each: each * hidden * layers))),
    )
    return RecordedMemory(draw(st.integers(GIB, 80 * GIB)), recorded)


def expected(found: Footprint, tokens: float) -> float:
    return found.peak_bytes(tokens)[1]


@given(recordings())
def test_an_unchanged_footprint_has_the_recorded_peak(memory):
    recorded = memory.recorded
    peak = memory.allocated_bytes + recorded.above_bytes
    assert expected(recorded_footprint(memory), recorded.tokens) == pytest.approx(peak, rel=0.001)


@given(recordings())
def test_the_ends_lie_around_what_is_expected(memory):
    for fix in memory_fixes(memory):
        if fix.change is not None:
            low, likely, high = fix.change(recorded_footprint(memory)).peak_bytes(memory.recorded.tokens)
            assert low <= likely <= high


@given(recordings(), st.sampled_from([2, 4]))
def test_smaller_passes_take_no_more_than_their_gradients(memory, factor):
    found, tokens = recorded_footprint(memory), memory.recorded.tokens
    assert expected(changes.smaller_passes(factor, 0.0)(found), tokens) <= expected(found, tokens) * 1.001
    more = expected(changes.smaller_passes(factor, float(GIB))(found), tokens)
    assert more <= expected(changes.smaller_passes(factor, 0.0)(found), tokens) + GIB + 1


@given(recordings())
def test_savings_do_not_add_memory(memory):
    found, tokens = recorded_footprint(memory), memory.recorded.tokens
    for change in (changes.fused_attention(), changes.no_temporaries(), changes.eight_bit_state(GIB, 1e6)):
        assert expected(change(found), tokens) <= expected(found, tokens) * 1.001

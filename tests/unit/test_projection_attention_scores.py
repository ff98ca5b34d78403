"""Attention scores that are written to memory are recognised by their shapes."""

from __future__ import annotations

import pytest

from gpuprof.projection.changes.attention_scores import _is_square, _makes_square, _parsed, _scores


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

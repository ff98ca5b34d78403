"""Lookups of a small table that layers share, with real autograd on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.cpu_recording import recorded
from helpers.quick import few

from gpuprof.diagnosis.findings import repeated_lookups

LAYERS, HEADS, LENGTH = 6, 2, 32


def step_of(how: str):
    """Attention scores of layers with a bias of their positions, on rows of tokens."""
    import torch
    from torch import nn

    words = nn.Embedding(50, 8)
    tables = [nn.Embedding(4, HEADS) for _ in range(LAYERS if how == "own" else 1)]
    places = torch.arange(LENGTH)
    buckets = (places[None] - places[:, None]).abs().clamp(max=3)
    kinds = nn.Embedding(2, 8)

    def bias(layer: int):
        return tables[layer % len(tables)](buckets).permute(2, 0, 1)

    def step(_: int) -> None:
        tokens = torch.randint(0, 50, (8, LENGTH))
        if how == "calls":  # a model for each part of the batch, with a table of two kinds of tokens
            losses = [(words(tokens) + kinds(tokens % 2)).square().mean() for _ in range(LAYERS)]
            torch.stack(losses).sum().backward()
            return
        x = words(tokens)
        shared = bias(0) if how == "once" else None
        for layer in range(LAYERS):
            of_layer = bias(layer) if shared is None else shared
            x = ((x @ x.mT)[:, None] + of_layer).mean(1) @ x
        x.square().mean().backward()

    return step


@pytest.mark.parametrize("how", few(["each", "once", "own", "calls"], ["each", "own"]))
def test_layers_that_share_a_table(tmp_path: Path, how: str):
    case = case_of(recorded(tmp_path / "trace.json", step_of(how)), as_recorded=True)
    lookups = repeated_lookups.find_lookups(case)
    assert (lookups is not None) == (how == "each")
    if lookups is not None:
        assert (lookups.times, lookups.rows, lookups.indices) == (LAYERS, 4, LENGTH * LENGTH)
        assert (lookups.backward.end_ns > lookups.backward.start_ns).all()

"""What the finding `compile` takes for granted of torch.compile, asked of torch itself."""

from __future__ import annotations

import pytest
from helpers.installed import need

need("torch")


@pytest.mark.parametrize(("told", "least", "most"), [(False, 0, 10), (True, 40, 1000)])
def test_torchs_own_transformer_is_compiled_only_if_it_is_told_that_its_mask_is_causal(
    told: bool, least: int, most: int
):
    import torch

    model = torch.nn.Transformer(32, 2, 2, 2, 32, batch_first=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(8)
    samples = torch.randn(2, 8, 32)
    captured: list[int] = []

    def count(graph, _):
        captured.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    def forward(x):
        return model(x, x, tgt_mask=mask, tgt_is_causal=True if told else None)

    torch._dynamo.reset()
    torch.compile(forward, backend=count)(samples)
    assert least <= sum(captured) <= most

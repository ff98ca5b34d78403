"""What the finding `compile` assumes about torch.compile, checked with torch itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command import variables
from helpers.installed import need
from helpers.started import finished
from helpers.warm_torch import warm_python

need("torch")

COUNTS = """
import sys
import torch

model = torch.nn.Transformer(32, 2, 2, 2, 32, batch_first=True)
mask = torch.nn.Transformer.generate_square_subsequent_mask(8)
samples = torch.randn(2, 8, 32)
captured = []

def count(graph, _):
    captured.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
    return graph.forward

def forward(x):
    return model(x, x, tgt_mask=mask, tgt_is_causal=True if sys.argv[1] == "causal" else None)

torch.compile(forward, backend=count)(samples)
print(sum(captured))
"""
"""A program that prints how many calls are captured."""


@pytest.mark.parametrize(("says_causal", "least", "most"), [(False, 0, 10), (True, 40, 1000)])
def test_torchs_own_transformer_is_compiled_only_if_the_caller_says_that_its_mask_is_causal(
    says_causal: bool, least: int, most: int, tmp_path: Path
):
    (tmp_path / "counts.py").write_text(COUNTS)
    words = [warm_python(), "counts.py", "causal" if says_causal else "unknown"]
    done = finished(words, cwd=tmp_path, env=variables(OMP_NUM_THREADS="1"), text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert least <= int(done.stdout) <= most
